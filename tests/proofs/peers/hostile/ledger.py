"""What a hostile upstream saw, said and took.  Its clock is that of the oracle: monotonic nanoseconds."""

import enum
import re
import time
from dataclasses import dataclass, field

from tests.proofs.peers.hostile.words import Letter

TOKEN = re.compile(r"\bq([0-9]+)q\b")
"""What names an utterance wherever it is quoted; it looks like an id, which real servers add too."""


def now_ns() -> int:
    """Return the upstream's time."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Cause(enum.StrEnum):
    """Why the upstream said something."""

    FINE = "fine"
    DEAD = "the recipient does not exist"
    SLOW = "the recipient has to wait"
    CONTENT = "the content is bad"
    US = "about us"
    OVER = "over the limit"
    ORDER = "out of order"
    FAULT = "a fault of the upstream"
    NO_EHLO = "EHLO is not known"


ABOUT_A_MESSAGE = frozenset({Cause.DEAD, Cause.SLOW, Cause.CONTENT})


class Fate(enum.StrEnum):
    """What became of a transaction at the upstream."""

    OPEN = "open"
    TAKEN = "taken"
    REFUSED = "refused"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Uttered:
    """One reply, meant or not."""

    token: int
    at_ns: int
    connection: int
    phase: str
    code: int
    text: str
    cause: Cause
    manner: str
    about: tuple[str, ...] = ()
    """Names of the recipients that it refuses."""


@dataclass(slots=True)
class Transaction:
    """From MAIL to its end."""

    number: int
    connection: int
    mail_at_ns: int
    sender: str
    rcpt_at_ns: list[int] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    """Addresses."""
    content: bytes = b""
    fate: Fate = Fate.OPEN
    decided_at_ns: int = 0
    told_at_ns: int = 0
    """When the last octet of its 250 was on its way, whole and alone; 0: never."""


@dataclass(slots=True)
class Ledger:
    """All of it."""

    letters: dict[int, Letter] = field(default_factory=dict)
    transactions: list[Transaction] = field(default_factory=list)
    uttered: list[Uttered] = field(default_factory=list)
    faulty_from_ns: dict[int, int] = field(default_factory=dict)
    """By connection, when it first said anything otherwise than RFC 5321 has it, or nothing."""
    dropped_unheard: int = 0
    """How often content that came whole was dropped, and the client told nothing of it, or nonsense."""
    over: list[str] = field(default_factory=list)
    stalls_ns: list[tuple[int, int]] = field(default_factory=list)
    """When the upstream itself did not run."""
    trace: list[tuple[int, str]] = field(default_factory=list)

    def tell(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append((now_ns(), text))

    def truly_refused(self, name: str, *, transient: bool = False) -> bool:
        """Return whether it ever refused a recipient for good, for what it is or was sent."""
        causes = ABOUT_A_MESSAGE if transient else ABOUT_A_MESSAGE - {Cause.SLOW}
        return any(each.cause in causes and name in each.about for each in self.uttered)

    def quoted_in(self, text: str) -> Uttered | None:
        """Return the reply that a text quotes."""
        found = TOKEN.search(text)
        return None if found is None else self.uttered[int(found[1])]

    def is_told(self, one: Transaction, longest_ns: int) -> bool:
        """Return whether a client had every reason to believe that a transaction was taken."""
        if not one.told_at_ns or one.told_at_ns - one.mail_at_ns > longest_ns:
            return False
        faulty_ns = self.faulty_from_ns.get(one.connection)
        return faulty_ns is None or faulty_ns > one.told_at_ns + 200_000_000
