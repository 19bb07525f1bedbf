"""The oracle: what must hold of a spool after any crash, judged by the promises and a trace alone.

`Judge` cuts the power of a run, or kills it, at every instant, and again while it recovers.
`live_on` starts a sender on the image that a crash left, checks what the sender finds, and lets it run to
the end. It raises Violation. It knows only the engine's interface (tests.engines.spool.engine.OnModel).

- A message that got 250 is there, octet for octet with its envelope. Otherwise each of its recipients has a
  durable status, and its sender a report if one failed. Nothing else is there but whole messages that a
  client handed over.
- A durable status stays, and no other status ever shows up. A reason is there as long as its mark.
- Each failure, each requested success and each delay is reported once, and not before it is marked. A failure
  of which the sender wants to hear nothing (NOTIFY) is not reported.
- No recipient is tried again, unless the crash came between the upstream's reply and the mark.
- Two starts, with a kill in between, equal one start: the same messages in the same state.
- A message is claimed before the reports about it. Nothing is left when all messages have ended.
"""

import errno
import itertools
import random
from collections.abc import Callable, Iterator, Sequence

from relay.mail.dsn import Notify
from relay.mail.envelope import Envelope, QueueId
from relay.spool.disk.durable import Disk
from relay.spool.interface import Message, Status
from tests.engines.spool.engine import OnModel
from tests.engines.spool.scenarios import Scenario
from tests.engines.spool.world import Letter, Listener, Sender, Snapshot, Trace, Violation, World, subject_of
from tests.fakes.disk import Fault, ModelDisk

ONE_MORE = Letter(({0: Status.RELAYED},), content=b"Subject: after the crash\r\n")


def live_on(image: ModelDisk, trace: Trace, *, record: bool = False, engine: OnModel) -> list[Snapshot]:
    """Judge the image that a crash left, and go on from it. Return the instants of doing so."""
    trace.crash()
    world = World(image, trace, engine)
    if record:
        world.record()
    else:
        image.platter.is_safe = True
    sender = world.sender()
    claimed = sender.claim()
    check_start(image, claimed, engine)
    _check_second_start(image, sender, engine)
    check_whole(trace, sender)
    # A message accepted after the crash must be as safe as one accepted before it.
    go_on(image, sender, engine, one_more=world.listener(seed=len(trace.offered)) if record else None)
    return world.snapshots


def check_start(disk: Disk, claimed: Sequence[QueueId], engine: OnModel) -> None:
    if list(claimed) != sorted(claimed):
        raise Violation(f"claimed in another order than that of age: {claimed}")
    if left := engine.drafts(disk):
        raise Violation(f"drafts are left behind: {left}")


def _check_second_start(image: ModelDisk, sender: Sender, engine: OnModel) -> None:
    other = image.after_kill()
    again = Sender(other, sender.clock, sender.trace, engine)
    again.claim()
    if again.queue != sender.queue:
        raise Violation(f"starting twice is not starting once: {sender.queue} then {again.queue}")
    if sorted(engine.remains(other)) != sorted(engine.remains(image)):
        raise Violation(f"the second start left {engine.remains(other)}, not {engine.remains(image)}")


def go_on(disk: Disk, sender: Sender, engine: OnModel, *, one_more: Listener | None = None) -> None:
    """Bring all mail of a started sender to its end. Nothing may be left then."""
    sender.end_what_is_done()
    sender.report_what_is_owed(sorted(sender.queue))
    if one_more is not None:
        one_more.offer(ONE_MORE)
    sender.warn_after_a_start()
    sender.drain()
    if left := engine.remains(disk):
        raise Violation(f"left at the end: {left}")
    check_told(sender.trace)
    sender.spool.close()


def check_whole(trace: Trace, sender: Sender) -> None:
    """Judge the whole queue. Every status the sender knows is durable; it could read all that is there."""
    messages = {queue_id: _whole(sender, queue_id) for queue_id in sender.queue}
    # If a message is gone, all statuses set before its end are durable.
    gone = {key: status for key, status in trace.called.items() if key[0] not in messages}
    trace.marked.update({key: status for key, status in gone.items() if key[0] in trace.finishing})
    trace.called.clear()
    for queue_id in trace.offered:
        if queue_id in messages:
            check_present(trace, messages[queue_id])
        else:
            _check_absent(trace, queue_id, set(messages))
    if unknown := set(messages) - set(trace.offered):
        raise Violation(f"messages that nobody sent: {unknown}")


