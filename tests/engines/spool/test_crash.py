"""The power is cut, and processes are killed, after every single operation on the disk.

Each scenario is played once and every instant of it kept.  From each instant come the
images that a power cut may leave, by each model of a disk (tests.fakes.power), and what a
new process finds after a kill; tests.engines.spool.oracle judges each one by starting a sender
on it and letting it go on to the end.  The scenarios here are stories told by hand; the
systematic ones are in test_small_scenarios.  The long run draws whole stories of several
cuts from a seed: RELAY_CRASH_SEED and RELAY_CRASH_BUDGET (seconds).
"""

import errno
import itertools
import random
import time
from collections.abc import Callable

import pytest

from relay.mail.envelope import QueueId
from relay.spool.maildir.layout import FORMAT, MaildirLayout, prepare
from tests.engines.spool.cuts import (
    BOUNCED,
    RELAYED,
    SCENARIOS,
    Judge,
    cut_on_each_model,
    cuts,
    killed,
    prefixes,
    run_of,
)
from tests.engines.spool.engine import OnModel
from tests.engines.spool.world import ROOT, Letter, Listener, Snapshot, World, prepared
from tests.fakes.disk import Fault, ModelDisk
from tests.fakes.platter import Model

pytestmark = pytest.mark.usefixtures("few_folders")

CUTS_AT_ONCE = 6
TOLD = (Letter(({0: RELAYED},)), Letter(({0: BOUNCED},)))


class Killed(BaseException):
    """The process is gone in the middle of a call."""


SOME = ("held and released together", "warned, then bounced", "bounced, the first report waits", "spilled")
"""Of the scenarios, what the small ones do not have: in each run."""
EACH = [*SOME, *(pytest.param(name, marks=pytest.mark.full) for name in SCENARIOS if name not in SOME)]


@pytest.mark.parametrize("name", EACH)
def test_a_cut_or_a_kill_at_any_instant_loses_nothing(name: str, engine: OnModel) -> None:
    judge = Judge(engine=engine)

    def run(name: str, model: Model) -> list[Snapshot]:
        return run_of(name, model, engine=engine)

    cut_on_each_model(name, run, judge, CUTS_AT_ONCE, is_killed=True)


@pytest.mark.parametrize("model", Model)
def test_the_first_start_of_all_may_be_cut_or_killed_too(model: Model, engine: OnModel) -> None:
    judge, rng = Judge(engine=engine), random.Random(1)
    snapshots = run_of("bounced", model, from_nothing=True, engine=engine)
    judge.judge(snapshots, killed, story="from nothing")
    judge.judge(snapshots, lambda snapshot: cuts(snapshot, rng, 2), story="from nothing")


def test_what_a_killed_start_left_is_durable_before_any_mail() -> None:
    """The folders, and which format the spool is of: else another version may start in it."""
    for snapshot in run_of("relayed", from_nothing=True):
        ((_, image),) = killed(snapshot)
        prepare(ROOT, image)
        _, cut = next(prefixes(Snapshot(image.platter, snapshot.trace, snapshot.step)))
        assert not [folder for folder in ("/var", *_folders()) if not _is_there(cut, folder)]
        assert cut.peek(f"{ROOT}/format") == FORMAT


def _folders() -> list[str]:
    layout = MaildirLayout(ROOT)
    return [layout.drafts, layout.new, layout.hold, layout.notes, *layout.queued_folders()]


def _is_there(disk: ModelDisk, path: str) -> bool:
    parent = path.rpartition("/")[0]
    return not path or (_is_there(disk, parent) and disk.inode(path) is not None)


@pytest.mark.parametrize("model", Model)
@pytest.mark.parametrize("name", ["a batch of two", "held and released"])
def test_what_a_start_returned_survives_the_next_cut(name: str, model: Model, engine: OnModel) -> None:
    """A killed sender leaves in memory what everybody can see and the disk does not have."""
    for snapshot in run_of(name, model, engine=engine):
        ((_, image),) = killed(snapshot)
        before, after = World(image, engine=engine).sender(), None
        before.claim()
        _, cut = next(prefixes(Snapshot(image.platter, snapshot.trace, snapshot.step)))
        after = World(cut, engine=engine).sender()
        after.claim()
        assert [message._replace(next_attempt_at_ns=None) for message in before.queue.values()] == [
            message._replace(next_attempt_at_ns=None) for message in after.queue.values()
        ]


