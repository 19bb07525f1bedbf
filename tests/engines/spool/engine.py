"""What the suite needs of an engine: how to make it, and the first steps of most tests.

Only this module knows how the maildir and the log store messages.
"""

import abc
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from relay.clock import SECOND_NS
from relay.mail.dsn import Note
from relay.mail.envelope import Envelope, QueueId
from relay.spool.disk.durable import Disk, RealDisk, opened
from relay.spool.identity import report_id, warning_id
from relay.spool.interface import (
    INLINE_BYTES,
    Intake,
    Message,
    Report,
    Settlement,
    Spool,
    SpoolError,
    Status,
)
from relay.spool.log import layout as log_layout
from relay.spool.log.engine import CHECKPOINT_BYTES, LogSpool
from relay.spool.log.intake import LogIntake
from relay.spool.log.writer import SEGMENT_BYTES
from relay.spool.maildir import layout as maildir_layout
from relay.spool.maildir.engine import MaildirSpool
from relay.spool.maildir.intake import MaildirIntake
from relay.spool.message.message_file import HEADER_BYTES
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
REPORT = replace(ENVELOPE, reverse_path="", recipients=("list-owner@example.org",), user=None)
CONTENT = b"Received: by us\r\nSubject: minutes\r\n\r\n.dots\r\n\x00\xff, and no end of line"
RELAYED, BOUNCED, EXPIRED, DELETED = Status.RELAYED, Status.BOUNCED, Status.EXPIRED, Status.DELETED
TOLD = Status.SUCCESS
EVERY = dict.fromkeys(range(3), RELAYED)
DEFERRED_NS = START_WALL_NS + 300 * SECOND_NS
"""The next attempt of deferred messages."""


def content_of(disk: Disk, path: str) -> bytes:
    with opened(disk, disk.open_read(path)) as fd:
        return disk.pread(fd, disk.size(fd), 0)


class MaildirOnModel:
    """The maildir with its root on any disk, as the crash suite knows it."""

    def __init__(self, root: str) -> None:
        self.root = root

    def spool(self, disk: Disk, clock: FakeClock, on_corrupt: Callable[[str, str], None]) -> MaildirSpool:
        """Own the queue on a view of the disk; claim nothing yet."""
        return MaildirSpool(self.root, disk, clock, on_corrupt)

    def listener(self, disk: Disk, clock: FakeClock, chance: Callable[[int], bytes]) -> Intake:
        return MaildirIntake(self.root, disk, clock, chance)

    def prepare(self, disk: Disk) -> None:
        maildir_layout.prepare(self.root, disk)

    def vary(self, rng: random.Random) -> None:
        """Draw the engine's free parameters for the rest of the process: a maildir has none."""

    def drafts(self, disk: Disk) -> list[str]:
        """Return the names of drafts that were never accepted and still exist."""
        return disk.names(f"{self.root}/tmp")

    def remains(self, disk: Disk) -> list[str]:
        folders = [f"{self.root}/{name}" for name in ("tmp", "new", "hold", "corrupt", "notes")]
        folders += [f"{self.root}/cur/{name}" for name in disk.names(f"{self.root}/cur")]
        return [f"{folder}/{name}" for folder in folders for name in disk.names(folder)]

    def octet_of(self, disk: Disk, queue_id: QueueId) -> tuple[str, int]:
        """Return the file that has the content of a message, and the offset of an octet of it."""
        path = maildir_layout.MaildirLayout(self.root).queued(queue_id)
        return path, (HEADER_BYTES + len(content_of(disk, path))) // 2


MAILDIR = MaildirOnModel("/var/spool")


LENGTHS = ((SEGMENT_BYTES, CHECKPOINT_BYTES), (2000, 1500), (600, 1), (1, 1))
"""Pairs of a segment's length and the octets written before a checkpoint."""


class LogOnModel:
    """The log, likewise."""

    def __init__(self, root: str, lengths: tuple[int, int] = LENGTHS[0]) -> None:
        self.root = root
        self.segment_bytes, self.checkpoint_bytes = lengths

    def spool(self, disk: Disk, clock: FakeClock, on_corrupt: Callable[[str, str], None]) -> LogSpool:
        return LogSpool(
            self.root,
            disk,
            clock,
            on_corrupt,
            segment_bytes=self.segment_bytes,
            checkpoint_bytes=self.checkpoint_bytes,
        )

    def listener(self, disk: Disk, clock: FakeClock, chance: Callable[[int], bytes]) -> Intake:
        return LogIntake(self.root, disk, clock, chance, segment_bytes=self.segment_bytes)

    def prepare(self, disk: Disk) -> None:
        log_layout.prepare(self.root, disk)

    def vary(self, rng: random.Random) -> None:
        self.segment_bytes, self.checkpoint_bytes = rng.choice(LENGTHS)

    def drafts(self, disk: Disk) -> list[str]:
        return [name for name in disk.names(f"{self.root}/long") if name.endswith(log_layout.PART)]

    def remains(self, disk: Disk) -> list[str]:
        return [
            f"{folder}/{name}"
            for folder in ("long", "corrupt")
            for name in disk.names(f"{self.root}/{folder}")
        ]

    def octet_of(self, disk: Disk, queue_id: QueueId) -> tuple[str, int]:
        path = log_layout.LogLayout(self.root).content(queue_id)
        if disk.inode(path) is not None:
            return path, len(content_of(disk, path)) // 2
        for name in filter(log_layout.NAMES.match, disk.names(f"{self.root}/log")):
            path = f"{self.root}/log/{name}"
            # A segment holds the message's id, then its header, then its content.
            at = content_of(disk, path).find(queue_id.encode() + b"relay-message")
            if at >= 0:
                return path, at + len(queue_id) + 80
        raise AssertionError(f"{queue_id} is nowhere")


