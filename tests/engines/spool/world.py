"""A listener and a sender on one disk, and a trace of what they were told and told others.

They call the spool as the service room does: notes, status bytes, report, removal, in
this order for each batch of settled messages; and commit each call, so that each may be
the last one that is durable (tests.unit.sender.test_groups has whole groups).  The trace
is the only thing that the judge (tests.engines.spool.oracle) knows besides the disk.
"""

import random
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from relay.clock import SECOND_NS
from relay.mail.draft import Draft
from relay.mail.dsn import NOTHING_ASKED, DsnRequest
from relay.mail.envelope import Envelope, QueueId
from relay.spool.identity import subject_of, warning_id
from relay.spool.interface import DEFERRED, Message, Note, SpoolFull, Status
from tests.engines.spool.engine import OnModel
from tests.engines.spool.maildir_engine import MAILDIR
from tests.engines.spool.recovering import Recovered, recover
from tests.fakes.clock import FakeClock
from tests.fakes.disk import ModelDisk
from tests.fakes.platter import Platter

ROOT = MAILDIR.root
MOST = 100


class Violation(AssertionError):  # noqa: N818 - what it is called
    """A promise was broken."""


@dataclass(slots=True)
class Trace:
    """What happened, as those outside remember it."""

    offered: dict[QueueId, tuple[Envelope, bytes]] = field(default_factory=dict)
    accepted: set[QueueId] = field(default_factory=set)
    """Got 250, or a report that was said to be queued."""
    refused: set[QueueId] = field(default_factory=set)
    fates: dict[tuple[QueueId, int], list[Status]] = field(default_factory=dict)
    """What became of each recipient at the upstream or by decision, each time anew."""
    noted: dict[tuple[QueueId, int], str] = field(default_factory=dict)
    """Durable reasons."""
    marked: dict[tuple[QueueId, int], Status] = field(default_factory=dict)
    """Durable status bytes."""
    called: dict[tuple[QueueId, int], Status] = field(default_factory=dict)
    """Status bytes that may be durable: their commit has not returned."""
    finishing: set[QueueId] = field(default_factory=set)
    """`finish` was called."""
    warned: set[QueueId] = field(default_factory=set)
    held: dict[QueueId, bool | None] = field(default_factory=dict)
    """None: between the two."""
    told_of: dict[QueueId, tuple[int, ...]] = field(default_factory=dict)
    """Of each report, the recipients of its message that it is about."""
    reports_wait: int = 0
    """So many reports may not go when they are owed, while recipients are left."""
    waits_after_a_crash: bool = False
    """After a crash no report may go before its message ends."""
    excused: dict[tuple[QueueId, int], int] = field(default_factory=dict)
    """How many attempts a crash cut between the upstream's reply and the durable mark of it."""

    def crash(self) -> None:
        """Note which recipients may be tried again: those in the one window for a duplicate."""
        self.called = {key: status for key, status in self.called.items() if key not in self.marked}
        if self.waits_after_a_crash:
            self.reports_wait = sys.maxsize
        for key, fates in self.fates.items():
            if key not in self.marked:
                self.excused[key] = len(fates)

    def key(self) -> int:
        """Return a number that is equal for equal traces, and by all odds for no others."""
        offered = [(q, e.reverse_path, e.recipients, c) for q, (e, c) in self.offered.items()]
        fates = [(key, *(status.name for status in fates)) for key, fates in self.fates.items()]
        marked = [(key, status.name) for key, status in self.marked.items()]
        called = [(key, status.name) for key, status in self.called.items()]
        sets = (called, self.accepted, self.refused, self.finishing, self.warned, offered, fates, marked)
        held = [(queue_id, str(is_held)) for queue_id, is_held in self.held.items()]
        reports = [("wait", self.reports_wait, self.waits_after_a_crash), *self.told_of.items()]
        rest = (self.noted.items(), held, self.excused.items(), reports)
        return hash(tuple(map(frozenset, (*sets, *rest))))

    def copy(self) -> "Trace":
        return Trace(
            dict(self.offered),
            set(self.accepted),
            set(self.refused),
            {key: list(fates) for key, fates in self.fates.items()},
            dict(self.noted),
            dict(self.marked),
            dict(self.called),
            set(self.finishing),
            set(self.warned),
            dict(self.held),
            dict(self.told_of),
            self.reports_wait,
            self.waits_after_a_crash,
            dict(self.excused),
        )


