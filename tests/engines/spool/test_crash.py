"""The power is cut, and processes are killed, after every operation on the disk, twice in a run.

Each run (tests.engines.spool.scenarios) is played once, with a snapshot of every instant. From each instant
come the images that a power cut may leave (tests.fakes.platter), and the image that a kill leaves. The oracle
(tests.engines.spool.oracle) starts a sender on each image and lets it run to the end. Some images get a
second crash after the first. The long run draws from the whole space: RELAY_CRASH_SEED and
RELAY_CRASH_BUDGET (seconds).
"""

import errno
import itertools
import random
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from relay.mail.envelope import QueueId
from tests.engines.spool.conftest import ENGINES, SHORT_LOG
from tests.engines.spool.engine import BOUNCED, MAILDIR, RELAYED, OnModel, accept, claimed
from tests.engines.spool.oracle import Judge, cuts, killed
from tests.engines.spool.scenarios import STORIES, drawn, of_one_recipient
from tests.engines.spool.world import Letter, Listener, Violation, World, no_corruption, prepared
from tests.fakes.clock import FakeClock
from tests.fakes.disk import Fault, Killed, ModelDisk

pytestmark = pytest.mark.usefixtures("few_folders")

CUTS_AT_ONCE = 10
CUTS_AT_ONCE_IN_THE_LONG_RUN = 256
SHORT_STEP, FULL_STEP = 11, 5
"""Every n-th scenario is run. n does not divide the number of scenarios that belong together."""
TWO = (Letter(({0: RELAYED},)), Letter(({0: BOUNCED},)))


SOME = ("held and released together", "warned, then bounced", "bounced, the first report waits", "spilled")
"""Stories with what the small scenarios lack: every run has them."""
EACH = [*SOME, *(pytest.param(name, marks=pytest.mark.full) for name in STORIES if name not in SOME)]


@pytest.mark.parametrize("engine", [*ENGINES, pytest.param(SHORT_LOG, id="log of short segments")])
@pytest.mark.parametrize("name", EACH)
def test_a_story_survives_any_two_crashes(name: str, engine: OnModel) -> None:
    judge = Judge(engine)
    judge.judge_scenario(STORIES[name], random.Random(name), CUTS_AT_ONCE)
    assert judge.second


def test_the_first_start_of_a_spool_survives_cuts_and_kills(engine: OnModel) -> None:
    Judge(engine).judge_scenario(replace(STORIES["bounced"], is_started=False), random.Random(1), 4)


def test_a_start_makes_durable_what_a_killed_start_left_before_any_mail(engine: OnModel) -> None:
    """These are the folders and the format file: without it another engine could start in the spool."""
    for snapshot in replace(STORIES["relayed"], is_started=False).run(engine):
        ((_, image),) = killed(snapshot)
        engine.prepare(image)
        accepted = accept(engine.listener(image, FakeClock(), random.Random(2).randbytes))
        cut = ModelDisk(image.platter.after_cut(()))
        assert cut.inode(f"{engine.root}/format") is not None
        found = claimed(engine.spool(cut, FakeClock(), no_corruption))
        assert accepted in [message.queue_id for message in found]


@pytest.mark.parametrize("each", [SHORT_STEP, pytest.param(FULL_STEP, marks=pytest.mark.full)])
def test_runs_of_one_recipient_survive_any_two_crashes(
    tell: Callable[[str], None], engine: OnModel, each: int
) -> None:
    judge = Judge(engine)
    # The full run starts between two scenarios of the short run; the long run draws from all.
    for number, scenario in list(enumerate(of_one_recipient()))[each % SHORT_STEP :: each]:
        judge.judge_scenario(scenario, random.Random(number), CUTS_AT_ONCE)
    assert len(judge.states) * each > 5_000
    assert len(judge.second) * each > 2_000
    tell(f"spool: {judge}: nothing lost")


@pytest.mark.crash
def test_up_to_three_messages_survive_any_two_crashes(
    tell: Callable[[str], None], engine: OnModel, crash_seed: int, crash_budget_s: float
) -> None:
    until_s, judge = time.monotonic() + crash_budget_s, Judge(engine)
    for number in itertools.count():
        rng = random.Random(f"{crash_seed}/run {number}")
        engine.vary(rng)
        try:
            judge.judge_scenario(drawn(rng), rng, CUTS_AT_ONCE_IN_THE_LONG_RUN)
        except Violation as violation:
            raise Violation(f"RELAY_CRASH_SEED={crash_seed}, run {number}: {violation}") from violation
        if time.monotonic() > until_s:
            break
    tell(f"spool: {judge}, seed {crash_seed}: nothing lost")


def _offer_with(world: World, listener: Listener, nth: int) -> set[QueueId]:
    """Offer messages; just before the nth disk call a sender does all its work. Return what it claimed."""
    taken = set[QueueId]()

    def work() -> None:
        sender = world.sender()
        taken.update(sender.claim())
        assert sender.spool.tidy() == 0
        taken.update(sender.claim())
        sender.drain()
        sender.spool.close()

    world.listener_disk.at(nth, work)
    listener.offer(*TWO)
    world.listener_disk.before = None
    return taken


CALLS_OF_AN_OFFER = range(1, 12)


@pytest.mark.parametrize("fault_at", [0, *CALLS_OF_AN_OFFER])
def test_no_message_is_claimed_that_its_listener_may_still_take_back(fault_at: int, engine: OnModel) -> None:
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
    # The sender does claim a message that is decided while the rest of its batch is cleaned up.
    assert taken_early or fault_at or engine is not MAILDIR


def test_a_listener_that_is_killed_leaves_whole_messages_or_none(engine: OnModel) -> None:
    """The sender lives on and relays what it finds; the power cut comes later."""
    judge, rng, base = Judge(engine), random.Random(3), prepared(engine=engine)
    for nth in itertools.count(1):
        world = World(base.after_kill(), engine=engine)
        sender = world.sender()
        sender.claim()
        world.listener_disk.kill_at(nth)
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
        judge.judge(world.snapshots, lambda s: cuts(s, rng, 2), f"listener killed at {nth}")
    assert nth > 4