LOG = LogOnModel("/var/log-spool")
OnModel = MaildirOnModel | LogOnModel


class Engine(abc.ABC):
    """One spool on one disk. Each call of `start` or `intake` makes another process, with its own view."""

    def __init__(self, root: str, disk: Disk) -> None:
        self.root = root
        self.disk = disk
        self.clock = FakeClock()
        self.told: list[tuple[str, str]] = []
        """Corrupt messages reported to the sender: name and fault."""
        self._intakes = 0

    @abc.abstractmethod
    def start(self) -> Spool:
        """Start a sender that has claimed nothing yet."""

    @abc.abstractmethod
    def intake(self) -> Intake: ...

    @abc.abstractmethod
    def damage(self, queue_id: QueueId) -> None: ...

    def view(self) -> Disk:
        return self.disk.another() if isinstance(self.disk, ModelDisk) else self.disk

    def tell(self, name: str, why: str) -> None:
        self.told.append((name, why))

    def chance(self) -> Callable[[int], bytes]:
        self._intakes += 1
        return random.Random(self._intakes).randbytes


class OnDisk(Engine):
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


def on_the_model() -> OnDisk:
    return OnDisk(MAILDIR, ModelDisk())


def on_the_kernel(folder: Path) -> OnDisk:
    return OnDisk(MaildirOnModel(str(folder / "spool")), RealDisk())


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


def ended(*queue_ids: QueueId) -> list[Settlement]:
    """Return the settlements that relay all recipients of these messages, and end them."""
    return [Settlement(queue_id, ENVELOPE, EVERY, ends=True) for queue_id in queue_ids]


def bounced(queue_id: QueueId) -> Settlement:
    """Return the settlement that marks, reports and ends a message of which one recipient failed."""
    report = Report(report_id(queue_id), REPORT, b"Subject: sorry\r\n")
    return Settlement(queue_id, ENVELOPE, EVERY | {1: BOUNCED}, [note(1)], report, told=(1,), ends=True)


def report_of(spool: Spool, queue_id: QueueId, *, ends: bool = False) -> Settlement:
    owed = read(spool, queue_id).owed_report
    assert owed is not None
    report = Report(owed.report_id, REPORT, b"Subject: sorry\r\n")
    return Settlement(queue_id, ENVELOPE, report=report, told=owed.indices, ends=ends)


def warning_of(queue_id: QueueId) -> Settlement:
    report = Report(warning_id(queue_id), REPORT, b"Subject: late\r\n")
    return Settlement(queue_id, ENVELOPE, report=report, is_warned=True)


def fill(spool: Spool, intake: Intake) -> None:
    """Put in a message in each state, and close both spool and intake."""
    _, partly, held, long, told, warned = [
        accept(intake, content=content)
        for content in (CONTENT, CONTENT, b"", bytes(INLINE_BYTES + 1), CONTENT, CONTENT)
    ]
    claimed(spool)
    settle(
        spool,
        Settlement(partly, ENVELOPE, {0: RELAYED, 1: BOUNCED}, [note(1)], next_attempt_at_ns=DEFERRED_NS),
        Settlement(held, ENVELOPE, {0: BOUNCED}, [note(0)], is_held=True),
        Settlement(long, ENVELOPE, {2: DELETED}),
        Settlement(told, ENVELOPE, {0: BOUNCED, 1: BOUNCED}, [note(0), note(1)]),
    )
    settle(spool, report_of(spool, held), report_of(spool, told), warning_of(warned))
    # A failure that no report covers yet.
    settle(spool, Settlement(told, ENVELOPE, {2: BOUNCED}, [note(2)]))
    # Accepted but not claimed.
    accept(intake, content=b"Subject: new\r\n\r\n")
    intake.close()
    spool.close()


def again(engine: Engine, spool: Spool) -> tuple[Spool, list[Message]]:
    """Restart the sender. Return its spool and the messages that it claimed."""
    spool.close()
    spool = engine.start()
    return spool, claimed(spool)