def _whole(sender: Sender, queue_id: QueueId) -> Message:
    message = sender.read(queue_id)
    if message.content is not None:
        return message
    return message._replace(content=b"".join(sender.spool.content(queue_id)))


def check_present(trace: Trace, message: Message) -> None:
    queue_id = message.queue_id
    envelope, content = trace.offered[queue_id]
    if message.envelope != envelope or message.content != content:
        raise Violation(f"{queue_id} is not what was handed over")
    if queue_id in trace.warned and not message.is_warned:
        raise Violation(f"{queue_id}: that its sender was warned is forgotten")
    # If no recipient is left, no hold counts: a cut that undoes the end may leave an older name (btrfs).
    held = trace.held.get(queue_id, False) if message.left else None
    if held is not None and message.is_held != held:
        raise Violation(f"{queue_id} is {'not ' * held}held")
    noted = {note.index for note in message.notes}
    owed = message.owed_report
    for index, status in enumerate(message.statuses):
        fates = trace.fates.get((queue_id, index), ())
        marked = trace.marked.get((queue_id, index))
        if marked is not None and status is not marked:
            raise Violation(f"{queue_id}/{index} is {status} though marked {marked} durably")
        if status is not Status.TODO and status not in fates:
            raise Violation(f"{queue_id}/{index} is {status} which never happened: {fates}")
        # A success may lack its reason: it is marked, and reported, even without room for the note.
        is_needed = status.is_failure and owed is not None and index in owed.indices
        if is_needed and index not in noted:
            raise Violation(f"{queue_id}/{index} is {status} without its reason")
        if status is not Status.TODO:
            # Recovery makes durable whatever it returns, whichever process wrote it.
            trace.marked[queue_id, index] = status


def _check_absent(trace: Trace, queue_id: QueueId, present: set[QueueId]) -> None:
    if queue_id not in trace.accepted:
        # The client got no 250 for it, and sends it again.
        return
    envelope, _ = trace.offered[queue_id]
    statuses = [trace.marked.get((queue_id, index)) for index in range(len(envelope.recipients))]
    if queue_id not in trace.finishing or None in statuses:
        raise Violation(f"{queue_id} is lost: {statuses}")
    told = _told_of(trace, queue_id, present | trace.finishing)
    to_tell = _to_tell(envelope, [status for status in statuses if status is not None])
    if not set(to_tell) <= set(told):
        raise Violation(f"{queue_id}: its sender is to be told of {to_tell}, and never is, but of {told}")


def _to_tell(envelope: Envelope, statuses: Sequence[Status]) -> list[int]:
    """Return the recipients to report: failures, unless NOTIFY forbids it, and requested successes."""
    if not envelope.reverse_path:
        return []
    silenced = [not envelope.dsn.of(index).wants(Notify.FAILURE) for index in range(len(statuses))]
    return [
        index
        for index, status in enumerate(statuses)
        if status is Status.SUCCESS or (status.is_failure and not silenced[index])
    ]


def _told_of(trace: Trace, queue_id: QueueId, among: set[QueueId]) -> list[int]:
    reports = [own for own in trace.told_of if subject_of(own) == queue_id and own in among]
    return sorted(index for own in reports for index in trace.told_of[own])


def check_told(trace: Trace) -> None:
    """Check that exactly one report tells each failure and each requested success, and tells nothing else."""
    for queue_id in trace.finishing & trace.accepted:
        envelope, _ = trace.offered[queue_id]
        marks = [trace.marked[queue_id, index] for index in range(len(envelope.recipients))]
        if (to_tell := _to_tell(envelope, marks)) != (told := _told_of(trace, queue_id, trace.finishing)):
            raise Violation(f"{queue_id}: its sender was told of {told}, and not of {to_tell}")


SYNCS = frozenset({"sync", "sync_content", "sync_directory"})
FIRST_CRASHES = 6
SECOND_STATES = 24

Images = Iterator[tuple[str, ModelDisk]]


def cuts(snapshot: Snapshot, rng: random.Random, most: int) -> Images:
    """Yield the images that a power cut may leave of an instant: all of them, or `most` drawn by `rng`."""
    for number, image in enumerate(ModelDisk(snapshot.platter).cuts(rng, most)):
        yield f"cut after {snapshot.step!r} keeping choice {number}", image


