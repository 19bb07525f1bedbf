"""A listener and a sender on one disk, and a trace of what they were told and told others.

They call the spool as the service room does: notes, status bytes, report, removal, in
this order for each batch of settled messages.  The trace is the only thing that the
judge (tests.spool.oracle) knows besides the disk.
"""

import errno
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from relay.clock import SECOND_NS
from relay.envelope import Envelope, QueueId
from relay.spool.identity import report_id, warning_id
from relay.spool.intake import MaildirIntake
from relay.spool.interface import Note, Recovery, SpoolFault, SpoolFull, Status
from relay.spool.maildir import MaildirSpool
from tests.fakes.clock import FakeClock
from tests.fakes.disk import ModelDisk
from tests.fakes.platter import Platter, Renames

ROOT = "/var/spool"
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
    finishing: set[QueueId] = field(default_factory=set)
    """`finish` was called."""
    warned: set[QueueId] = field(default_factory=set)
    held: dict[QueueId, bool | None] = field(default_factory=dict)
    """None: between the two."""

    def copy(self) -> "Trace":
        return Trace(
            dict(self.offered),
            set(self.accepted),
            set(self.refused),
            {key: list(fates) for key, fates in self.fates.items()},
            dict(self.noted),
            dict(self.marked),
            set(self.finishing),
            set(self.warned),
            dict(self.held),
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

    def envelope(self, arrival_at_ns: int) -> Envelope:
        addresses = tuple(f"r{number}@example.com" for number in range(self.recipients))
        return Envelope(self.reverse_path, addresses, arrival_at_ns, "local[127.0.0.1]", "mail", "ESMTP")


class Listener:
    """Hands messages over and remembers what was answered."""

    def __init__(self, disk: ModelDisk, clock: FakeClock, trace: Trace, seed: int = 0) -> None:
        self.disk = disk
        self.clock = clock
        self.trace = trace
        self.intake = MaildirIntake(ROOT, disk, clock, random.Random(seed).randbytes)

    def offer(self, *letters: Letter) -> list[QueueId | None]:
        """Hand messages over as one batch; return the id of each that was accepted."""
        drafts = []
        for letter in letters:
            draft, envelope = self.intake.draft(), letter.envelope(self.clock.wall_ns())
            self.trace.offered[draft.queue_id] = (envelope, letter.content)
            step = len(letter.content) // (letter.spills + 1)
            try:
                for spill in range(letter.spills):
                    draft.append(letter.content[spill * step : (spill + 1) * step])
                    self.intake.spill(draft)
            except OSError:
                self.trace.refused.add(draft.queue_id)
                continue
            draft.append(letter.content[letter.spills * step :])
            drafts.append((draft, envelope))
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

    def __init__(self, disk: ModelDisk, clock: FakeClock, trace: Trace) -> None:
        self.disk = disk
        self.clock = clock
        self.trace = trace
        self.queue: set[QueueId] = set()
        self.on_full: Callable[[], None] | None = None
        """Called before what did not fit is written again; without it, SpoolFull goes up."""
        self.spool = MaildirSpool(ROOT, disk, clock, _corrupt)

    def recover(self) -> Recovery:
        recovery = self.spool.recover()
        self.queue = {entry.queue_id for entry in recovery.entries}
        return recovery

    def end_what_is_done(self) -> None:
        """End messages whose recipients are all done: before anything is sent after a start."""
        self._end([queue_id for queue_id in sorted(self.queue) if not self.spool.load(queue_id).left])

    def take(self) -> list[QueueId]:
        taken = [entry.queue_id for entry in self.spool.take(MOST)]
        self.queue |= set(taken)
        return taken

    def settle(self, fates: Mapping[QueueId, Mapping[int, Status]]) -> None:
        """Write down what became of recipients; end the messages that have none left."""
        marks: dict[QueueId, dict[int, Status]] = {}
        for queue_id, of_message in fates.items():
            left = self.spool.load(queue_id).left
            marks[queue_id] = {index: status for index, status in of_message.items() if index in left}
            for index, status in marks[queue_id].items():
                self._upstream_says(queue_id, index, status)
        while True:
            try:
                self._write(marks)
            except SpoolFull:
                if self.on_full is None:
                    raise
                self.on_full()
            else:
                return

    def _write(self, marks: Mapping[QueueId, Mapping[int, Status]]) -> None:
        notes = {
            queue_id: [self._note(index, s) for index, s in of_message.items() if s.is_failure]
            for queue_id, of_message in marks.items()
        }
        self.spool.note({queue_id: of_message for queue_id, of_message in notes.items() if of_message})
        for queue_id, written in notes.items():
            self.trace.noted.update({(queue_id, note.index): note.diagnostic or "" for note in written})
        self.spool.mark(marks)
        for queue_id, of_message in marks.items():
            self.trace.marked.update({(queue_id, index): status for index, status in of_message.items()})
        for queue_id in marks:
            if self._left(queue_id):
                self.spool.postpone(queue_id, self.clock.wall_ns() + 300 * SECOND_NS)
        self._end([queue_id for queue_id in marks if queue_id in self.queue and not self._left(queue_id)])

    def hold(self, queue_id: QueueId, *, release: bool = False) -> None:
        self.trace.held[queue_id] = None
        (self.spool.release if release else self.spool.hold)(queue_id)
        self.trace.held[queue_id] = not release

    def warn(self, queue_id: QueueId) -> None:
        """Tell the sender of a message that it is late, and remember that."""
        message = self.spool.load(queue_id)
        own = warning_id(queue_id)
        warning = Envelope("", (message.envelope.reverse_path,), self.clock.wall_ns(), "local", "", "LOCAL")
        self.trace.offered.setdefault(own, (warning, b"Subject: late\r\n\r\n"))
        self.spool.publish_report(own, *self.trace.offered[own])
        self.trace.accepted.add(own)
        self.spool.mark_warned(queue_id)
        self.trace.warned.add(queue_id)

    def drain(self) -> None:
        """Relay everything that is left, reports too, until nothing is queued."""
        while self.queue or self.take():
            for queue_id in sorted(self.queue):
                if self.spool.load(queue_id).is_held:
                    self.hold(queue_id, release=True)
                left = self.spool.load(queue_id).left
                self.settle({queue_id: dict.fromkeys(left, Status.RELAYED)})

    def _left(self, queue_id: QueueId) -> tuple[int, ...]:
        """Return what is left to do, as the service knows it from its own memory."""
        count = len(self.trace.offered[queue_id][0].recipients)
        return tuple(index for index in range(count) if (queue_id, index) not in self.trace.marked)

    def _upstream_says(self, queue_id: QueueId, index: int, status: Status) -> None:
        if (queue_id, index) in self.trace.marked:
            raise Violation(f"{queue_id}/{index} is tried again though it was marked durably")
        self.trace.fates.setdefault((queue_id, index), []).append(status)

    def _note(self, index: int, status: Status) -> Note:
        text = f"550 5.1.1 no {index}"
        return Note(index, "5.1.1", status.name.lower(), text, "isp", self.clock.wall_ns())

    def _end(self, queue_ids: Sequence[QueueId]) -> None:
        for queue_id in queue_ids:
            envelope, _ = self.trace.offered[queue_id]
            statuses = [self.trace.marked[queue_id, index] for index in range(len(envelope.recipients))]
            failed = [index for index, status in enumerate(statuses) if status.is_failure]
            if failed and not envelope.is_null:
                self._report(queue_id, envelope, failed)
        self.trace.finishing |= set(queue_ids)
        self.spool.finish(queue_ids)
        self.queue -= set(queue_ids)

    def _report(self, queue_id: QueueId, envelope: Envelope, failed: Sequence[int]) -> None:
        known = {note.index: note.diagnostic for note in self.spool.notes(queue_id)}
        missing = [index for index in failed if index not in known]
        lines = "".join(f"{envelope.recipients[index]}: {known.get(index)}\r\n" for index in failed)
        content = b"Subject: not relayed\r\n\r\n" + lines.encode()
        own, address = report_id(queue_id), envelope.reverse_path
        report = Envelope("", (address,), self.clock.wall_ns(), "local", "", "LOCAL")
        self.trace.offered.setdefault(own, (report, content))
        try:
            is_new = self.spool.publish_report(own, *self.trace.offered[own])
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise SpoolFull("report") from error
            raise SpoolFault("report") from error
        if is_new and missing:
            raise Violation(f"{queue_id}: the reasons for {missing} are lost")
        if is_new and self.trace.offered[own][1] != content:
            raise Violation(f"{queue_id}: another report than before")
        if is_new and own in self.trace.finishing:
            raise Violation(f"{queue_id} is reported a second time")
        self.trace.accepted.add(own)


@dataclass(slots=True)
class Snapshot:
    """One instant of a run: the platter, and how much was known outside."""

    platter: Platter
    trace: Trace
    step: str


class World:
    """A disk with a listener's and a sender's view of it."""

    def __init__(self, disk: ModelDisk, trace: Trace | None = None) -> None:
        self.trace = trace or Trace()
        self.clock = FakeClock()
        self.sender_disk, self.listener_disk = disk, disk.another()
        self.snapshots: list[Snapshot] = []

    def record(self) -> None:
        """Keep every instant from now on: behind each call, and ahead of it if more was told."""
        for disk in (self.sender_disk, self.listener_disk):
            disk.after = lambda disk=disk: self.keep(disk)
            disk.before = lambda _step, disk=disk: self.keep(disk, if_told=True)
        self.keep(self.sender_disk)

    def keep(self, disk: ModelDisk, *, if_told: bool = False) -> None:
        """Keep a snapshot of this instant; or only if something was told since the last one."""
        if not if_told or self.trace != self.snapshots[-1].trace:
            step = disk.steps[-1] if disk.steps else "start"
            self.snapshots.append(Snapshot(disk.platter.copy(), self.trace.copy(), step))

    def listener(self, seed: int = 0) -> Listener:
        return Listener(self.listener_disk, self.clock, self.trace, seed)

    def sender(self) -> Sender:
        return Sender(self.sender_disk, self.clock, self.trace)


def prepared(renames: Renames = Renames.WHOLE, *, is_started: bool = True) -> ModelDisk:
    """Return a disk with an empty spool that was started once and is durable, or without one."""
    disk = ModelDisk(Platter(renames))
    if not is_started:
        disk.make_directory(ROOT.rpartition("/")[0])
        return disk
    spool = MaildirSpool(ROOT, disk, FakeClock(), _corrupt)
    spool.recover()
    spool.close()
    return ModelDisk(disk.platter.after_cut(disk.platter.pending))


def play(world: World, *letters: Letter, meanwhile: Callable[[Sender], None] | None = None) -> None:
    """Take messages in as one batch and make of them what they say, then relay the reports."""
    sender = world.sender()
    sender.recover()
    world.listener().offer(*letters)
    sender.take()
    if meanwhile is not None:
        meanwhile(sender)
    queue_ids = sorted(sender.queue)
    for attempt in range(max(len(letter.fates) for letter in letters)):
        pairs = zip(queue_ids, letters, strict=False)
        due = {q: letter.fates[attempt] for q, letter in pairs if attempt < len(letter.fates)}
        sender.settle({queue_id: fates for queue_id, fates in due.items() if queue_id in sender.queue})
    sender.take()
    sender.drain()
    sender.spool.close()


def _corrupt(name: str, fault: str) -> None:
    raise Violation(f"{name} is taken for corrupt: {fault}")
