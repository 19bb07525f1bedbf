"""The log engine for the suite, on the model disk or in a real folder."""

import random
from collections.abc import Callable

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import Disk
from relay.spool.interface import Intake
from relay.spool.log.engine import CHECKPOINT_BYTES, LogSpool
from relay.spool.log.intake import LogIntake
from relay.spool.log.layout import NAMES, PART, LogLayout, prepare
from relay.spool.log.writer import SEGMENT_BYTES
from tests.engines.spool.engine import content_of
from tests.fakes.clock import FakeClock

LENGTHS = ((SEGMENT_BYTES, CHECKPOINT_BYTES), (2000, 1500), (600, 1), (1, 1))
"""Pairs of a segment's length and the octets written before a checkpoint."""


class LogOnModel:
    """See tests.engines.spool.engine.OnModel."""

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

    def octet_of(self, disk: Disk, queue_id: QueueId) -> tuple[str, int]:
        path = LogLayout(self.root).content(queue_id)
        if disk.inode(path) is not None:
            return path, len(content_of(disk, path)) // 2
        for name in filter(NAMES.match, disk.names(f"{self.root}/log")):
            path = f"{self.root}/log/{name}"
            # A segment holds the message's id, then its header, then its content.
            at = content_of(disk, path).find(queue_id.encode() + b"relay-message")
            if at >= 0:
                return path, at + len(queue_id) + 80
        raise AssertionError(f"{queue_id} is nowhere")


LOG = LogOnModel("/var/log-spool")
