"""What an inspection of the spool and the histories found, one value a finding.  Pure.

A finding says, for a person who has never seen the files: where, what it is, what the
relay does with it, and what there is to do.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Finding:
    path: str
    kind: str
    """A word for programs, such as `corrupt_message`."""
    what: str
    becomes: str
    """What the relay does with it."""
    advice: str = ""
    """What an operator can do; empty where nobody need do anything."""

    @property
    def is_damage(self) -> bool:
        """Whether somebody has to look at it."""
        return bool(self.advice)


@dataclass(slots=True)
class Inspection:
    """What there is to say of a whole spool."""

    root: str
    holder: str | None = None
    """The process that holds the spool's lock, as far as this host can tell; None: nobody."""
    findings: list[Finding] = field(default_factory=list)
    messages: int = 0
    """Whole ones: accepted, queued and held."""
    arriving: int = 0
    """Drafts whose writers live."""


NOTHING_SENT = "nothing is sent through this account"
STOPS_THE_START = "no relay starts on it"


def unreadable(path: str, why: str | None, becomes: str = "left where it is, and tried again") -> Finding:
    return Finding(path, "unreadable", f"cannot be read now: {why}", becomes, "see to the disk")
