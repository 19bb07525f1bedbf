"""A listener and a sender on one spool, and a trace of what they were told and what they told others.

The sender settles as the real one does: first the statuses of recipients, then the report, once it may go.
For messages with an even number of recipients it does all in one settlement. Besides the disk, the oracle
(tests.engines.spool.oracle) knows only the trace.
"""

import copy
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from relay.clock import SECOND_NS
from relay.mail.dsn import NOTHING_ASKED, DsnRequest, Note
from relay.mail.envelope import Draft, Envelope, QueueId, is_notice
from relay.spool.disk.durable import Disk
from relay.spool.identity import warning_id
from relay.spool.interface import (
    Full,
    Message,
    Report,
    Settlement,
    Spool,
    SpoolError,
    Status,
    Unavailable,
)
from tests.engines.spool.engine import MAILDIR, OnModel
from tests.fakes.clock import FakeClock
from tests.fakes.disk import ModelDisk
from tests.fakes.platter import Platter

MOST = 100


class Violation(AssertionError):  # noqa: N818 - a promise, not a program, is at fault
    """A promise was broken."""


@dataclass(slots=True)
class Trace:
    """The events of a run, as clients and upstream saw them."""

    offered: dict[QueueId, tuple[Envelope, bytes]] = field(default_factory=dict)
    accepted: set[QueueId] = field(default_factory=set)
    """Messages that got 250, and reports whose settlement succeeded."""
    refused: set[QueueId] = field(default_factory=set)
    fates: dict[tuple[QueueId, int], tuple[Status, ...]] = field(default_factory=dict)
    """The outcomes of each recipient at the upstream or by decision, one for each attempt that ended it."""
    marked: dict[tuple[QueueId, int], Status] = field(default_factory=dict)
    """Durable status bytes."""
    called: dict[tuple[QueueId, int], Status] = field(default_factory=dict)
    """Status bytes that may be durable: their settlement has not returned."""
    finishing: set[QueueId] = field(default_factory=set)
    """Messages whose end was requested."""
    warned: set[QueueId] = field(default_factory=set)
    held: dict[QueueId, bool | None] = field(default_factory=dict)
    """None: the hold or release is in progress."""
    told_of: dict[QueueId, tuple[int, ...]] = field(default_factory=dict)
    """For each report, the recipients of its message that it tells of."""
    reports_wait: int = 0
    """The number of reports that may not go when they become owed, while recipients are left."""
    waits_after_a_crash: bool = False
    """After a crash, no report may go before its message ends."""
    excused: dict[tuple[QueueId, int], int] = field(default_factory=dict)
    """The number of attempts that a crash cut between the upstream's reply and its durable mark."""
    key: int = field(default=0, compare=False)
    """In a copy: a hash of it."""

    def crash(self) -> None:
        """Note the recipients that may be tried again: those in the one window for a duplicate."""
        self.called = {key: status for key, status in self.called.items() if key not in self.marked}
        if self.waits_after_a_crash:
            self.reports_wait = sys.maxsize
        for key, fates in self.fates.items():
            if key not in self.marked:
                self.excused[key] = len(fates)

    def copy(self) -> "Trace":
        copied = Trace(**{each.name: copy.copy(getattr(self, each.name)) for each in fields(self)})
        values = [getattr(copied, each.name) for each in fields(copied) if each.compare]
        whole = [value.items() if isinstance(value, dict) else value for value in values]
        copied.key = hash(tuple(each if isinstance(each, int) else frozenset(each) for each in whole))
        return copied


@dataclass(frozen=True, slots=True)
class Letter:
    """A message to hand over, and the fates of its recipients, attempt by attempt."""

    fates: tuple[Mapping[int, Status], ...]
    recipients: int = 1
    reverse_path: str = "list@example.org"
    content: bytes = b"Subject: minutes\r\n\r\nAll agreed.\r\n"
    spills: int = 0
    """How often the draft is written to disk before its content is complete."""
    dsn: DsnRequest = NOTHING_ASKED

    def envelope(self, arrival_at_ns: int) -> Envelope:
        addresses = tuple(f"r{number}@example.com" for number in range(self.recipients))
        return Envelope(
            self.reverse_path, addresses, arrival_at_ns, "local[127.0.0.1]", "mail", "ESMTP", dsn=self.dsn
        )


