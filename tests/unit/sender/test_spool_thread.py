"""The order in which the spool thread writes down what attempts came to, by crashes at every instant of it.

The crash suite of the spool (tests.engines.spool.world) writes in the same order with code of its own.
Here the sender's own spool thread does it, before the crash and after it; what it tells the judge
(tests.engines.spool.oracle) is what the spool was asked for, and only once that returned.
"""

import asyncio
import errno
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from relay.clock import SECOND_NS
from relay.mail.envelope import Envelope, QueueId
from relay.sender.reports import Reporter
from relay.sender.spool_thread import Change, Ending, SpoolThread
from relay.spool.identity import report_id, subject_of, warning_id
from relay.spool.interface import Message, Note, Spool, SpoolFull, Status
from relay.spool.maildir.engine import MaildirSpool
from relay.spool.maildir.layout import Layout
from tests.engines.spool import oracle
from tests.engines.spool.campaign import few_folders
from tests.engines.spool.committed_only import CommittedOnly
from tests.engines.spool.cuts import SCENARIOS, Judge, cut_on_each_model, killed
from tests.engines.spool.engine import CONTENT, accept, note
from tests.engines.spool.maildir_engine import MAILDIR, MaildirOnModel
from tests.engines.spool.plays import play, prepared
from tests.engines.spool.recovering import recover
from tests.engines.spool.world import Sender, Snapshot, Trace, Violation, World
from tests.fakes.clock import FakeClock
from tests.fakes.disk import Fault, ModelDisk
from tests.fakes.platter import Model
from tests.fakes.virtual_time import WorkersInTurn

CUTS_AT_ONCE = 6
NO_REASON = b"The reason is no longer known."


class Telling(MaildirSpool):
    """A maildir that notes in a trace what it made durable, and what it was asked for too early."""

    def __init__(
        self,
        root: str,
        disk: ModelDisk,
        clock: FakeClock,
        on_corrupt: Callable[[str, str], None],
        trace: Trace,
    ) -> None:
        super().__init__(root, disk, clock, on_corrupt)
        self._trace = trace

    def note(self, notes: Mapping[QueueId, Sequence[Note]]) -> None:
        super().note(notes)
        for queue_id, of_message in notes.items():
            self._trace.noted.update({(queue_id, note.index): note.diagnostic or "" for note in of_message})

    def mark(self, marks: Mapping[QueueId, Mapping[int, Status]]) -> None:
        super().mark(marks)
        for queue_id, of_message in marks.items():
            self._trace.marked.update({(queue_id, index): status for index, status in of_message.items()})

    def publish_report(self, queue_id: QueueId, envelope: Envelope, content: bytes) -> bool:
        trace, subject = self._trace, subject_of(queue_id)
        is_there = queue_id in trace.accepted | trace.finishing or queue_id in self._ledger.open
        if subject is not None and queue_id != warning_id(subject):
            addresses = enumerate(trace.offered[subject][0].recipients)
            failed = tuple(i for i, address in addresses if b"; %s\r\n" % address.encode() in content)
            if not failed or not all((subject, index) in trace.marked for index in failed):
                raise Violation(f"{subject} is reported before it is marked: a crash sends it after that")
            if NO_REASON in content:
                raise Violation(f"{subject} is reported without its reasons")
            if not is_there:
                # What a crash kept off the disk may tell of more recipients by now.
                trace.offered[queue_id], trace.told_of[queue_id] = (envelope, content), failed
        trace.offered.setdefault(queue_id, (envelope, content))
        is_new = super().publish_report(queue_id, envelope, content)
        if is_new and is_there:
            raise Violation(f"{queue_id} was there, and is queued anew")
        if is_new and queue_id in trace.finishing:
            raise Violation(f"{queue_id} is told a second time")
        trace.accepted.add(queue_id)
        return is_new

    def mark_reported(self, queue_id: QueueId, failed: Sequence[int]) -> None:
        told = {i for own, some in self._trace.told_of.items() if subject_of(own) == queue_id for i in some}
        if not told.issuperset(failed):
            raise Violation(f"{queue_id} is marked as reported before that is queued: a crash loses it")
        super().mark_reported(queue_id, failed)

    def mark_warned(self, queue_id: QueueId) -> None:
        if warning_id(queue_id) not in self._trace.accepted:
            raise Violation(f"{queue_id} is marked as warned of before that is queued: a crash loses it")
        super().mark_warned(queue_id)
        self._trace.warned.add(queue_id)

    def finish(self, queue_ids: Sequence[QueueId]) -> None:
        self._trace.finishing |= set(queue_ids)
        super().finish(queue_ids)


class TellingEngine(MaildirOnModel):
    """The maildir of one trace."""

    def __init__(self, trace: Trace, spool: type[Telling]) -> None:
        super().__init__(MAILDIR.root)
        self._trace = trace
        self._spool = spool

    def sender(
        self, disk: ModelDisk, clock: FakeClock, on_corrupt: Callable[[str, str], None]
    ) -> MaildirSpool:
        return self._spool(self.root, disk, clock, on_corrupt, self._trace)


