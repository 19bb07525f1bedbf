"""What `fsck` found in the spool and the histories, one value a finding.  Pure.

A finding says, for a person who has never seen the files: where, what it is, what the
relay does with it, and what there is to do.
"""

from dataclasses import dataclass


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


NOTHING_SENT = "nothing is sent through this account"