class Listener:
    """Hands messages over and records the answers."""

    def __init__(
        self, disk: Disk, clock: FakeClock, trace: Trace, seed: int = 0, engine: OnModel = MAILDIR
    ) -> None:
        self.disk = disk
        self.clock = clock
        self.trace = trace
        self.intake = engine.listener(disk, clock, random.Random(seed).randbytes)

    def offer(self, *letters: Letter) -> list[QueueId | None]:
        """Hand messages over as one batch; return the ids (None: refused), without failed drafts."""
        return self.accept([drafted for letter in letters if (drafted := self.begin(letter)) is not None])

    def begin(self, letter: Letter) -> tuple[Draft, Envelope] | None:
        """Take in the content of a message. Return None if the disk failed."""
        draft, envelope = self.intake.draft(), letter.envelope(self.clock.wall_ns())
        self.trace.offered[draft.queue_id] = (envelope, letter.content)
        step = len(letter.content) // (letter.spills + 1)
        try:
            for spill in range(letter.spills):
                draft.append(letter.content[spill * step : (spill + 1) * step])
                draft.spill()
        except SpoolError:
            self.trace.refused.add(draft.queue_id)
            return None
        draft.append(letter.content[letter.spills * step :])
        return draft, envelope

    def accept(self, drafts: Sequence[tuple[Draft, Envelope]]) -> list[QueueId | None]:
        answers: list[QueueId | None] = []
        for (draft, _), error in zip(drafts, self.intake.accept(drafts), strict=True):
            (self.trace.accepted if error is None else self.trace.refused).add(draft.queue_id)
            answers.append(draft.queue_id if error is None else None)
        return answers