class ThroughSpoolThread(Sender):
    """A sender that writes down what happened as the service does."""

    runner: asyncio.Runner

    def __init__(
        self,
        disk: ModelDisk,
        clock: FakeClock,
        trace: Trace,
        engine: type[Telling] = Telling,
        on_return: Callable[[Spool], None] = lambda _spool: None,
    ) -> None:
        """`on_return` is called with the spool whenever endings are said to be durable."""
        super().__init__(disk, clock, trace, TellingEngine(trace, engine))
        self._on_return = on_return
        self._spool_thread = SpoolThread(
            self.spool, Reporter("relay.test"), lambda full: pytest.fail(str(full))
        )

    def warn(self, queue_id: QueueId) -> None:
        message = self.spool.load(queue_id)
        delays = tuple(
            Note(i, "4.0.0", "bounced", "450 later", "isp", self.clock.wall_ns()) for i in message.left
        )
        warning = delays, self.clock.wall_ns() + 3600 * SECOND_NS
        self._settle([Ending(message, {}, (), is_finished=False, warning=warning)])
        # On return it is durable.
        self.trace.warned.add(queue_id)

    def _write(self, marks: Mapping[QueueId, Mapping[int, Status]]) -> None:
        endings = []
        for queue_id, of_message in marks.items():
            message = self.spool.load(queue_id)
            notes = tuple(
                self._note(index, status) for index, status in of_message.items() if status.is_failure
            )
            is_finished = set(message.left) == set(of_message)
            at_ns = None if is_finished else self.clock.wall_ns() + 300 * SECOND_NS
            replies = self._deferrals([index for index in message.left if index not in of_message])
            endings.append(Ending(message, dict(of_message), notes, is_finished, at_ns, replies=replies))
        self._settle(endings)
        self.report_what_is_owed([ending.message.queue_id for ending in endings if not ending.is_finished])

    def _report_meanwhile(self, queue_id: QueueId) -> None:
        self._settle([Ending(self.spool.load(queue_id), {}, (), is_finished=False, reports=True)])

    def _end(self, queue_ids: Sequence[QueueId]) -> None:
        self._settle([Ending(self.spool.load(q), {}, (), is_finished=True) for q in queue_ids])

    def _settle(self, endings: Sequence[Ending]) -> None:
        async def together() -> None:
            await asyncio.gather(*map(self._spool_thread.settle, endings))

        self.runner.run(together())
        for ending in endings:
            # On return they are durable.
            queue_id = ending.message.queue_id
            self.trace.marked.update({(queue_id, i): status for i, status in ending.marks.items()})
        self.queue -= {ending.message.queue_id for ending in endings if ending.is_finished}
        self._on_return(self.spool)


class SpoolThreadWorld(World):
    """One whose senders write through a spool thread."""

    def sender(self) -> ThroughSpoolThread:
        return ThroughSpoolThread(self.sender_disk, self.clock, self.trace)


class TellingCommitted(Telling, CommittedOnly):
    """One of which nothing lasts but what was committed."""


class CommittedWorld(World):
    """One whose senders write groups, and of which the instants count at which the spool thread returned."""

    def sender(self) -> ThroughSpoolThread:
        return ThroughSpoolThread(
            self.sender_disk, self.clock, self.trace, TellingCommitted, self._keep_durable
        )

    def _keep_durable(self, spool: Spool) -> None:
        assert isinstance(spool, CommittedOnly)
        trace = self.trace.copy()
        self.snapshots.append(Snapshot(spool.durable.copy(), trace, "return", trace.key()))


@pytest.fixture
def _at_desks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Also who starts after the crash, of whom the judge asks the rest.
    monkeypatch.setattr(oracle, "World", SpoolThreadWorld)
    with asyncio.Runner() as runner:
        monkeypatch.setattr(ThroughSpoolThread, "runner", runner, raising=False)
        yield


def _run_of(name: str, model: Model) -> list[Snapshot]:
    letters, meanwhile = SCENARIOS[name]
    world = SpoolThreadWorld(prepared(model))
    world.record()
    play(world, *letters, meanwhile=meanwhile)
    return world.snapshots


WRITTEN = [
    "a batch of two",
    "bounced",
    "bounced, then expired",
    "bounced one by one",
    "bounced one by one, no report after a crash",
    "three bounced, no report after a crash",
    "bounced, the first report waits",
    "two bounced",
    "warned, then bounced",
]


QUICK = {"bounced", "a batch of two", "warned, then bounced"}
FULL, LONG = pytest.mark.full, pytest.mark.crash(least_s=60)
IN_FULL = {"two bounced", "bounced, the first report waits"}


@pytest.mark.usefixtures("_at_desks")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else FULL if name in IN_FULL else LONG)
        for name in WRITTEN
    ],
)
def test_a_power_cut_while_endings_are_written_loses_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_folders(monkeypatch)
    cut_on_each_model(name, _run_of, Judge(), CUTS_AT_ONCE)


