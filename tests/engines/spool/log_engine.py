"""A log for the suite: on the model of a disk, or in a folder of the kernel's."""

import random
from collections.abc import Callable
from pathlib import Path

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import Disk, RealDisk
from relay.spool.interface import Intake, Spool, Status
from relay.spool.log import segments, summary
from relay.spool.log.engine import LogSpool
from relay.spool.log.intake import LogIntake
from relay.spool.log.layout import LogLayout, draft_of, prepare, segment_of
from relay.spool.log.record import HEADER_BYTES, MESSAGES, Record, mark_of
from relay.spool.log.stream_reader import SegmentReader, pieces
from tests.engines.spool.engine import OneSpool
from tests.fakes.clock import FakeClock
from tests.fakes.disk import ModelDisk

LENGTHS = ((segments.SEGMENT_BYTES, summary.LET_BE), (600, 0), (1, 0))
"""Of segments, and how many may be without a summary."""


class LogEngine(OneSpool):
    def __init__(self, root: str, disk: Disk, first_intake: int = 0) -> None:
        """`first_intake` sets apart what engines of one disk draw for the names of their streams."""
        super().__init__(root, disk)
        self.layout = LogLayout(root)
        self._intakes = first_intake

    def start(self) -> LogSpool:
        return LogSpool(self.root, self.view(), self.clock, self.tell)

    def intake(self) -> Intake:
        view = self.view()
        prepare(self.root, view)
        return LogIntake(self.root, view, self.clock, self.chance())

    def damage(self, queue_id: QueueId) -> None:
        for path, at, size in self.places(queue_id):
            self.flip(path, at + size // 2)

    def segments(self) -> list[str]:
        return [f"{self.layout.log}/{name}" for name in self.names("log") if segment_of(name)]

    def places(self, queue_id: QueueId) -> list[tuple[str, int, int]]:
        """Return where a message's bytes are: in its own file, or in segments."""
        path = self.layout.content(queue_id)
        if (size := self.disk.length(path)) is not None:
            return [(path, 0, size)]
        return self.records(queue_id)

    def records(self, queue_id: QueueId) -> list[tuple[str, int, int]]:
        """Return where the records are that bring a message."""
        found = []
        for path in self.segments():
            name = segment_of(path.rpartition("/")[2])
            assert name is not None
            raw = self.content_of(path)
            found += [
                (path, each.at, each.record_bytes)
                for each in pieces(window_on(raw), mark_of(name), HEADER_BYTES)
                if isinstance(each, Record) and each.queue_id == queue_id and each.kind in MESSAGES
            ]
        return found


class LogOnModel:
    """See tests.engines.spool.engine.OnModel."""

    is_durable_at_once = False

    def __init__(self, root: str) -> None:
        self.root = root

    def sender(self, disk: ModelDisk, clock: FakeClock, on_corrupt: Callable[[str, str], None]) -> LogSpool:
        return LogSpool(self.root, disk, clock, on_corrupt)

    def listener(self, disk: ModelDisk, clock: FakeClock, chance: Callable[[int], bytes]) -> Intake:
        return LogIntake(self.root, disk, clock, chance)

    def vary(self, rng: random.Random) -> None:
        """Let segments be as long as ever, or so short that they end, are copied and go all the time."""
        segments.SEGMENT_BYTES, summary.LET_BE = rng.choice(LENGTHS)

    def drafts(self, disk: ModelDisk) -> list[str]:
        return [name for name in disk.names(f"{self.root}/long") if draft_of(name)]

    def remains(self, disk: ModelDisk) -> list[str]:
        folders = [f"{self.root}/{name}" for name in ("long", "corrupt")]
        return [f"{folder}/{name}" for folder in folders for name in disk.names(folder)]


def window_on(raw: bytes) -> SegmentReader:
    return SegmentReader(lambda size, offset: raw[offset : offset + size], len(raw))


LOG = LogOnModel("/var/spool")


def log_on_the_model() -> LogEngine:
    return LogEngine("/var/spool", ModelDisk())


def log_on_the_kernel(folder: Path) -> LogEngine:
    return LogEngine(str(folder / "spool"), RealDisk())


def model_of(engine: LogEngine) -> ModelDisk:
    assert isinstance(engine.disk, ModelDisk)
    return engine.disk


def drop_summaries(engine: LogEngine) -> None:
    """Let the next start read all that there is."""
    for name in engine.names("log"):
        if name.endswith(".sum"):
            engine.disk.unlink(f"{engine.layout.log}/{name}")
    engine.disk.sync_directory(engine.layout.log)


def end(spool: Spool, queue_id: QueueId) -> None:
    """Let a message end, whatever is left of it."""
    spool.mark({queue_id: dict.fromkeys(spool.load(queue_id).left, Status.RELAYED)})
    spool.finish([queue_id])
    spool.commit()