class Sender:
    """Settles messages as the caller says."""

    def __init__(self, disk: Disk, clock: FakeClock, trace: Trace, engine: OnModel = MAILDIR) -> None:
        self.disk = disk
        self.clock = clock
        self.trace = trace
        self.queue: dict[QueueId, Message] = {}
        """The messages as last claimed or read."""
        self.on_full: Callable[[], None] | None = None
        """Called before a failed call is repeated. Without it, the failure is raised."""
        self.spool: Spool = engine.spool(disk, clock, no_corruption)

    def claim(self) -> list[QueueId]:
        claimed: list[QueueId] = []
        while page := self.spool.claim(MOST):
            for message in page:
                if message.queue_id in claimed or message.queue_id in self.queue:
                    raise Violation(f"{message.queue_id} is claimed twice")
                claimed.append(message.queue_id)
            self.queue |= {message.queue_id: message for message in page}
        return claimed

    def read(self, queue_id: QueueId) -> Message:
        (found,) = self.spool.read([queue_id])
        if isinstance(found, Unavailable) and self.on_full is not None:
            # The real sender tries again later.
            self.on_full()
            (found,) = self.spool.read([queue_id])
        if isinstance(found, SpoolError):
            raise found
        self.queue[queue_id] = found
        return found

    def end_what_is_done(self) -> None:
        """End the messages without recipients left, before anything is sent after a start."""
        done = [message for _, message in sorted(self.queue.items()) if not message.left]
        for message in done:
            for index, status in enumerate(message.statuses):
                # A start makes durable whatever it returns, whichever process wrote it.
                self.trace.marked.setdefault((message.queue_id, index), status)
        self._settle([self._ending(message) for message in done])

    def settle(self, fates: Mapping[QueueId, Mapping[int, Status]]) -> None:
        """Record the fates of recipients, and end the messages that have no recipient left."""
        first: list[Settlement] = []
        for queue_id, of_message in fates.items():
            message = self.read(queue_id)
            marks = {index: status for index, status in of_message.items() if index in message.left}
            for index, status in marks.items():
                self._upstream_says(queue_id, index, status)
            first.append(self._first(message, marks))
        self._settle(first)
        self.report_what_is_owed([queue_id for queue_id in fates if queue_id in self.queue])

    def settle_attempts(self, queue_ids: Sequence[QueueId], letters: Sequence[Letter]) -> None:
        """Settle messages attempt by attempt, as their letters say."""
        for attempt in range(max(len(letter.fates) for letter in letters)):
            pairs = zip(queue_ids, letters, strict=False)
            due = {q: letter.fates[attempt] for q, letter in pairs if attempt < len(letter.fates)}
            self.settle({queue_id: fates for queue_id, fates in due.items() if queue_id in self.queue})

    def _first(self, message: Message, marks: dict[int, Status]) -> Settlement:
        notes = tuple(self._note(index, status) for index, status in marks.items() if status.is_reported)
        after = message.after(marks, notes)
        is_joined = len(message.statuses) % 2 == 0 and not self.trace.reports_wait
        settlement = Settlement(message.queue_id, message.envelope, marks, notes)
        if after.left:
            settlement.next_attempt_at_ns = self.clock.wall_ns() + 300 * SECOND_NS
        if after.owed_report is None:
            settlement.ends = not after.left
        elif is_joined:
            self._report(settlement, after)
            settlement.ends = not after.left
        return settlement

    def report_what_is_owed(self, queue_ids: Sequence[QueueId]) -> None:
        """Send the owed reports that may go, and end the messages that have no recipient left."""
        asked: list[Settlement] = []
        for queue_id in queue_ids:
            message = self.read(queue_id)
            if message.left and message.owed_report is None:
                continue
            if message.left and self.trace.reports_wait:
                self.trace.reports_wait -= 1
            else:
                asked.append(self._ending(message))
        self._settle(asked)

    def _ending(self, message: Message) -> Settlement:
        settlement = Settlement(message.queue_id, message.envelope, ends=not message.left)
        self._report(settlement, message)
        return settlement

    def hold(self, *queue_ids: QueueId, release: bool = False) -> None:
        self.trace.held.update(dict.fromkeys(queue_ids))
        self._settle([Settlement(q, self.queue[q].envelope, is_held=not release) for q in queue_ids])
        self.trace.held.update(dict.fromkeys(queue_ids, not release))

    def warn(self, queue_id: QueueId) -> None:
        message = self.read(queue_id)
        own = warning_id(queue_id)
        warning = Envelope("", (message.envelope.reverse_path,), self.clock.wall_ns(), "local", "", "LOCAL")
        self.trace.offered.setdefault(own, (warning, b"Subject: late\r\n\r\n"))
        if own in self.trace.finishing and own not in self.queue:
            raise Violation(f"{queue_id}: its sender is warned a second time")
        report = Report(own, *self.trace.offered[own])
        self._settle([Settlement(queue_id, message.envelope, report=report, is_warned=True)])
        self.trace.warned.add(queue_id)

    def warn_after_a_start(self) -> None:
        """Relay the queued warnings, and warn again where the message is not marked as warned."""
        asked = sorted(q for q in self.queue if subject_of(q) is None and warning_id(q) in self.trace.offered)
        for own in sorted({warning_id(queue_id) for queue_id in asked} & self.queue.keys()):
            self.settle({own: dict.fromkeys(self.read(own).left, Status.RELAYED)})
        for queue_id in asked:
            if not self.read(queue_id).is_warned:
                self.warn(queue_id)

    def drain(self, reports: Status = Status.RELAYED) -> None:
        """Relay all messages until none is queued. `reports` is the fate of each report."""
        while self.queue or self.claim():
            for queue_id in sorted(self.queue):
                if self.read(queue_id).is_held:
                    self.hold(queue_id, release=True)
                left = self.read(queue_id).left
                fate = Status.RELAYED if self.trace.offered[queue_id][0].reverse_path else reports
                self.settle({queue_id: dict.fromkeys(left, fate)})

    def _settle(self, settlements: Sequence[Settlement]) -> None:
        waiting = list(settlements)
        while waiting:
            for each in waiting:
                self._asked(each)
            failures = self.spool.settle(waiting)
            for each, failure in zip(waiting, failures, strict=True):
                if failure is None:
                    self._done(each)
            waiting = [each for each, failure in zip(waiting, failures, strict=True) if failure is not None]
            for why in failures:
                if why is not None and (self.on_full is None or not isinstance(why, Full | Unavailable)):
                    raise why
            if waiting and self.on_full is not None:
                self.on_full()

    def _asked(self, each: Settlement) -> None:
        marks = {(each.queue_id, index): status for index, status in each.marks.items()}
        self.trace.called.update(marks)
        self.trace.finishing |= {each.queue_id} if each.ends else set()

    def _done(self, each: Settlement) -> None:
        queue_id, trace = each.queue_id, self.trace
        trace.marked.update({(queue_id, index): status for index, status in each.marks.items()})
        trace.accepted |= {each.report.queue_id} if each.report is not None else set()
        if each.ends:
            del self.queue[queue_id]

    def _upstream_says(self, queue_id: QueueId, index: int, status: Status) -> None:
        if (queue_id, index) in self.trace.marked:
            raise Violation(f"{queue_id}/{index} is tried again though it was marked durably")
        fates = self.trace.fates.get((queue_id, index), ())
        if len(fates) > self.trace.excused.get((queue_id, index), 0):
            raise Violation(
                f"{queue_id}/{index} is tried again though no crash came before its mark: {fates}"
            )
        self.trace.fates[queue_id, index] = (*fates, status)

    def _note(self, index: int, status: Status) -> Note:
        text = f"550 5.1.1 no {index}" if status.is_failure else f"250 2.0.0 yes {index}"
        reason = status.name.lower() if status.is_failure else "relayed"
        return Note(index, "5.1.1", reason, text, "isp", self.clock.wall_ns())

    def _report(self, settlement: Settlement, message: Message) -> None:
        if (owed := message.owed_report) is None:
            return
        queue_id, envelope = message.queue_id, message.envelope
        own, told = owed.report_id, owed.indices
        known = {note.index: note.diagnostic for note in message.notes}
        fault = self.disk.fault if isinstance(self.disk, ModelDisk) else None
        cannot_read = fault is not None and fault.forever
        failed = [index for index in told if message.statuses[index].is_failure]
        if (missing := [index for index in failed if index not in known]) and not cannot_read:
            raise Violation(f"{queue_id}: the reasons for {missing} are lost")
        lines = "".join(f"{envelope.recipients[index]}: {known.get(index)}\r\n" for index in told)
        content = b"Subject: not relayed\r\n\r\n" + lines.encode()
        if own in self.trace.finishing or own in self.queue:
            raise Violation(f"{queue_id} is reported a second time")
        # A repeated report, after a crash kept the first off the disk, may tell of more recipients.
        address = Envelope("", (envelope.reverse_path,), self.clock.wall_ns(), "local", "", "LOCAL")
        self.trace.offered[own], self.trace.told_of[own] = (address, content), told
        settlement.report, settlement.told = Report(own, address, content), told