@dataclass(frozen=True, slots=True)
class Letter:
    """A message to be handed over, and what is to become of its recipients, attempt by attempt."""

    fates: tuple[Mapping[int, Status], ...]
    recipients: int = 1
    reverse_path: str = "list@example.org"
    content: bytes = b"Subject: minutes\r\n\r\nAll agreed.\r\n"
    spills: int = 0
    """How many times its content is written before it is whole."""
    dsn: DsnRequest = NOTHING_ASKED

    def envelope(self, arrival_at_ns: int) -> Envelope:
        addresses = tuple(f"r{number}@example.com" for number in range(self.recipients))
        return Envelope(
            self.reverse_path, addresses, arrival_at_ns, "local[127.0.0.1]", "mail", "ESMTP", dsn=self.dsn
        )


class Listener:
    """Hands messages over and remembers what was answered."""

    def __init__(
        self, disk: ModelDisk, clock: FakeClock, trace: Trace, seed: int = 0, engine: OnModel = MAILDIR
    ) -> None:
        self.disk = disk
        self.clock = clock
        self.trace = trace
        self.intake = engine.listener(disk, clock, random.Random(seed).randbytes)

    def offer(self, *letters: Letter) -> list[QueueId | None]:
        """Hand messages over as one batch; return the id of each that was accepted."""
        return self.accept([drafted for letter in letters if (drafted := self.begin(letter)) is not None])

    def begin(self, letter: Letter) -> tuple[Draft, Envelope] | None:
        """Take the content of a message in; None if the disk failed."""
        draft, envelope = self.intake.draft(), letter.envelope(self.clock.wall_ns())
        self.trace.offered[draft.queue_id] = (envelope, letter.content)
        step = len(letter.content) // (letter.spills + 1)
        try:
            for spill in range(letter.spills):
                draft.append(letter.content[spill * step : (spill + 1) * step])
                self.intake.spill(draft)
        except OSError:
            self.trace.refused.add(draft.queue_id)
            return None
        draft.append(letter.content[letter.spills * step :])
        return draft, envelope

    def accept(self, drafts: Sequence[tuple[Draft, Envelope]]) -> list[QueueId | None]:
        """End messages as one batch, and remember what was answered."""
        answers: list[QueueId | None] = []
        for (draft, _), error in zip(drafts, self.intake.accept(drafts), strict=True):
            if error is None:
                self.trace.accepted.add(draft.queue_id)
                answers.append(draft.queue_id)
            else:
                self.trace.refused.add(draft.queue_id)
                answers.append(None)
        return answers


