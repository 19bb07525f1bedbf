"""What the spool thread calls is one group, told of once it is committed, and called once.

The spool here loses at a crash all that was not committed.
"""

import asyncio
import errno
import random
from collections.abc import Callable

import pytest

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.sender.reports import Reporter
from relay.sender.spool_thread import Change, Ending, SpoolThread, Written
from relay.spool.identity import report_id
from relay.spool.interface import DEFERRED, Absent, SpoolFull, Status, Totals
from relay.spool.maildir.engine import MaildirSpool
from tests.engines.spool.committed_only import CommittedOnly
from tests.engines.spool.engine import accept, note
from tests.engines.spool.maildir_engine import MAILDIR
from tests.engines.spool.plays import prepared
from tests.engines.spool.recovering import recover
from tests.fakes.clock import FakeClock
from tests.fakes.disk import Fault, ModelDisk
from tests.fakes.virtual_time import WorkersInTurn, pass_time


class Grouped:
    """A spool thread over a spool that keeps nothing but what was committed; two messages in the queue."""

    def __init__(self, on_full: Callable[[SpoolFull], None] = lambda full: pytest.fail(str(full))) -> None:
        self.disk, self.clock = prepared(), FakeClock()
        self.spool = CommittedOnly(MAILDIR.root, self.disk, self.clock, lambda *_told: None)
        recover(self.spool)
        intake = MAILDIR.listener(self.disk.another(), self.clock, random.Random(1).randbytes)
        self.queue_ids = [accept(intake), accept(intake)]
        self.spool.take(9)
        self.spool.commit()
        self.spool_thread = SpoolThread(self.spool, Reporter("relay.test"), on_full, WorkersInTurn())

    def after_a_crash(self) -> MaildirSpool:
        image = ModelDisk(self.spool.durable.copy())
        spool = MaildirSpool(MAILDIR.root, image, self.clock, lambda *told: pytest.fail(str(told)))
        recover(spool)
        return spool

    async def settle(self, *endings: Ending) -> list[Written]:
        return await asyncio.gather(*map(self.spool_thread.settle, endings))

    def endings(self) -> list[Ending]:
        """Return one that ends its message with a report, and one that defers a recipient of the other."""
        first, second = map(self.spool.load, self.queue_ids)
        fates = {0: Status.RELAYED, 1: Status.BOUNCED, 2: Status.RELAYED}
        later = self.clock.wall_ns() + SECOND_NS
        reply = note(1, "450 later", DEFERRED)
        return [
            Ending(first, fates, (note(1),), is_finished=True),
            Ending(second, {0: Status.RELAYED}, (), False, later, replies=(reply,)),
        ]

    def check(self, spool: MaildirSpool) -> None:
        """Look whether all that the endings say is there, once."""
        first, second = self.queue_ids
        with pytest.raises(Absent):
            spool.load(first)
        report = spool.load(report_id(first))
        assert (report.content or b"").count(b"Action: failed") == 1
        assert spool.load(second).left == (1, 2)
        assert [one.attempts for one in spool.notes(second)] == [1]
        assert spool.totals() == Totals(accepted=7, relayed=3, bounced=1, queued=3)


async def test_a_batch_of_endings_is_one_group() -> None:
    grouped = Grouped()
    before = grouped.spool.commits
    written = await grouped.settle(*grouped.endings())

    assert grouped.spool.commits == before + 1
    assert [each.report for each in written] == [report_id(grouped.queue_ids[0]), None]
    grouped.check(grouped.after_a_crash())


async def test_a_group_without_room_is_called_once() -> None:
    grouped = Grouped(lambda _full: None)
    lost = grouped.after_a_crash().totals()
    # Both wait for the first commit, so that nothing may be told before the third.
    grouped.spool.commits_without_room = 3
    waiting = asyncio.gather(*map(grouped.spool_thread.settle, grouped.endings()))
    while grouped.spool.commits_without_room:
        assert not waiting.done()
        assert grouped.after_a_crash().totals() == lost
        await pass_time(1)
    written = await waiting

    # The report was published by the first call, and is told of all the same.
    assert [each.report for each in written] == [report_id(grouped.queue_ids[0]), None]
    grouped.check(grouped.after_a_crash())


async def test_what_fails_in_a_batch_keeps_no_other_from_its_commit() -> None:
    grouped = Grouped()
    absent = grouped.spool.load(grouped.queue_ids[0])._replace(queue_id=QueueId("0" * 16))
    ended = Ending(absent, {0: Status.RELAYED}, (), is_finished=False)
    *done, failed = await asyncio.gather(
        *map(grouped.spool_thread.settle, [*grouped.endings(), ended]), return_exceptions=True
    )

    assert isinstance(failed, Absent)
    assert all(isinstance(each, Written) for each in done)
    grouped.check(grouped.after_a_crash())


async def test_what_was_relayed_is_committed_without_room_for_reasons() -> None:
    found: list[tuple[Status, ...]] = []

    def on_full(_full: SpoolFull) -> None:
        found.append(grouped.after_a_crash().load(grouped.queue_ids[0]).statuses)
        grouped.disk.heal()

    grouped = Grouped(on_full)
    grouped.disk.fail(Fault(1, errno.ENOSPC, forever=True, kinds=frozenset({"write"}), path="/bounce/"))
    await grouped.settle(grouped.endings()[0])

    assert found == [(Status.RELAYED, Status.TODO, Status.RELAYED)]


async def test_changes_are_committed_before_they_return() -> None:
    grouped = Grouped()
    for change, is_held in ((Change.HOLD, True), (Change.RELEASE, False)):
        before = grouped.spool.commits
        await asyncio.gather(*(grouped.spool_thread.change(q, change) for q in grouped.queue_ids))
        found = grouped.after_a_crash()
        assert [found.load(queue_id).is_held for queue_id in grouped.queue_ids] == [is_held] * 2
        assert grouped.spool.commits == before + 1


async def test_a_stop_commits_what_found_no_room_before() -> None:
    full = asyncio.Event()
    grouped = Grouped(lambda _full: full.set())
    grouped.spool.commits_without_room = 1
    waiting = asyncio.gather(*map(grouped.spool_thread.settle, grouped.endings()))
    await full.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    grouped.spool_thread.close()

    grouped.check(grouped.after_a_crash())