def killed(snapshot: Snapshot) -> Images:
    """Yield what a new process finds after all others were killed. The power stays."""
    yield f"killed after {snapshot.step!r}", ModelDisk(snapshot.platter).after_kill()


def ends(snapshot: Snapshot) -> Images:
    """Yield what a kill leaves, and a power cut that keeps no or all pending changes."""
    yield from killed(snapshot)
    platter = snapshot.platter
    yield f"cut after {snapshot.step!r} keeping nothing", ModelDisk(platter.after_cut(()))
    yield f"cut after {snapshot.step!r} keeping all", ModelDisk(platter.after_cut(platter.pending))


class Judge:
    """Judges crash states. A state is the content of the disk and the trace of promises; each is judged once.

    Two images are the same state if no process can tell them apart and their traces are equal.
    """

    def __init__(self, engine: OnModel) -> None:
        self.engine = engine
        self.states: set[int] = set()
        self.second: set[int] = set()
        """The states that only a second crash left, during or after recovery."""
        self.runs = 0
        self.faults = 0
        """The runs in which a call really failed (`judge_fault`)."""

    def __str__(self) -> str:
        return f"{len(self.states)} crash states, {len(self.second)} of them double, in {self.runs} runs"

    def judge_scenario(self, scenario: Scenario, rng: random.Random, most: int) -> None:
        """Judge one scenario, with all images of an instant or, if there are more, `most` of them.

        Every instant of the scenario, and of a run in which one sync fails, is killed and cut. For some
        images the recovery, the rest of the run and one more message are too: the second crash.
        """
        story = str(scenario)
        snapshots = scenario.run(self.engine)
        self._judge_all(snapshots, rng, most, story)
        first_crashes = [_first_crash(snapshots, rng) for _ in range(FIRST_CRASHES)]
        nth, drops_pages = rng.randint(1, 12), rng.random() < 0.5
        fault = Fault(nth, errno.EIO, kinds=SYNCS, drops_pages=drops_pages)
        failed = f"{story}, sync {nth} failed{' and dropped its pages' * drops_pages}"
        self._judge_all(scenario.run(self.engine, fault), rng, most, failed)
        for label, image, snapshot in first_crashes:
            told = f"{story}, {label}"
            again = self.go_on(image, snapshot, told, record=True)
            # Draw equally from the recovery and from what follows it.
            some = rng.sample(again, min(len(again), SECOND_STATES))

            def second(instant: Snapshot) -> Images:
                return itertools.islice(itertools.chain(cuts(instant, rng, 4), killed(instant)), 5)

            known = set(self.states)
            self.judge(some, second, told)
            self.second |= self.states - known
        self.runs += 1

    def judge_fault(self, world: World, story: str) -> None:
        """Judge what the next start finds after a run with a failed call."""
        self.faults += 1
        self.judge([world.now()], ends, story)

    def _judge_all(self, snapshots: Sequence[Snapshot], rng: random.Random, most: int, story: str) -> None:
        self.judge(snapshots, killed, story)
        self.judge(snapshots, lambda snapshot: cuts(snapshot, rng, most), story)

    def judge(self, snapshots: Sequence[Snapshot], images: Callable[[Snapshot], Images], story: str) -> None:
        """Judge the images of these instants. Raises Violation, which names the path to the image."""
        for snapshot in snapshots:
            for label, image in images(snapshot):
                state = hash((image.platter.fingerprint(), snapshot.trace.key))
                if state not in self.states:
                    self.go_on(image, snapshot, f"{story}, {label}")
                    self.states.add(state)

    def go_on(
        self, image: ModelDisk, snapshot: Snapshot, story: str, *, record: bool = False
    ) -> list[Snapshot]:
        """Judge one image without counting it. Return the instants of the recovery and of what follows."""
        try:
            return live_on(image, snapshot.trace.copy(), record=record, engine=self.engine)
        except Exception as error:
            raise Violation(f"{story}: {error!r}") from error


def _first_crash(snapshots: Sequence[Snapshot], rng: random.Random) -> tuple[str, ModelDisk, Snapshot]:
    snapshot = rng.choice(snapshots)
    images = [*killed(snapshot), *cuts(snapshot, rng, 8)]
    return (*rng.choice(images), snapshot)
