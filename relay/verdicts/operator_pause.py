"""An operator's pause of an upstream (`relay pause`).  Pure.

It stands beside the state of the account: what the upstream says while it lasts still changes that state,
and what it came to counts when the pause is over.  Nothing is sent while either forbids it.
"""

from dataclasses import dataclass

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

    def begun(self, now_ns: int, wall_ns: int) -> "OperatorPause":
        until_ns = FOREVER_NS if self.length_ns is None else now_ns + self.length_ns
        return OperatorPause(until_ns, clean(self.by)[:LONGEST_BY], wall_ns)


@dataclass(frozen=True, slots=True)
class OperatorPause:
    until_ns: int
    """Boottime; FOREVER_NS where only `relay resume` ends it."""
    by: str
    since_at_ns: int
    """Wall clock, to show."""

    @property
    def is_lasting(self) -> bool:
        return self.until_ns == FOREVER_NS

    @property
    def who(self) -> str:
        return f"{self.by}, since {utc(self.since_at_ns)}"

    @property
    def words(self) -> str:
        return f"by {self.who}"