def _offer_with(world: World, listener: Listener, nth: int) -> set[QueueId]:
    """Offer messages while a sender does all it can just before the nth call; return what it took."""
    count, taken = itertools.count(1), set[QueueId]()

    def before(_step: str) -> None:
        if next(count) == nth:
            sender = world.sender()
            taken.update(sender.claim())
            assert sender.spool.tidy() == 0
            taken.update(sender.claim())
            sender.drain()
            sender.spool.close()

    world.listener_disk.before = before
    listener.offer(*TOLD)
    world.listener_disk.before = None
    return taken


CALLS_OF_AN_OFFER = range(1, 12)


@pytest.mark.parametrize("fault_at", [0, *CALLS_OF_AN_OFFER])
def test_nothing_is_claimed_that_its_listener_may_take_back(fault_at: int, engine: OnModel) -> None:
    taken_early = False
    for nth in CALLS_OF_AN_OFFER:
        world = World(prepared(engine=engine), engine=engine)
        listener = world.listener()
        if fault_at:
            world.listener_disk.fail(Fault(fault_at, errno.EIO))
        taken = _offer_with(world, listener, nth)
        assert taken <= world.trace.accepted
        taken_early = taken_early or bool(taken)
        world.listener_disk.die()
        sender = world.sender()
        sender.claim()
        assert sender.queue.keys() == world.trace.accepted - taken
    # It does claim one that is decided while the rest of its batch is tidied up.
    assert taken_early or fault_at or engine.root != ROOT


@pytest.mark.parametrize("model", Model)
def test_a_listener_that_is_killed_leaves_whole_messages_or_none(model: Model, engine: OnModel) -> None:
    """The sender lives on, relays what it finds, and only then the power goes."""
    judge, rng, base = Judge(engine=engine), random.Random(3), prepared(model, engine=engine)
    for nth in itertools.count(1):
        world, count = World(base.after_kill(), engine=engine), itertools.count(1)
        sender = world.sender()
        sender.claim()

        def kill(_step: str, nth: int = nth, count: "itertools.count[int]" = count) -> None:
            if next(count) == nth:
                raise Killed

        world.listener_disk.before = kill
        try:
            world.listener().offer(*TOLD)
            break
        except Killed:
            world.listener_disk.before = None
            world.listener_disk.die()
        world.record()
        sender.claim()
        for queue_id, fate in zip(sorted(sender.queue), (RELAYED, BOUNCED), strict=False):
            sender.settle({queue_id: {0: fate}})
        sender.claim()
        sender.drain()
        sender.spool.tidy()
        assert engine.drafts(world.sender_disk) == []
        judge.judge(world.snapshots, lambda s: cuts(s, rng, 2), story=f"listener killed at {nth}")
    assert nth > 4


def _story(rng: random.Random, judge: Judge, engine: OnModel) -> None:
    name, model = rng.choice(list(SCENARIOS)), rng.choice(list(Model))
    snapshots: list[Snapshot] = run_of(name, model, from_nothing=rng.random() < 0.1, engine=engine)
    story = f"{name} ({model.name})"
    for _ in range(rng.choice((1, 2, 2, 3, 4))):
        snapshot = rng.choice(snapshots)
        kind = rng.choice((prefixes, killed, lambda s: cuts(s, rng, 24)))
        label, image = rng.choice(list(kind(snapshot)))
        story = f"{story}, {label}"
        snapshots = judge.go_on(image, snapshot, story, record=True)


@pytest.mark.crash
def test_stories_of_several_cuts_lose_nothing(
    tell: Callable[[str], None], crash_seed: int, crash_budget_s: float, engine: OnModel
) -> None:
    until, judge = time.monotonic() + crash_budget_s / 10, Judge(engine=engine)
    for number in itertools.count():
        try:
            _story(random.Random(f"{crash_seed}/{number}"), judge, engine)
        except AssertionError as violation:
            raise AssertionError(f"RELAY_CRASH_SEED={crash_seed}, story {number}: {violation}") from violation
        if time.monotonic() > until:
            break
    tell(f"spool: {number + 1} stories of one to four crashes, seed {crash_seed}: nothing lost")


def test_the_model_sees_what_it_is_there_for() -> None:
    """A spool whose folders were never synced would be caught: the judge is no rubber stamp."""
    judge, snapshots = Judge(), run_of("bounced")
    accepted = next(s for s in snapshots if s.trace.accepted)
    empty = prepared()
    with pytest.raises(AssertionError, match="is lost"):
        judge.go_on(empty, accepted, "nothing is left")
    relayed = next(s for s in snapshots if s.trace.marked)
    earlier = ModelDisk(accepted.platter).after_kill()
    with pytest.raises(AssertionError, match="though marked"):
        judge.go_on(earlier, relayed, "the marks are gone")
