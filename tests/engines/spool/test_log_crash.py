"""The power is cut, and processes are killed, after every operation of the log: nothing is lost.

The scenarios, the models of a disk and the judge are those of test_crash.
"""

import contextlib
import errno
import functools
import itertools
import random
from collections.abc import Iterable

import pytest

from relay.mail.envelope import QueueId
from relay.spool.interface import SpoolFault, SpoolFull
from relay.spool.log import segments, summary
from tests.engines.spool.cuts import (
    RELAYED,
    SCENARIOS,
    Judge,
    cut_on_each_model,
    cuts,
    drawn_cuts,
    killed,
    run_of,
)
from tests.engines.spool.faulting import FAULTS, Judging
from tests.engines.spool.log_engine import LOG
from tests.engines.spool.plays import play, prepared
from tests.engines.spool.test_crash import Killed
from tests.engines.spool.world import Letter, Sender, World
from tests.fakes.disk import Fault, ModelDisk
from tests.fakes.platter import Model

CUTS_AT_ONCE = 3

run_of_log = functools.partial(run_of, engine=LOG)


def few(*names: str, of: Iterable[str] = SCENARIOS) -> list[object]:
    """Return these names, and the others for the full run."""
    return [*names, *(pytest.param(name, marks=pytest.mark.full) for name in of if name not in names)]


@pytest.mark.parametrize("name", few("bounced one by one", "left held together", "spilled"))
def test_a_power_cut_or_a_kill_at_any_instant_of_the_log_loses_nothing(name: str) -> None:
    cut_on_each_model(name, run_of_log, Judge(engine=LOG), CUTS_AT_ONCE, is_killed=True)


@pytest.mark.parametrize("model", Model)
def test_the_first_start_of_a_log_may_be_cut_or_killed_too(model: Model) -> None:
    judge, rng = Judge(engine=LOG), random.Random(1)
    snapshots = run_of("bounced", model, from_nothing=True, engine=LOG)

    judge.judge(snapshots, lambda snapshot: cuts(snapshot, rng, 2), story="from nothing")