class Sender:
    """Settles messages as it is told."""

    def __init__(self, disk: ModelDisk, clock: FakeClock, trace: Trace, engine: OnModel = MAILDIR) -> None:
        self.disk = disk
        self.clock = clock
        self.trace = trace
        self.queue: set[QueueId] = set()
        self._once_durable: list[Callable[[], None]] = []
        self._is_durable_at_once = engine.is_durable_at_once
        self.on_full: Callable[[], None] | None = None
        """Called before what did not fit is written again; without it, SpoolFull goes up."""
        self.spool = engine.sender(disk, clock, no_corruption)

    def recover(self) -> Recovered:
        recovery = recover(self.spool)
        self.queue = {entry.queue_id for entry in recovery.entries}
        return recovery

    def end_what_is_done(self, among: Collection[QueueId] | None = None) -> None:
        """End messages whose recipients are all done: before anything is sent after a start."""
        messages = [self.spool.load(queue_id) for queue_id in sorted(self.queue if among is None else among)]
        done = [message for message in messages if not message.left]
        for message in done:
            for index, status in enumerate(message.statuses):
                # What recovery returns is durable, whoever wrote it.
                self.trace.marked.setdefault((message.queue_id, index), status)
        self._end([message.queue_id for message in done])
        self.commit()

    def commit(self) -> None:
        """Make durable what was called, and remember that it is."""
        self.spool.commit()
        for remember in self._once_durable:
            remember()
        self._once_durable.clear()

    def _once(self, remember: Callable[[], None]) -> None:
        """Remember something once it is durable."""
        if self._is_durable_at_once:
            remember()
        else:
            self._once_durable.append(remember)

    def take(self) -> list[QueueId]:
        taken = [entry.queue_id for entry in self.spool.take(MOST)]
        self.queue |= set(taken)
        return taken

    def settle(self, fates: Mapping[QueueId, Mapping[int, Status]]) -> None:
        """Write down what became of recipients; end the messages that have none left."""
        marks: dict[QueueId, dict[int, Status]] = {}
        for queue_id, of_message in fates.items():
            left = self._load(queue_id).left
            marks[queue_id] = {index: status for index, status in of_message.items() if index in left}
            for index, status in marks[queue_id].items():
                self._upstream_says(queue_id, index, status)
        while True:
            try:
                self._write(marks)
                self.commit()
            except SpoolFull:
                if self.on_full is None:
                    raise
                self.on_full()
            else:
                return

    def _write(self, marks: Mapping[QueueId, Mapping[int, Status]]) -> None:
        notes = {
            queue_id: [self._note(index, s) for index, s in of_message.items() if s.is_reported]
            for queue_id, of_message in marks.items()
        }
        self.spool.note({queue_id: of_message for queue_id, of_message in notes.items() if of_message})
        noted = {(q, note.index): note.diagnostic or "" for q, its in notes.items() for note in its}
        self._once(lambda: self.trace.noted.update(noted))
        marked = {(q, index): status for q, its in marks.items() for index, status in its.items()}
        if not self._is_durable_at_once:
            self.trace.called.update(marked)
        self.spool.mark(marks)
        self._once(lambda: self.trace.marked.update(marked))
        for queue_id in marks:
            if left := self._left(queue_id):
                self.spool.keep_replies(queue_id, self._deferrals(left))
                self.spool.postpone(queue_id, self.clock.wall_ns() + 300 * SECOND_NS)
        self.report_what_is_owed([queue_id for queue_id in marks if self._left(queue_id)])
        self._end([queue_id for queue_id in marks if queue_id in self.queue and not self._left(queue_id)])

    def report_what_is_owed(self, queue_ids: Sequence[QueueId]) -> None:
        """Tell senders what they are owed while recipients are left, if the reports may go."""
        for queue_id in queue_ids:
            if self.spool.owed_report(queue_id) is None:
                continue
            if self.trace.reports_wait:
                self.trace.reports_wait -= 1
            else:
                self._report_meanwhile(queue_id)

    def _report_meanwhile(self, queue_id: QueueId) -> None:
        self.spool.mark_reported(queue_id, self._report(queue_id))

    def _load(self, queue_id: QueueId) -> Message:
        try:
            return self.spool.load(queue_id)
        except OSError:
            # A lack of ours: the service tries again later.
            if self.on_full is None:
                raise
            self.on_full()
            return self.spool.load(queue_id)

    def hold(self, *queue_ids: QueueId, release: bool = False) -> None:
        self.trace.held.update(dict.fromkeys(queue_ids))
        (self.spool.release if release else self.spool.hold)(*queue_ids)
        self.commit()
        self.trace.held.update(dict.fromkeys(queue_ids, not release))

    def warn(self, queue_id: QueueId) -> None:
        """Tell the sender of a message that it is late, and remember that."""
        message = self.spool.load(queue_id)
        own = warning_id(queue_id)
        warning = Envelope("", (message.envelope.reverse_path,), self.clock.wall_ns(), "local", "", "LOCAL")
        self.trace.offered.setdefault(own, (warning, b"Subject: late\r\n\r\n"))
        if self.spool.publish_report(own, *self.trace.offered[own]) and own in self.trace.finishing:
            raise Violation(f"{queue_id}: its sender is warned a second time")
        self._once(lambda: self.trace.accepted.add(own))
        self.spool.mark_warned(queue_id)
        self.commit()
        self.trace.warned.add(queue_id)

    def warn_after_a_start(self) -> None:
        """Relay the warnings that are queued, start anew, and warn of what is not marked as warned of."""
        asked = sorted(q for q in self.queue if subject_of(q) is None and warning_id(q) in self.trace.offered)
        for own in sorted({warning_id(queue_id) for queue_id in asked} & self.queue):
            self.settle({own: dict.fromkeys(self.spool.load(own).left, Status.RELAYED)})
        if asked:
            # What only memory knew of these warnings is gone when the next attempt is due, hours later.
            self.recover()
        for queue_id in asked:
            if not self.spool.load(queue_id).is_warned:
                self.warn(queue_id)

    def drain(self, reports: Status = Status.RELAYED) -> None:
        """Relay everything that is left until nothing is queued; say what becomes of reports."""
        while self.queue or self.take():
            for queue_id in sorted(self.queue):
                if self.spool.load(queue_id).is_held:
                    self.hold(queue_id, release=True)
                left = self.spool.load(queue_id).left
                fate = reports if self.trace.offered[queue_id][0].is_null else Status.RELAYED
                self.settle({queue_id: dict.fromkeys(left, fate)})

    def _left(self, queue_id: QueueId) -> tuple[int, ...]:
        """Return what is left to do, as the service knows it from its own memory."""
        count = len(self.trace.offered[queue_id][0].recipients)
        ended = self.trace.marked.keys() | self.trace.called.keys()
        return tuple(index for index in range(count) if (queue_id, index) not in ended)

    def _upstream_says(self, queue_id: QueueId, index: int, status: Status) -> None:
        if (queue_id, index) in self.trace.marked:
            raise Violation(f"{queue_id}/{index} is tried again though it was marked durably")
        fates = self.trace.fates.setdefault((queue_id, index), [])
        if len(fates) > self.trace.excused.get((queue_id, index), 0):
            raise Violation(
                f"{queue_id}/{index} is tried again though no crash came before its mark: {fates}"
            )
        fates.append(status)

    def _deferrals(self, left: Sequence[int]) -> tuple[Note, ...]:
        return tuple(Note(i, "4.2.0", DEFERRED, "450 later", "isp", self.clock.wall_ns()) for i in left)

    def _note(self, index: int, status: Status) -> Note:
        text = f"550 5.1.1 no {index}" if status.is_failure else f"250 2.0.0 yes {index}"
        reason = status.name.lower() if status.is_failure else "relayed"
        return Note(index, "5.1.1", reason, text, "isp", self.clock.wall_ns())

    def _end(self, queue_ids: Sequence[QueueId]) -> None:
        for queue_id in queue_ids:
            if self.spool.owed_report(queue_id) is not None:
                self._report(queue_id)
        self.trace.finishing |= set(queue_ids)
        self.spool.finish(queue_ids)
        self.queue -= set(queue_ids)

    def _report(self, queue_id: QueueId) -> tuple[int, ...]:
        """Queue the report that is owed; return whom it is about."""
        envelope, owed = self.trace.offered[queue_id][0], self.spool.owed_report(queue_id)
        if owed is None:
            raise Violation(f"{queue_id} owes a report no more")
        own, failed = owed.report_id, owed.indices
        marked = self.trace.marked.keys() | self.trace.called.keys()
        if missing := [index for index in failed if (queue_id, index) not in marked]:
            raise Violation(f"{queue_id}: {missing} are reported and not marked: a crash sends to them again")
        notes = self.spool.notes(queue_id)
        known = {note.index: note.diagnostic for note in notes if note.reason != DEFERRED}
        missing = [index for index in failed if index not in known]
        lines = "".join(f"{envelope.recipients[index]}: {known.get(index)}\r\n" for index in failed)
        content = b"Subject: not relayed\r\n\r\n" + lines.encode()
        report = Envelope("", (envelope.reverse_path,), self.clock.wall_ns(), "local", "", "LOCAL")
        if not {own} & (self.trace.accepted | self.trace.finishing | self.queue):
            # What a crash kept off the disk may tell of more recipients by now.
            self.trace.offered[own], self.trace.told_of[own] = (report, content), failed
        is_new = self.spool.publish_report(own, *self.trace.offered[own])
        cannot_read = self.disk.fault is not None and self.disk.fault.forever
        if is_new and missing and not cannot_read:
            raise Violation(f"{queue_id}: the reasons for {missing} are lost")
        if is_new and self.trace.offered[own][1] != content and not cannot_read:
            raise Violation(f"{queue_id}: another report than before")
        if is_new and own in self.trace.finishing:
            raise Violation(f"{queue_id} is reported a second time")
        self._once(lambda: self.trace.accepted.add(own))
        return failed


