"""What those outside know of the relay, and since which place in the log of blocks.

Clients, the upstream and the reader of the log write it while the relay works,
from threads of their own.  A place is read *after* something was seen that obliges the
relay (a 250, a MAIL, a line of its log): whatever it promises must have been on the disk
by then.  It is read *before* something is said that frees the relay (a reply of the upstream):
what it does because of that comes later.  So no verdict rests on a race.
"""

import os
import threading
from dataclasses import dataclass, field, fields
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Letter:
    """A message as its client hands it over."""

    number: int
    reverse_path: str
    recipients: tuple[str, ...]
    content: bytes


@dataclass
class Observations:
    """Facts and their places.  A recipient's address belongs to one message, a sender's too."""

    offered: dict[int, tuple[int, Letter]] = field(default_factory=dict)
    accepted: dict[int, tuple[int, str]] = field(default_factory=dict)
    """By number: its queue id, from the 250."""
    mails: list[tuple[int, None]] = field(default_factory=list)
    """Each MAIL that the upstream saw."""
    rcpts: list[tuple[int, None]] = field(default_factory=list)
    taken: dict[str, list[tuple[int, bytes]]] = field(default_factory=dict)
    """By recipient: each content that the upstream took, and said so or tried to."""
    refused: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    """By recipient: each reply that refused it, for good or for now."""
    told: dict[tuple[str, str], list[tuple[int, str]]] = field(default_factory=dict)
    """By queue id and recipient: what the relay's log said became of it."""

    def until(self, place: int) -> "Observations":
        """Return what was known at a place."""
        known = Observations()
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(known, each.name)
            if isinstance(mine, list):
                theirs.extend(fact for fact in mine if fact[0] <= place)
            elif each.name in ("offered", "accepted"):
                theirs.update({key: fact for key, fact in mine.items() if fact[0] <= place})
            else:
                kept = {key: [fact for fact in facts if fact[0] <= place] for key, facts in mine.items()}
                theirs.update({key: facts for key, facts in kept.items() if facts})
        return known

    def obligations(self) -> list[int]:
        """Return the places, in order, since which the relay owes more than before."""
        facts = [
            *self.accepted.values(),
            *self.mails,
            *(fact for each in self.told.values() for fact in each),
        ]
        return sorted(place for place, _ in facts)

    def at_the_beginning(self) -> "Observations":
        """Return the same facts, all of them known before another log begins."""
        return Observations(
            {key: (0, letter) for key, (_, letter) in self.offered.items()},
            {key: (0, queue_id) for key, (_, queue_id) in self.accepted.items()},
            [(0, None) for _ in self.mails],
            [(0, None) for _ in self.rcpts],
            {key: [(0, fact) for _, fact in facts] for key, facts in self.taken.items()},
            {key: [(0, fact) for _, fact in facts] for key, facts in self.refused.items()},
            {key: [(0, fact) for _, fact in facts] for key, facts in self.told.items()},
        )

    def is_told(self, queue_id: str, recipient: str) -> bool:
        """Whether the log said of a recipient that it is done with."""
        ends = {"sent", "bounced", "expired"}
        return any(status in ends for _, status in self.told.get((queue_id, recipient), []))


class Scribe:
    """Writes observations while the disk is being recorded."""

    def __init__(self, log: Path, observed: Observations) -> None:
        self.observed = observed
        self.faults: list[str] = []
        """What nobody should ever see, whatever is on the disk."""
        self._fd = os.open(log, os.O_RDONLY | os.O_CLOEXEC)
        self._mutex = threading.Lock()

    def place(self) -> int:
        """Return where the log of blocks ends now."""
        return os.fstat(self._fd).st_size

    def offer(self, letter: Letter) -> None:
        """Note that a client is about to hand a message over."""
        with self._mutex:
            self.observed.offered[letter.number] = (self.place(), letter)

    def accept(self, number: int, queue_id: str) -> None:
        """Note that a client got its 250."""
        with self._mutex:
            self.observed.accepted[number] = (self.place(), queue_id)

    def mail(self) -> None:
        """Note that the upstream got MAIL."""
        with self._mutex:
            self.observed.mails.append((self.place(), None))

    def rcpt(self) -> None:
        """Note that the upstream got RCPT."""
        with self._mutex:
            self.observed.rcpts.append((self.place(), None))

    def refuse(self, recipient: str, reply: str) -> None:
        """Note that the upstream is about to refuse a recipient."""
        with self._mutex:
            self.observed.refused.setdefault(recipient, []).append((self.place(), reply))

    def take(self, recipient: str, content: bytes) -> None:
        """Note that the upstream has taken a message, and is about to say so."""
        with self._mutex:
            self.observed.taken.setdefault(recipient, []).append((self.place(), content))

    def tell(self, queue_id: str, recipient: str, status: str) -> None:
        """Note that the relay's log said what became of a recipient."""
        with self._mutex:
            self.observed.told.setdefault((queue_id, recipient), []).append((self.place(), status))

    def fault(self, text: str) -> None:
        """Note down what should never be seen."""
        with self._mutex:
            self.faults.append(text)

    def close(self) -> None:
        """Let go of the log."""
        os.close(self._fd)
