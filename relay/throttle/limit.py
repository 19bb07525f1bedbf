"""What a limit is to whoever counts by it, compares with it or foresees it: N of a unit in any T.  Pure.

The policy's limits, those lowered by `relay.throttle.limit_hints` and the cap on reports are ones.
Does not: count, or read a policy.
"""

from typing import Literal, Protocol

Unit = Literal["messages", "recipients", "connections"]
ForEach = Literal["sender", "sender_domain", "recipient_domain", "client", "lane"]


class Limit(Protocol):
    """One limit."""

    @property
    def unit(self) -> Unit:
        """Return what is counted."""
        ...

    @property
    def count(self) -> int:
        """Return N, the most that any window may hold; at least 1."""
        ...

    @property
    def per_ns(self) -> int:
        """Return T, the length of the window."""
        ...

    @property
    def for_each(self) -> ForEach | None:
        """Return what has a window each; None for one window over all."""
        ...

    @property
    def only(self) -> str | None:
        """Return the one key that it is about, if it is about one alone."""
        ...

    @property
    def label(self) -> str:
        """Return how a status line names it."""
        ...