@dataclass(slots=True)
class Snapshot:
    """One instant of a run: the platter, and how much was known outside."""

    platter: Platter
    trace: Trace
    step: str
    told: int = 0
    """`key` of the trace."""


class World:
    """A disk with a listener's and a sender's view of it."""

    def __init__(self, disk: ModelDisk, trace: Trace | None = None, engine: OnModel = MAILDIR) -> None:
        self.trace = trace or Trace()
        self.engine = engine
        self.clock = FakeClock()
        self.sender_disk, self.listener_disk = disk, disk.another()
        self.snapshots: list[Snapshot] = []
        self.failed_at = 0
        """Which snapshot came right behind the first call that failed."""
        self._is_recording = False

    def record(self) -> None:
        """Keep every instant from now on: behind each call, and ahead of it if more was told."""
        self._is_recording = True
        for disk in (self.sender_disk, self.listener_disk):
            self._watch(disk)
        self.keep(self.sender_disk)

    def keep(self, disk: ModelDisk, *, if_told: bool = False) -> None:
        """Keep a snapshot of this instant; or only if something was told since the last one."""
        last = self.snapshots[-1] if self.snapshots else None
        is_told = last is None or self.trace != last.trace
        if is_told or not if_told:
            step = disk.steps[-1] if disk.steps else "start"
            if not self.failed_at and self.sender_disk.has_failed:
                self.failed_at = len(self.snapshots)
            if last is None or is_told:
                trace = self.trace.copy()
                self.snapshots.append(Snapshot(disk.platter.copy(), trace, step, trace.key()))
            else:
                self.snapshots.append(Snapshot(disk.platter.copy(), last.trace, step, last.told))

    def listener(self, seed: int = 0) -> Listener:
        return Listener(self.listener_disk, self.clock, self.trace, seed, self.engine)

    def another_listener(self, seed: int) -> Listener:
        """Return one that can die by itself."""
        disk = self.listener_disk.another()
        if self._is_recording:
            self._watch(disk)
        return Listener(disk, self.clock, self.trace, seed, self.engine)

    def sender(self) -> Sender:
        return Sender(self.sender_disk, self.clock, self.trace, self.engine)

    def _watch(self, disk: ModelDisk) -> None:
        disk.after = lambda: self.keep(disk)
        disk.before = lambda _step: self.keep(disk, if_told=True)


def no_corruption(name: str, fault: str) -> None:
    """Raise Violation: nothing that a crash leaves is corrupt."""
    if fault.startswith(("cannot be taken", "cannot be read, and is left")):
        return
    raise Violation(f"{name} is taken for corrupt: {fault}")