@pytest.fixture(params=[1, 600, 1 << 24])
def segments_of_any_length(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Let segments end, die and be cleaned all the time, or never."""
    monkeypatch.setattr(segments, "SEGMENT_BYTES", request.param)
    monkeypatch.setattr(summary, "LET_BE", 0)


VARIED = [
    "a batch of two",
    "bounced one by one",
    "left held together",
    "told one by one",
    "warned, then bounced",
    "spilled",
]


@pytest.mark.usefixtures("segments_of_any_length")
@pytest.mark.parametrize("name", few("a batch of two", "told one by one", of=VARIED))
def test_segments_that_end_and_go_at_any_instant_lose_nothing(name: str) -> None:
    judge = Judge(engine=LOG)
    for model, snapshots in cut_on_each_model(name, run_of_log, judge, CUTS_AT_ONCE, is_killed=True).items():
        rng = random.Random(f"{name} {model.name}")
        for snapshot in rng.sample(snapshots, 4):
            for label, image in [*killed(snapshot), *list(cuts(snapshot, rng, 4))[1:2]]:
                story = f"{name} ({model.name}), {label}"
                again = judge.go_on(image, snapshot, story, record=True)
                some = rng.sample(again, min(len(again), 8))
                judge.judge(some, killed, story=story, is_second=True)
                judge.judge(some, drawn_cuts(rng, 4), story=story, is_second=True)


@pytest.mark.usefixtures("segments_of_any_length")
@pytest.mark.parametrize("name", few("left held together", of=["told one by one", "spilled"]))
def test_no_fault_while_segments_end_and_go_loses_anything(name: str) -> None:
    base, (letters, meanwhile) = prepared(engine=LOG), SCENARIOS[name]
    judging = Judging("simulated faults under a sender", LOG)
    for kind, fault in FAULTS.items():
        for nth in itertools.count(1):
            world = World(base.after_kill(), engine=LOG)
            world.sender_disk.fail(fault(nth))
            with contextlib.suppress(SpoolFault, SpoolFull, OSError):
                play(world, *letters, meanwhile=meanwhile)
            if not world.sender_disk.has_failed:
                break
            judging.check(world.sender_disk, world.trace, f"{name}, {kind} at {nth}")
    assert judging.faults > 200


def test_nothing_of_a_log_is_taken_that_may_be_taken_back() -> None:
    """A sender that looks on while a listener accepts: between the group, its sync and the word of it."""
    for nth in range(1, 12):
        world = World(prepared(engine=LOG), engine=LOG)
        sender, listener, calls = world.sender(), world.listener(), itertools.count(1)
        sender.recover()
        listener.offer(Letter(({},)))
        assert len(sender.take()) == 1
        taken: list[QueueId] = []

        def look(
            _step: str,
            nth: int = nth,
            calls: "itertools.count[int]" = calls,
            taken: list[QueueId] = taken,
            sender: Sender = sender,
        ) -> None:
            if next(calls) == nth:
                taken.extend(sender.take())

        world.listener_disk.before = look
        world.listener_disk.fail(Fault(1, errno.EIO, kinds=frozenset({"sync_content"})))
        assert listener.offer(Letter(({},), 2)) == [None]
        assert taken == []


def test_what_a_failed_sync_left_of_a_log_is_written_again() -> None:
    """Everybody reads what the disk does not have, and the next sync says all is well."""
    world = World(prepared(engine=LOG), engine=LOG)
    sender = world.sender()
    sender.recover()
    (queue_id,) = world.listener().offer(Letter(({},), 2))
    assert queue_id is not None
    sender.take()
    sender.hold(queue_id)
    stuck = frozenset({"sync_content", "truncate"})
    world.sender_disk.fail(Fault(1, errno.EIO, kinds=stuck, forever=True))
    sender.spool.mark({queue_id: {0: RELAYED}})
    with pytest.raises(SpoolFault):
        sender.spool.commit()

    image = world.sender_disk.after_kill()
    (before,) = World(image, engine=LOG).sender().recover().entries
    (after,) = World(ModelDisk(image.platter.after_cut(())), engine=LOG).sender().recover().entries
    assert before.recipients_left == after.recipients_left == 1


def test_a_group_that_is_given_up_is_cut_off_durably() -> None:
    world = World(prepared(engine=LOG), engine=LOG)
    sender = world.sender()
    sender.recover()
    (queue_id,) = world.listener().offer(Letter(({},)))
    assert queue_id is not None
    sender.take()
    sender.hold(queue_id)
    world.sender_disk.fail(Fault(1, errno.EIO, kinds=frozenset({"sync_content"})))
    with pytest.raises(SpoolFault):
        sender.hold(queue_id, release=True)
    cut, synced = world.sender_disk.steps[-2:]
    assert (cut.split()[0], synced) == ("truncate", cut.replace("truncate", "sync"))


def kill_before(disk: ModelDisk, call: str) -> None:
    def before(step: str) -> None:
        if step == call:
            raise Killed

    disk.before = before


SYNC_OF_NAMES = f"sync_directory {LOG.root}/log"


def test_what_is_taken_from_a_killed_listener_is_durable() -> None:
    world = World(prepared(engine=LOG), engine=LOG)
    sender, listener = world.sender(), world.listener()
    sender.recover()
    kill_before(world.listener_disk, SYNC_OF_NAMES)
    with pytest.raises(Killed):
        listener.offer(Letter(({},)))
    world.listener_disk.before = None
    world.listener_disk.die()
    (queue_id,) = sender.take()
    image = ModelDisk(world.sender_disk.platter.after_cut(()))
    assert [entry.queue_id for entry in World(image, engine=LOG).sender().recover().entries] == [queue_id]


def test_what_a_start_reads_of_a_killed_sender_is_durable() -> None:
    """Also where no listener died, whose stream would be looked after too."""
    world = World(prepared(engine=LOG), engine=LOG)
    sender, listener = world.sender(), world.listener()
    sender.recover()
    (queue_id,) = listener.offer(Letter(({},)))
    assert queue_id is not None
    sender.take()
    kill_before(world.sender_disk, SYNC_OF_NAMES)
    with pytest.raises(Killed):
        sender.hold(queue_id)
    world.sender_disk.before = None
    world.sender_disk.die()
    (entry,) = world.sender().recover().entries
    assert entry.is_held
    image = ModelDisk(world.sender_disk.platter.after_cut(()))
    (entry,) = World(image, engine=LOG).sender().recover().entries
    assert entry.is_held
