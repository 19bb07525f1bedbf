"""What those outside know of the relay, and since which place in the log of blocks.

Clients, the upstream and the reader of the log note it while the relay works, from threads of their own.
What obliges the relay (a 250, a MAIL, a line of its log) is noted *after* it was seen: whatever it promises
must have been on the disk by then.  What frees the relay (a reply of the upstream) is noted *before* it is
said: what it does because of that comes later.  So no verdict rests on a race.
"""

import os
import threading
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Letter:
    """A message as its client hands it over."""

    number: int
    reverse_path: str
    recipients: tuple[str, ...]
    content: bytes


@dataclass
class Observations:
    """What is known.  A recipient's address belongs to one message, a sender's too."""

    offered: dict[int, Letter] = field(default_factory=dict)
    accepted: dict[int, str] = field(default_factory=dict)
    """By number: its queue id, from the 250."""
    mails: int = 0
    """That the upstream saw."""
    rcpts: int = 0
    taken: dict[str, list[bytes]] = field(default_factory=dict)
    """By recipient: each content that the upstream took, and said so or tried to."""
    refused: set[str] = field(default_factory=set)
    """Recipients that a reply refused, for good or for now."""
    told: set[tuple[str, str]] = field(default_factory=set)
    """Queue ids and recipients that the relay's log says it is done with."""

    def offer(self, letter: Letter) -> None:
        self.offered[letter.number] = letter

    def accept(self, number: int, queue_id: str) -> None:
        self.accepted[number] = queue_id

    def mail(self) -> None:
        self.mails += 1

    def rcpt(self) -> None:
        self.rcpts += 1

    def take(self, recipient: str, content: bytes) -> None:
        self.taken.setdefault(recipient, []).append(content)

    def refuse(self, recipient: str) -> None:
        self.refused.add(recipient)

    def tell(self, queue_id: str, recipient: str) -> None:
        self.told.add((queue_id, recipient))


OBLIGING = (Observations.accept, Observations.mail, Observations.tell)


class Scribe:
    """Notes what is observed while the disk is being recorded."""

    def __init__(self, log: Path, before: Observations) -> None:
        """`before` is what was known before the log began."""
        self.faults: list[str] = []
        """What nobody should ever see, whatever is on the disk."""
        self._before = before
        self._facts: list[tuple[int, Callable[..., None], tuple[Any, ...]]] = []
        self._fd = os.open(log, os.O_RDONLY | os.O_CLOEXEC)
        self._mutex = threading.Lock()

    def note(self, what: Callable[Concatenate[Observations, P], None], *args: P.args, **_: P.kwargs) -> None:
        with self._mutex:
            self._facts.append((self.place(), what, args))

    def place(self) -> int:
        return os.fstat(self._fd).st_size

    def known(self, place: int) -> Observations:
        known = deepcopy(self._before)
        for at, what, arguments in self._facts:
            if at <= place:
                what(known, *arguments)
        return known

    def obligations(self) -> list[int]:
        """Return the places, in order, since which the relay owes more than before."""
        return sorted(place for place, what, _ in self._facts if what in OBLIGING)

    def close(self) -> None:
        """Let go of the log; what was noted stays."""
        os.close(self._fd)
