"""The order in which the spool thread writes down what attempts came to, by crashes at every instant of it.

The crash suite of the spool (tests.unit.spool.world) writes in the same order with code of its own.
Here the sender's own spool thread does it, before the crash and after it; what it tells the judge
(tests.unit.spool.oracle) is what the spool was asked for, and only once that returned.
"""

import asyncio
import errno
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from relay.clock import SECOND_NS
from relay.mail.envelope import Envelope, QueueId
from relay.sender.reports import Reporter
from relay.sender.spool_thread import Ending, SpoolThread
from relay.spool.identity import subject_of, warning_id
from relay.spool.interface import Message, Note, SpoolFull, Status
from relay.spool.maildir.engine import MaildirSpool
from relay.spool.maildir.layout import Layout
from tests.fakes.clock import FakeClock
from tests.fakes.disk import Fault, ModelDisk
from tests.fakes.platter import Model
from tests.unit.spool import oracle
from tests.unit.spool.cuts import SCENARIOS, Judge, cuts, killed
from tests.unit.spool.engine import CONTENT, accept, note
from tests.unit.spool.maildir_engine import MAILDIR, MaildirOnModel
from tests.unit.spool.plays import play, prepared
from tests.unit.spool.world import Sender, Snapshot, Trace, Violation, World

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
        if subject is not None and queue_id != warning_id(subject):
            recipients = range(len(trace.offered[subject][0].recipients))
            if not all((subject, index) in trace.marked for index in recipients):
                raise Violation(f"{subject} is reported before it is marked: a crash sends it after that")
            if NO_REASON in content:
                raise Violation(f"{subject} is reported without its reasons")
        before = trace.offered.setdefault(queue_id, (envelope, content))
        is_new = super().publish_report(queue_id, envelope, content)
        if is_new and before != (envelope, content):
            raise Violation(f"{queue_id} is another report than before")
        if is_new and queue_id in trace.finishing:
            raise Violation(f"{queue_id} is told a second time")
        trace.accepted.add(queue_id)
        return is_new

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

    def __init__(self, trace: Trace) -> None:
        super().__init__(MAILDIR.root)
        self._trace = trace

    def sender(
        self, disk: ModelDisk, clock: FakeClock, on_corrupt: Callable[[str, str], None]
    ) -> MaildirSpool:
        return Telling(self.root, disk, clock, on_corrupt, self._trace)


class ThroughSpoolThread(Sender):
    """A sender that writes down what happened as the service does."""

    runner: asyncio.Runner

    def __init__(self, disk: ModelDisk, clock: FakeClock, trace: Trace) -> None:
        super().__init__(disk, clock, trace, TellingEngine(trace))
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
            endings.append(Ending(message, dict(of_message), notes, is_finished, at_ns))
        self._settle(endings)

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


class SpoolThreadWorld(World):
    """One whose senders write through a spool thread."""

    def sender(self) -> ThroughSpoolThread:
        return ThroughSpoolThread(self.sender_disk, self.clock, self.trace)


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


WRITTEN = ["a batch of two", "bounced", "bounced, then expired", "two bounced", "warned, then bounced"]


@pytest.mark.usefixtures("_at_desks")
@pytest.mark.parametrize("model", Model)
@pytest.mark.parametrize("name", WRITTEN)
def test_a_power_cut_while_endings_are_written_loses_nothing(name: str, model: Model) -> None:
    judge, rng = Judge(), random.Random(name)
    snapshots = _run_of(name, model)

    judge.judge(snapshots, lambda snapshot: cuts(snapshot, rng, CUTS_AT_ONCE), story=name)
    assert judge.judged > len(snapshots) / 2


@pytest.mark.usefixtures("_at_desks")
@pytest.mark.parametrize("name", WRITTEN)
def test_a_kill_while_endings_are_written_loses_nothing(name: str) -> None:
    Judge().judge(_run_of(name, Model.ANY_SUBSET), killed, story=name)


class Room:
    """A spool thread over a model disk, with one message of three recipients in the queue."""

    def __init__(self, on_full: Callable[[SpoolFull], None] = lambda full: pytest.fail(str(full))) -> None:
        self.disk, clock = prepared(), FakeClock()
        self.spool = MAILDIR.sender(self.disk, clock, lambda *_told: None)
        self.spool.recover()
        self.queue_id = accept(MAILDIR.listener(self.disk.another(), clock, random.Random(1).randbytes))
        assert [entry.queue_id for entry in self.spool.take(9)] == [self.queue_id]
        self.spool_thread = SpoolThread(self.spool, Reporter("relay.test"), on_full)

    async def loaded(self) -> Message:
        (message,) = await self.spool_thread.load([self.queue_id])
        assert isinstance(message, Message)
        return message


async def test_what_was_relayed_is_marked_without_room_for_reasons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a crash of who waits for room would send it again."""
    monkeypatch.setattr("relay.sender.spool_thread.RETRY_FULL_SECONDS", 0.0)
    found: list[tuple[Status, ...]] = []

    def on_full(_full: SpoolFull) -> None:
        found.append(room.spool.load(room.queue_id).statuses)
        room.disk.heal()

    room = Room(on_full)
    room.disk.fail(Fault(1, errno.ENOSPC, forever=True, kinds=frozenset({"write"}), path="/bounce/"))
    marks = {0: Status.RELAYED, 1: Status.BOUNCED}
    await room.spool_thread.settle(Ending(await room.loaded(), marks, (note(1),), is_finished=False))

    assert found == [(Status.RELAYED, Status.TODO, Status.TODO)]
    assert (await room.loaded()).statuses == (Status.RELAYED, Status.BOUNCED, Status.TODO)
    assert room.spool.notes(room.queue_id) == [note(1)]


async def test_a_short_message_is_sent_as_it_was_checked() -> None:
    room = Room()
    message = await room.loaded()
    _damage(room)

    assert [chunk async for chunk in room.spool_thread.content(message)] == [CONTENT]


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
