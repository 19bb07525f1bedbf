"""The power is cut, and processes are killed, after every single operation on the disk, twice.

Each run (tests.engines.spool.scenarios) is played once and every instant of it kept.  From each instant come
the images that a power cut may leave (tests.fakes.power), and what a new process finds after a kill;
tests.engines.spool.oracle judges each one by starting a sender on it and letting it go on to the end.  Some
are judged with a second crash behind the first.  The long run draws from all runs of one recipient, and then
from the whole space: RELAY_CRASH_SEED and RELAY_CRASH_BUDGET (seconds).
"""

import errno
import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest

from relay.mail.envelope import QueueId
from tests.engines.spool.cuts import Judge, cuts, killed, prefixes
from tests.engines.spool.engine import BOUNCED, RELAYED, OnModel, accept, claimed
from tests.engines.spool.maildir_engine import MAILDIR
from tests.engines.spool.scenarios import STORIES, Scenario, drawn, of_one_recipient
from tests.engines.spool.world import Letter, Listener, Snapshot, Violation, World, no_corruption, prepared
from tests.fakes.clock import FakeClock
from tests.fakes.disk import Fault, ModelDisk

pytestmark = pytest.mark.usefixtures("few_folders")

CUTS_AT_ONCE = 10
CUTS_AT_ONCE_IN_THE_LONG_RUN = 256
SHORT_STEP, FULL_STEP = 11, 5
"""Of the scenarios, every so-manieth; no divisor of how many belong together."""
SHARE = 0.5
"""Of the budget of all crash runs."""
TWO = (Letter(({0: RELAYED},)), Letter(({0: BOUNCED},)))


class Killed(BaseException):
    """The process is gone in the middle of a call."""


SOME = ("held and released together", "warned, then bounced", "bounced, the first report waits", "spilled")
"""Of the stories, what the small scenarios do not have: in each run."""
EACH = [*SOME, *(pytest.param(name, marks=pytest.mark.full) for name in STORIES if name not in SOME)]


@pytest.mark.parametrize("name", EACH)
def test_a_story_survives_any_two_crashes(name: str, engine: OnModel) -> None:
    judge = Judge(engine)
    judge.judge_scenario(STORIES[name], random.Random(name), CUTS_AT_ONCE)
    assert judge.tally.second


def test_the_first_start_of_all_may_be_cut_or_killed_too(engine: OnModel) -> None:
    Judge(engine).judge_scenario(replace(STORIES["bounced"], is_started=False), random.Random(1), 4)


def test_what_a_killed_start_left_is_durable_before_any_mail(engine: OnModel) -> None:
    """The folders, and which format the spool is of: else another engine may start in it."""
    for snapshot in replace(STORIES["relayed"], is_started=False).run(engine):
        ((_, image),) = killed(snapshot)
        engine.prepare(image)
        accepted = accept(engine.listener(image, FakeClock(), random.Random(2).randbytes))
        cut = ModelDisk(image.platter.after_cut(()))
        assert cut.inode(f"{engine.root}/format") is not None
        found = claimed(engine.spool(cut, FakeClock(), no_corruption))
        assert accepted in [message.queue_id for message in found]


@pytest.mark.parametrize("each", [SHORT_STEP, pytest.param(FULL_STEP, marks=pytest.mark.full)])
def test_one_recipient_survives_any_two_crashes(
    tell: Callable[[str], None], engine: OnModel, each: int
) -> None:
    judge = Judge(engine)
    # Between two of the short run, in the full one; the long run has each.
    for number, scenario in list(enumerate(of_one_recipient()))[each % SHORT_STEP :: each]:
        judge.judge_scenario(scenario, random.Random(number), CUTS_AT_ONCE)
    assert len(judge.tally.states) * each > 5_000
    assert len(judge.tally.second) * each > 2_000
    tell(f"spool: {judge.tally}: nothing lost")


@pytest.mark.crash
def test_every_run_of_one_recipient_survives_them(
    tell: Callable[[str], None],
    engine: OnModel,
    drawn_in_time: Callable[[Iterable[Scenario], float], Iterator[tuple[int, Scenario]]],
) -> None:
    judge = Judge(engine)
    for number, scenario in drawn_in_time(of_one_recipient(), SHARE):
        judge.judge_scenario(scenario, random.Random(number), CUTS_AT_ONCE)
    assert len(judge.tally.states) > 20 * judge.tally.runs
    tell(f"spool: {judge.tally}: nothing lost")


@pytest.mark.crash
def test_up_to_three_messages_survive_any_two_crashes(
    tell: Callable[[str], None], engine: OnModel, crash_seed: int, crash_budget_s: float
) -> None:
    until_s, judge = time.monotonic() + crash_budget_s * SHARE, Judge(engine)
    for number in itertools.count():
        rng = random.Random(f"{crash_seed}/run {number}")
        engine.vary(rng)
        try:
            judge.judge_scenario(drawn(rng), rng, CUTS_AT_ONCE_IN_THE_LONG_RUN)
        except Violation as violation:
            raise Violation(f"RELAY_CRASH_SEED={crash_seed}, run {number}: {violation}") from violation
        if time.monotonic() > until_s:
            break
    tell(f"spool: {judge.tally}, seed {crash_seed}: nothing lost")


@pytest.mark.parametrize("name", ["a batch of two", "held and released"])
def test_what_a_start_returned_survives_the_next_cut(name: str, engine: OnModel) -> None:
    """A killed sender leaves in memory what everybody can see and the disk does not have."""
    for snapshot in STORIES[name].run(engine):
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
    listener.offer(*TWO)
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
    assert taken_early or fault_at or engine is not MAILDIR


def test_a_listener_that_is_killed_leaves_whole_messages_or_none(engine: OnModel) -> None:
    """The sender lives on, relays what it finds, and only then the power goes."""
    judge, rng, base = Judge(engine), random.Random(3), prepared(engine=engine)
    for nth in itertools.count(1):
        world, count = World(base.after_kill(), engine=engine), itertools.count(1)
        sender = world.sender()
        sender.claim()

        def kill(_step: str, nth: int = nth, count: "itertools.count[int]" = count) -> None:
            if next(count) == nth:
                raise Killed

        world.listener_disk.before = kill
        try:
            world.listener().offer(*TWO)
            break
        except Killed:
            world.listener_disk.before = None
            world.listener_disk.die()
        world.record()
        sender.claim()
        sender.settle_attempts(sorted(sender.queue), TWO)
        sender.claim()
        sender.drain()
        sender.spool.tidy()
        assert engine.drafts(world.sender_disk) == []
        judge.judge(world.snapshots, lambda s: cuts(s, rng, 2), story=f"listener killed at {nth}")
    assert nth > 4