@dataclass(slots=True)
class Snapshot:
    """One instant of a run: the platter and the trace."""

    platter: Platter
    trace: Trace
    step: str


class World:
    """A disk with a listener's and a sender's view of it."""

    def __init__(self, disk: ModelDisk, trace: Trace | None = None, engine: OnModel = MAILDIR) -> None:
        self.trace = trace or Trace()
        self.engine = engine
        self.clock = FakeClock()
        self.sender_disk, self.listener_disk = disk, disk.another()
        self.snapshots: list[Snapshot] = []
        self.failed_at = 0
        """Index of the snapshot right after the first failed call."""
        self._is_recording = False

    def record(self) -> None:
        """Keep a snapshot after each call from now on, and one before a call if the trace has changed."""
        self._is_recording = True
        for disk in (self.sender_disk, self.listener_disk):
            self._watch(disk)
        self.keep(self.sender_disk)

    def now(self) -> Snapshot:
        """Return this instant of a run that is not recorded."""
        steps = self.sender_disk.steps[-4:]
        return Snapshot(self.sender_disk.platter, self.trace.copy(), "; ".join(steps))

    def keep(self, disk: ModelDisk, *, if_told: bool = False) -> None:
        """Keep a snapshot of this instant. With `if_told`, only if the trace changed since the last one."""
        last = self.snapshots[-1].trace if self.snapshots else None
        trace = last if last is not None and last == self.trace else self.trace.copy()
        if trace is not last or not if_told:
            if not self.failed_at and self.sender_disk.has_failed:
                self.failed_at = len(self.snapshots)
            step = disk.steps[-1] if disk.steps else "start"
            self.snapshots.append(Snapshot(disk.platter.copy(), trace, step))

    def listener(self, seed: int = 0) -> Listener:
        return Listener(self.listener_disk, self.clock, self.trace, seed, self.engine)

    def another_listener(self, seed: int) -> Listener:
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
    """Raise Violation, because no crash leaves a corrupt message."""
    if "cannot be read now" in fault:
        return
    raise Violation(f"{name} is taken for corrupt: {fault}")


def subject_of(queue_id: QueueId) -> QueueId | None:
    """Return the id of the message that a report or warning is about; None for other messages."""
    return QueueId(queue_id[:16]) if is_notice(queue_id) else None


def prepared(*, is_started: bool = True, engine: OnModel = MAILDIR) -> ModelDisk:
    """Return a disk with an empty, durable spool that was started once, or an empty disk."""
    disk = ModelDisk()
    if not is_started:
        return disk
    spool = engine.spool(disk, FakeClock(), no_corruption)
    assert spool.claim(1) == []
    spool.close()
    return ModelDisk(disk.platter.after_cut(disk.platter.pending))
