"""A log on a disk with room for so many bytes: nothing is lost, and what was called stays called."""

import contextlib
import errno
import random

import pytest

from relay.mail.envelope import QueueId
from relay.spool.interface import INLINE_BYTES, Absent, Spool, SpoolFull, Status
from relay.spool.log import segments
from relay.spool.log.engine import LogSpool
from relay.spool.log.intake import LogIntake
from relay.spool.log.layout import prepare
from tests.fakes.clock import FakeClock
from tests.fakes.disk import ModelDisk
from tests.fakes.platter import Platter, disk_error
from tests.unit.spool.engine import ENVELOPE, RELAYED, is_balanced, note, taken
from tests.unit.spool.recovering import recover

ROOT = "/var/spool"
LEVELS = 1024
MESSAGES = 12
SEGMENT_BYTES = 6000
MOST_BYTES = 320_000
"""More than the scenario ever needs."""
PLENTY = 1 << 40
SOME = 8


class Room:
    """How many bytes the files of one platter may have together."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.met = 0
        """How often it was not enough."""


class SmallDisk(ModelDisk):
    """A process's view of a disk that is full at some byte, in the middle of a write too."""

    def __init__(self, platter: Platter, room: Room) -> None:
        super().__init__(platter)
        self.room = room

    def another(self) -> "SmallDisk":
        return SmallDisk(self.platter, self.room)

    def write_at(self, fd: int, content: bytes, offset: int) -> None:
        fits = self._fitting(fd, content, offset)
        super().write_at(fd, fits, offset)
        self._end_full(content, fits)

    def write_all(self, fd: int, content: bytes) -> None:
        fits = self._fitting(fd, content, self.size(fd))
        super().write_all(fd, fits)
        self._end_full(content, fits)

    def _fitting(self, fd: int, content: bytes, offset: int) -> bytes:
        more = offset + len(content) - self.size(fd)
        free = max(0, self.room.limit - self.used())
        return content if more <= free else content[: max(0, len(content) - (more - free))]

    def _end_full(self, content: bytes, fits: bytes) -> None:
        if len(fits) < len(content):
            self.room.met += 1
            raise disk_error(errno.ENOSPC, "the small disk")

    def used(self) -> int:
        inodes = {inode for names in self.platter.names.values() for inode in names.values()}
        return sum(len(self.platter.contents[inode]) for inode in inodes if inode in self.platter.contents)


class Life:
    """One spool on a small disk, and what its users may expect of it."""

    def __init__(self, limit: int) -> None:
        self.room = Room(PLENTY)
        self._disk = SmallDisk(Platter(), self.room)
        self._clock = FakeClock()
        prepare(ROOT, self._disk)
        self.spool = LogSpool(ROOT, self._disk.another(), self._clock)
        recover(self.spool)
        # Its room would be given back at the first lack.
        self._disk.unlink(f"{ROOT}/reserve")
        self._chance = random.Random(limit)
        self._intake = LogIntake(ROOT, self._disk.another(), self._clock, self._chance.randbytes)
        self.room.limit = self._disk.used() + limit
        self.promised: set[QueueId] = set()
        self.refused: set[QueueId] = set()
        self.called: list[tuple[str, QueueId]] = []
        self.durable: list[tuple[str, QueueId]] = []
        """What was called when a commit returned."""
        self.queue: list[QueueId] = []

    def run(self) -> None:
        for number in range(MESSAGES):
            self.offer(number)
            self.take()
            for queue_id in self.queue[-2:]:
                self._say(number, queue_id)
            self.commit()

    def offer(self, number: int) -> None:
        draft = self._intake.draft()
        draft.append(b"x" * (INLINE_BYTES + 1 if number == 5 else 700 + 100 * number))
        (error,) = self._intake.accept([(draft, ENVELOPE)])
        assert error is None or error.errno == errno.ENOSPC
        (self.promised if error is None else self.refused).add(draft.queue_id)

    def take(self) -> None:
        with contextlib.suppress(SpoolFull):
            self.queue += taken(self.spool)

    def commit(self) -> None:
        with contextlib.suppress(SpoolFull):
            self.spool.commit()
            self.durable = list(self.called)
        self.check(self.spool, self.called)

    def _say(self, number: int, queue_id: QueueId) -> None:
        if ("hold", queue_id) in self.called:
            return
        if number % 3 == 1:
            self.spool.hold(queue_id)
            self.called.append(("hold", queue_id))
            return
        self.spool.note({queue_id: [note(0)]})
        self.spool.mark({queue_id: {0: Status.BOUNCED, 1: RELAYED, 2: RELAYED}})
        self.spool.finish([queue_id])
        self.queue.remove(queue_id)
        self.called.append(("end", queue_id))

    def check(self, spool: Spool, said: list[tuple[str, QueueId]], *, may_be_more: bool = False) -> None:
        """Compare what a spool has with what was promised and said; a kill may leave more of it."""
        ended = {queue_id for what, queue_id in said if what == "end"}
        may_have_ended = {queue_id for what, queue_id in self.called if what == "end"} - ended
        for queue_id in sorted(self.promised.intersection(self.queue) | ended | may_have_ended):
            try:
                loaded = spool.load(queue_id)
            except Absent:
                assert queue_id in ended or (may_be_more and queue_id in may_have_ended)
                continue
            except SpoolFull:
                continue
            assert queue_id not in ended
            assert loaded.is_held or ("hold", queue_id) not in said
        assert is_balanced(spool.totals())

    def killed(self) -> "LogSpool":
        """Return a start on what a kill would leave now, where there is room again."""
        image = self._disk.after_kill()
        spool = LogSpool(ROOT, image, self._clock)
        recovery = recover(spool)
        assert (recovery.corrupt, recovery.missing_recipients) == (0, 0)
        there = {entry.queue_id for entry in recovery.entries}
        gone = {queue_id for what, queue_id in self.called if what == "end"}
        assert self.promised - gone <= there <= self.promised
        return spool


@pytest.mark.parametrize(
    "step", [pytest.param(SOME, id="some"), pytest.param(1, id="all", marks=pytest.mark.crash)]
)
def test_a_disk_full_at_any_byte_loses_nothing(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", SEGMENT_BYTES)
    met = 0
    for level in range(0, LEVELS, step):
        # Finer where there is little: one of the messages is larger than all others.
        life = Life(MOST_BYTES * level**2 // LEVELS**2)
        life.run()
        met += life.room.met
        life.check(life.killed(), life.durable, may_be_more=True)

        life.room.limit = PLENTY
        life.take()
        life.commit()
        assert life.durable == life.called
        life.offer(MESSAGES)
        life.take()
        assert life.promised - {q for what, q in life.called if what == "end"} == set(life.queue)
        life.check(life.killed(), life.called)
    assert met > LEVELS // step
