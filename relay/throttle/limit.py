"""A limit: at most N of a unit in any window of length T.  Pure.

The policy's limits, the ceilings of its lanes and the cap on reports all have this shape.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from relay.mail.formats import period, size

Unit = Literal["messages", "recipients", "connections", "bytes"]
ForEach = Literal["sender", "sender_domain", "recipient_domain", "client", "user", "lane"]
LONGEST_KEY = 96
"""Characters of a key of `ForEach` as written.  Longer ones are cut in front, and may then be one."""


class Limit(Protocol):
    """One limit: N is `count`, at least 1; T is `per_ns`.

    `for_each` says what has a window each, None for one window over all; `only` is the one key that
    it is about, None for all keys; `label` is how metrics, `--json` and the log name it.
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
    """A limit that no policy states by itself."""

    unit: Unit
    count: int
    per_ns: int
    label: str
    for_each: ForEach | None = None
    only: str | None = None


def limit_words(label: str, lane: str | None) -> str:
    """Return what a message waits for that a limit, or the ceiling of its lane, keeps back.

    One text, whether the throttle said so or an estimate does: reasons are counted by it.
    """
    return f"limit {label}" if lane is None else f"ceiling of lane {lane}"


def plain_words(limit: Limit) -> str:
    """Return a limit as people write it: `100 messages per 1h for each sender`, `1G per 1d`.

    Programs know it by its `label`, which has the window in seconds.
    """
    each = ""
    if limit.for_each == "lane":
        each = f" for lane {limit.only}"
    elif limit.for_each is not None:
        each = f" for each {limit.for_each.replace('_', ' ')}"
    counted = size(limit.count) if limit.unit == "bytes" else f"{limit.count} {limit.unit}"
    return f"{counted} per {period(limit.per_ns)}{each}"
