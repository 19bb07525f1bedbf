"""An operator's pause of an upstream (`relay pause`).  Pure.

It stands beside the state of the account: what the upstream says while it lasts still changes that state,
and what it came to counts when the pause is over.  Nothing is sent while either forbids it.

With `--new` a pause also holds what comes in while it lasts.  That is written nowhere but in the pause:
a message that came in since `new_since_ns` is held, and goes on when the pause is over, so no crash can
leave one behind that nobody releases (`relay.queue.queued.NewMailHold`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from relay.mail.formats import utc
from relay.mail.text import clean

FOREVER_NS = 1 << 62
"""The end of a pause that has not ended."""
LONGEST_BY = 64
"""Characters of the name of who paused."""


@dataclass(frozen=True, slots=True)
class PauseAsked:
    by: str
    length_ns: int | None = None
    """None: until `relay resume`."""
    holds_new: bool = False
    """Hold what comes in while it lasts."""

    def begun(self, now_ns: int, wall_ns: int, before: "OperatorPause | None" = None) -> "OperatorPause":
        """Return it as of now; what the pause `before` it held stays held where this one holds too."""
        until_ns = FOREVER_NS if self.length_ns is None else now_ns + self.length_ns
        new_since_ns = now_ns if self.holds_new else None
        if new_since_ns is not None and before is not None and before.new_since_ns is not None:
            new_since_ns = before.new_since_ns
        return OperatorPause(until_ns, clean(self.by)[:LONGEST_BY], wall_ns, new_since_ns)


@dataclass(frozen=True, slots=True)
class OperatorPause:
    until_ns: int
    """Boottime; FOREVER_NS where only `relay resume` ends it."""
    by: str
    since_at_ns: int
    """Wall clock, to show."""
    new_since_ns: int | None = None
    """Boottime: what came in since is held.  None: it waits as all else."""

    @property
    def holds_new(self) -> bool:
        return self.new_since_ns is not None

    @property
    def is_lasting(self) -> bool:
        return self.until_ns == FOREVER_NS

    @property
    def who(self) -> str:
        holding = "; new mail for it is held" if self.holds_new else ""
        return f"{self.by}, since {utc(self.since_at_ns)}{holding}"

    @property
    def words(self) -> str:
        return f"by {self.who}"

    def moved(self, by_ns: int, moved: Callable[[int], int]) -> Self:
        """Return it in the time of another boot, which `by_ns` brings an end to, and `moved` an arrival."""
        return replace(
            self,
            until_ns=self.until_ns if self.is_lasting else self.until_ns + by_ns,
            new_since_ns=None if self.new_since_ns is None else moved(self.new_since_ns),
        )
