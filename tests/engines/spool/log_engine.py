"""The log engine for the suite, on the model disk or in a real folder."""

import random
from collections.abc import Callable
from pathlib import Path

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import Disk, RealDisk
from relay.spool.interface import Intake
from relay.spool.log.engine import CHECKPOINT_BYTES, LogSpool
from relay.spool.log.intake import LogIntake
from relay.spool.log.layout import NAMES, PART, LogLayout, prepare
from relay.spool.log.writer import SEGMENT_BYTES
from tests.engines.spool.engine import OneSpool
from tests.fakes.clock import FakeClock
from tests.fakes.disk import ModelDisk

LENGTHS = ((SEGMENT_BYTES, CHECKPOINT_BYTES), (2000, 1500), (600, 1), (1, 1))
"""Pairs of a segment's length and the octets written before a checkpoint."""


class LogEngine(OneSpool):
    def __init__(self, root: str, disk: Disk, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        super().__init__(root, disk)
        self.layout = LogLayout(root)
        self.segment_bytes = segment_bytes

    def start(self) -> LogSpool:
        return LogSpool(self.root, self.view(), self.clock, self.tell, segment_bytes=self.segment_bytes)

    def intake(self) -> Intake:
        view = self.view()
        prepare(self.root, view)
        return LogIntake(self.root, view, self.clock, self.chance(), segment_bytes=self.segment_bytes)

    def damage(self, queue_id: QueueId) -> None:
        path = self.layout.content(queue_id)
        if self.disk.inode(path) is not None:
            self.flip(path, len(self.content_of(path)) // 2)
            return
        for path in [f"{self.root}/log/{name}" for name in self.names("log") if NAMES.match(name)]:
            raw = self.content_of(path)
            # A segment holds the message's id, then its header, then its content.
            if (at := raw.find(queue_id.encode() + b"relay-message")) >= 0:
                self.flip(path, at + len(queue_id) + 80)
                return
        raise AssertionError(f"{queue_id} is nowhere")


class LogOnModel:
    """See tests.engines.spool.engine.OnModel."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.segment_bytes, self.checkpoint_bytes = LENGTHS[0]

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
        prepare(self.root, disk)

    def vary(self, rng: random.Random) -> None:
        self.segment_bytes, self.checkpoint_bytes = rng.choice(LENGTHS)

    def drafts(self, disk: Disk) -> list[str]:
        return [name for name in disk.names(f"{self.root}/long") if name.endswith(PART)]

    def remains(self, disk: Disk) -> list[str]:
        return [
            f"{folder}/{name}"
            for folder in ("long", "corrupt")
            for name in disk.names(f"{self.root}/{folder}")
        ]


LOG = LogOnModel("/var/log-spool")


def log_on_the_model() -> LogEngine:
    return LogEngine("/var/spool", ModelDisk())


def log_on_the_kernel(folder: Path) -> LogEngine:
    return LogEngine(str(folder / "spool"), RealDisk())
