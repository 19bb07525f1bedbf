"""A limit: at most N of a unit in any window of length T.  Pure.

The policy's limits, those that `limit_hints` lowers and the cap on reports all have this shape.
"""

from typing import Literal, Protocol

Unit = Literal["messages", "recipients", "connections"]
ForEach = Literal["sender", "sender_domain", "recipient_domain", "client", "lane"]


class Limit(Protocol):
    """One limit: N is `count`, at least 1; T is `per_ns`.

    `for_each` says what has a window each, None for one window over all; `only` is the one key that
    it is about, None for all keys; `label` is how a status line names it.
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
