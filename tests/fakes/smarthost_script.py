"""Scripts for the fake smarthost: what is said in each phase (see `tests.fakes.smarthost`)."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Act:
    """Something else than saying something."""

    name: str


CLOSE = Act("close")
"""End the connection (FIN)."""
RESET = Act("reset")
"""End it with RST."""
HALF_CLOSE = Act("half-close")
"""Say nothing more, but go on listening."""
SILENCE = Act("silence")
"""Say nothing more; the connection stays until the client ends it."""
DEAF = Act("deaf")
"""Say nothing more and read nothing more."""
DEFAULT = Act("default")
"""What would be said without a script."""
GAP = Act("gap")
"""What was said leaves; what follows is another segment."""


@dataclass(frozen=True)
class Drip:
    """Octets one by one, each in a segment of its own."""

    octets: bytes


@dataclass(frozen=True)
class Until:
    """Waits for the test."""

    event: asyncio.Event


Step = str | bytes | Act | Drip | Until
Turn = Step | Sequence[Step]


class Turns:
    """One turn after the other, over all connections; then the default."""

    def __init__(self, given: Sequence[Turn]) -> None:
        self._given = list(given)

    def take(self) -> Turn:
        return self._given.pop(0) if self._given else DEFAULT


def turns(*given: Turn) -> Turns:
    return Turns(given)


@dataclass(frozen=True)
class During:
    """A turn in the middle of the content, after so many octets of it."""

    octets: int
    turn: Turn


Scripted = Turn | Turns | Callable[[str], Turn]


@dataclass
class Script:
    """What is said in each phase.  None: the default."""

    connect: Scripted | None = None
    ehlo: Scripted | None = None
    starttls: Scripted | None = None
    auth: Scripted | None = None
    """The reply that decides, after the exchange of the mechanism."""
    challenge: Scripted | None = None
    """Each 334 of LOGIN and CRAM-MD5."""
    mail: Scripted | None = None
    rcpt: Scripted | None = None
    data: Scripted | None = None
    content: During | None = None
    eod: Scripted | None = None
    rset: Scripted | None = None
    quit: Scripted | None = None


def at(phase: str, turn: Scripted) -> Script:
    script = Script()
    if phase not in vars(script):
        raise ValueError(phase)
    setattr(script, phase, turn)
    return script


def turn_of(scripted: Scripted | None, argument: str) -> Turn:
    if scripted is None:
        return DEFAULT
    if isinstance(scripted, Turns):
        return scripted.take()
    return scripted(argument) if callable(scripted) else scripted