@pytest.mark.usefixtures("_at_desks")
@pytest.mark.parametrize("name", WRITTEN)
def test_what_the_thread_returned_is_committed(name: str) -> None:
    """What a crash leaves of a spool that keeps only groups, whenever a call of the thread returned."""
    letters, meanwhile = SCENARIOS[name]
    world = CommittedWorld(prepared())
    play(world, *letters, meanwhile=meanwhile)
    judge = Judge()

    judge.judge(world.snapshots, killed, story=name)
    assert judge.judged >= len(letters)


class Room:
    """A spool thread over a model disk, with one message of three recipients in the queue."""

    def __init__(self, on_full: Callable[[SpoolFull], None] = lambda full: pytest.fail(str(full))) -> None:
        self.disk, clock = prepared(), FakeClock()
        self.spool = MaildirSpool(MAILDIR.root, self.disk, clock, lambda *_told: None)
        recover(self.spool)
        self.queue_id = accept(MAILDIR.listener(self.disk.another(), clock, random.Random(1).randbytes))
        assert [entry.queue_id for entry in self.spool.take(9)] == [self.queue_id]
        self.spool_thread = SpoolThread(self.spool, Reporter("relay.test"), on_full, WorkersInTurn())

    async def loaded(self) -> Message:
        (message,) = await self.spool_thread.load([self.queue_id])
        assert isinstance(message, Message)
        return message


@pytest.mark.parametrize("was_held", [False, True])
@pytest.mark.parametrize("changes", [(Change.HOLD,), (Change.HOLD, Change.RELEASE)])
async def test_a_change_without_room_does_not_come_true_later(
    changes: Sequence[Change], *, was_held: bool
) -> None:
    disk, clock = prepared(), FakeClock()
    spool = CommittedOnly(MAILDIR.root, disk, clock, lambda *_told: None)
    recover(spool)
    queue_id = accept(MAILDIR.listener(disk.another(), clock, random.Random(1).randbytes))
    spool.take(9)
    spool_thread = SpoolThread(
        spool, Reporter("relay.test"), lambda full: pytest.fail(str(full)), WorkersInTurn()
    )
    if was_held:
        await spool_thread.change(queue_id, Change.HOLD)

    spool.commits_without_room = 1
    asked = [spool_thread.change(queue_id, change) for change in changes]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(answer) for answer in answers] == [SpoolFull] * len(changes)
    await spool_thread.change(queue_id, Change.RETRY)

    (message,) = await spool_thread.load([queue_id])
    assert isinstance(message, Message)
    assert message.is_held is was_held
    spool_thread.close()
    (entry,) = recover(MAILDIR.sender(disk.another(), clock, lambda *_told: None)).entries
    assert entry.is_held is was_held


async def test_a_hold_that_could_not_be_synced_is_undone() -> None:
    """Its operator hears that there is no room; so the next start must not find it held."""
    room = Room()
    syncs = frozenset({"sync_directory"})
    room.disk.fail(Fault(1, errno.ENOSPC, forever=True, kinds=syncs, path="/hold"))
    with pytest.raises(SpoolFull):
        await room.spool_thread.change(room.queue_id, Change.HOLD)

    assert not (await room.loaded()).is_held


async def test_a_short_message_is_sent_as_it_was_checked() -> None:
    room = Room()
    message = await room.loaded()
    _damage(room)

    # What is sent (`relay.sender.delivery`) is this, and not read again.
    assert message.content == CONTENT


async def test_a_report_quotes_what_was_read_with_the_message() -> None:
    room = Room()
    message = await room.loaded()
    _damage(room)
    marks, notes = dict.fromkeys(range(3), Status.BOUNCED), tuple(map(note, range(3)))
    written = await room.spool_thread.settle(Ending(message, marks, notes, is_finished=True))

    assert written.report is not None
    report = room.spool.take(9)
    assert b"Subject: minutes" in (room.spool.load(report[0].queue_id).content or b"")


def _damage(room: Room) -> None:
    """Change an octet of a queued message's content."""
    path = Layout(MAILDIR.root).queued(room.queue_id)
    room.disk.poke(path, room.disk.peek(path).replace(b".dots", b".dotz"))


async def test_a_report_tells_of_what_is_owed_when_it_is_written() -> None:
    """Not when its message was read: another report, or another failure, may have come since."""
    room = Room()
    settle = room.spool_thread.settle
    await settle(Ending(await room.loaded(), {1: Status.BOUNCED}, (note(1),), is_finished=False))
    stale = await room.loaded()
    reporting = Ending(stale, {}, (), is_finished=False, reports=True)
    assert (await settle(reporting)).report == report_id(room.queue_id, 1)
    assert (await settle(reporting)).report is None

    rest = {0: Status.BOUNCED, 2: Status.EXPIRED}
    await settle(Ending(stale, rest, (note(0), note(2)), is_finished=False))
    assert (await settle(reporting)).report == report_id(room.queue_id)
    # Marked and reported, it only lacks its end.
    assert (await settle(Ending(stale, {}, (), is_finished=True))).report is None
    told = {entry.queue_id: room.spool.load(entry.queue_id).content or b"" for entry in room.spool.take(9)}
    assert {own: content.count(b"Action: failed") for own, content in told.items()} == {
        report_id(room.queue_id, 1): 1,
        report_id(room.queue_id): 2,
    }
