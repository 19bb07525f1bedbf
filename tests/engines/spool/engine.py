"""What the suite needs of an engine: how to make it, and the first steps of most tests.

This module knows only relay.spool.interface and the port of the disk, not how an engine stores messages.
"""

import random
from collections.abc import Callable
from typing import Protocol

from relay.mail.envelope import Envelope, QueueId
from relay.spool.disk.durable import Disk, opened
from relay.spool.interface import Intake, Message, Note, Settlement, Spool, SpoolError, Status
from tests.fakes.clock import START_WALL_NS, FakeClock
from tests.fakes.disk import ModelDisk

ENVELOPE = Envelope(
    "list-owner@example.org",
    ("alice@example.com", "bob@example.net", "carol@example.org"),
    START_WALL_NS,
    "mail.example.org[192.0.2.1]",
    "mail.example.org",
    "ESMTPSA",
    user="mjd",
)
CONTENT = b"Received: by us\r\nSubject: minutes\r\n\r\n.dots\r\n\x00\xff, and no end of line"
RELAYED, BOUNCED, EXPIRED, DELETED = Status.RELAYED, Status.BOUNCED, Status.EXPIRED, Status.DELETED
TOLD = Status.SUCCESS


class Engine(Protocol):
    """One spool on one disk. Each call of `start` or `intake` makes another process."""

    clock: FakeClock
    told: list[tuple[str, str]]
    """Corrupt messages reported to the sender: name and fault."""

    def start(self) -> Spool:
        """Start a sender that has claimed nothing yet."""
        ...

    def intake(self) -> Intake: ...

    def damage(self, queue_id: QueueId) -> None: ...


class OnModel(Protocol):
    """An engine with its root on any disk, as the crash suite knows it."""

    root: str

    def spool(self, disk: Disk, clock: FakeClock, on_corrupt: Callable[[str, str], None]) -> Spool:
        """Own the queue on a view of the disk; claim nothing yet."""
        ...

    def prepare(self, disk: Disk) -> None: ...

    def listener(self, disk: Disk, clock: FakeClock, chance: Callable[[int], bytes]) -> Intake: ...

    def vary(self, rng: random.Random) -> None:
        """Draw the engine's free parameters, such as the length of its files, for the rest of the process."""
        ...

    def drafts(self, disk: Disk) -> list[str]:
        """Return the names of drafts that were never accepted and still exist."""
        ...

    def remains(self, disk: Disk) -> list[str]: ...

    def octet_of(self, disk: Disk, queue_id: QueueId) -> tuple[str, int]:
        """Return the file that has the content of a message, and the offset of an octet of it."""
        ...


class OneSpool:
    """The common part of the engines: one spool; each process gets its own view of the disk."""

    def __init__(self, root: str, disk: Disk) -> None:
        self.root = root
        self.disk = disk
        self.clock = FakeClock()
        self.told: list[tuple[str, str]] = []
        self._intakes = 0

    def view(self) -> Disk:
        return self.disk.another() if isinstance(self.disk, ModelDisk) else self.disk

    def tell(self, name: str, why: str) -> None:
        self.told.append((name, why))

    def chance(self) -> Callable[[int], bytes]:
        self._intakes += 1
        return random.Random(self._intakes).randbytes


class OnDisk(OneSpool):
    """An engine that stores messages on the disk: on the model disk, or in a real folder."""

    def __init__(self, kind: OnModel, disk: Disk) -> None:
        super().__init__(kind.root, disk)
        self.kind = kind

    def start(self) -> Spool:
        return self.kind.spool(self.view(), self.clock, self.tell)

    def intake(self) -> Intake:
        view = self.view()
        self.kind.prepare(view)
        return self.kind.listener(view, self.clock, self.chance())

    def damage(self, queue_id: QueueId) -> None:
        path, at = self.kind.octet_of(self.disk, queue_id)
        with opened(self.disk, self.disk.open_update(path)) as fd:
            (octet,) = self.disk.pread(fd, 1, at)
            self.disk.write_at(fd, bytes([octet ^ 1]), at)


def content_of(disk: Disk, path: str) -> bytes:
    with opened(disk, disk.open_read(path)) as fd:
        return disk.pread(fd, disk.size(fd), 0)


def note(index: int, text: str | None = "550 5.1.1 no such user", reason: str = "bounced") -> Note:
    return Note(index, "5.1.1", reason, text, "smtp.example.net", START_WALL_NS + index)


def accept(
    intake: Intake, envelope: Envelope = ENVELOPE, content: bytes = CONTENT, *, chunk: int = 0
) -> QueueId:
    draft = intake.draft()
    for start in range(0, len(content), chunk or len(content) or 1):
        draft.append(content[start : start + (chunk or len(content))])
        if chunk:
            draft.spill()
    assert intake.accept([(draft, envelope)]) == [None]
    return draft.queue_id


def claimed(spool: Spool, most: int = 100) -> list[Message]:
    found: list[Message] = []
    while page := spool.claim(most):
        found += page
    return found


def read(spool: Spool, queue_id: QueueId) -> Message:
    """Read one message. Raises the SpoolError that the spool returned."""
    (found,) = spool.read([queue_id])
    if isinstance(found, SpoolError):
        raise found
    return found


def settle(spool: Spool, *settlements: Settlement) -> None:
    """Settle as one group. Raises the first failure."""
    for failure in spool.settle(settlements):
        if failure is not None:
            raise failure


def again(engine: Engine, spool: Spool) -> tuple[Spool, list[Message]]:
    """Restart the sender. Return its spool and the messages that it claimed."""
    spool.close()
    spool = engine.start()
    return spool, claimed(spool)
