"""A limit: at most N of a unit in any window of length T.  Pure.

The policy's limits, the ceilings of its lanes and the cap on reports all have this shape.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from relay.mail.formats import period, size

Unit = Literal["messages", "recipients", "connections", "bytes"]
ForEach = Literal["sender", "sender_domain", "recipient_domain", "client", "user", "lane"]
LONGEST_KEY = 96
"""The most characters of a written key.  A longer key loses its beginning; two such may become one."""


class Limit(Protocol):
    """One limit: N is `count`, at least 1; T is `per_ns`.

    `for_each` is the kind of key that has a window each; None means one window for everything.  `only` is the
    one key that the limit judges; None means every key.  `label` names it in metrics, `--json` and the log.
    """

    @property
    def unit(self) -> Unit: ...
    @property
    def count(self) -> int: ...
    @property
    def per_ns(self) -> int: ...
    @property
    def for_each(self) -> ForEach | None: ...
    @property
    def only(self) -> str | None: ...
    @property
    def label(self) -> str: ...


@dataclass(frozen=True, slots=True)
class PlainLimit:
    """A limit that is not in the policy's `limits`, such as the cap on reports."""

    unit: Unit
    count: int
    per_ns: int
    label: str
    for_each: ForEach | None = None
    only: str | None = None


def limit_words(label: str, lane: str | None) -> str:
    """Return the reason why a message waits: a limit, or the ceiling of its lane.

    The throttle and the estimates use the same text, because reasons are counted by their text.
    """
    return f"limit {label}" if lane is None else f"ceiling of lane {lane}"


def plain_words(limit: Limit) -> str:
    """Return a limit as people write it: `100 messages per 1h for each sender`, `1G per 1d`.

    Programs read its `label` instead, which has the window in seconds.
    """
    each = ""
    if limit.for_each == "lane":
        each = f" for lane {limit.only}"
    elif limit.for_each is not None:
        each = f" for each {limit.for_each.replace('_', ' ')}"
    counted = size(limit.count) if limit.unit == "bytes" else f"{limit.count} {limit.unit}"
    return f"{counted} per {period(limit.per_ns)}{each}"
