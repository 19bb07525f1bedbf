"""Every disk call fails, once or from then on: no accepted message is lost, and no refused message is queued.

The n-th call of a run fails, for n = 1, 2, … until a run has no failure, in each way that
`tests.fakes.disk.FAULTS` lists. Then a restart is judged, with the power kept and with a power
cut. The long run draws stories, kinds and instants from a seed, and lets recovery fail too.
"""

import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from relay.spool.interface import SpoolError
from tests.engines.spool.conftest import ENGINES, SHORT_LOG
from tests.engines.spool.engine import RELAYED, OnModel
from tests.engines.spool.oracle import Judge, cuts, killed
from tests.engines.spool.scenarios import LONG, STORIES
from tests.engines.spool.world import Letter, Snapshot, World, prepared
from tests.fakes.disk import FAULTS, Fault, ModelDisk

pytestmark = pytest.mark.usefixtures("few_folders")

SOME = [
    name
    for name in FAULTS
    if name.removesuffix(" from then on") in ("ENOSPC", "EIO", "EMFILE", "a lying write", "EIO while reading")
]
"""One fault of each sort, for the short run."""
FULL = [name for name in FAULTS if any(word in name for word in ("ENOSPC", "EDQUOT", "EFBIG", "EMFILE"))]
"""Faults that only delay the sender."""
LETTERS = (Letter(({0: RELAYED},), content=LONG, spills=1), Letter(({0: RELAYED},)))


def few(*names: str, seldom: str, kinds: Sequence[str] = tuple(FAULTS)) -> Sequence[object]:
    """Return parameters: these stories with some kinds of faults; in the full run, one more and all kinds."""
    some = [pytest.param(name, [kind for kind in kinds if kind in SOME], id=name) for name in names]
    full = [
        pytest.param(name, kinds, marks=pytest.mark.full, id=f"{name}, all kinds")
        for name in (*names, seldom)
    ]
    return some + full


def every_call(kinds: Iterable[str], fails: Callable[[str, int], bool]) -> None:
    """For each kind of fault, let the first call of a run fail, then the second, until no call fails.

    `fails` plays a run, judges what it left, and returns whether a call failed.
    """
    for kind in kinds:
        for nth in itertools.count(1):
            if not fails(kind, nth):
                break


def test_a_listener_whose_disk_fails_keeps_accepted_mail_and_no_refused_mail(engine: OnModel) -> None:
    base = prepared(engine=engine)
    judging = Judge(engine)

    def fails(kind: str, nth: int) -> bool:
        world, fault = World(base.after_kill(), engine=engine), replace(FAULTS[kind], nth=nth)
        sender = world.sender()
        sender.claim()
        listener = world.listener()
        world.listener_disk.fail(fault)
        listener.offer(*LETTERS)
        if not world.listener_disk.has_failed:
            return False
        world.listener_disk.die()
        sender.claim()
        queued = sender.queue.keys() & world.trace.refused
        # A dead disk cannot withdraw a published message; the client sends it again.
        assert not queued or fault.forever
        assert world.trace.accepted <= sender.queue.keys()
        judging.judge_fault(world, f"{kind} at {nth}: {world.listener_disk.steps[-4:]}")
        return True

    every_call(FAULTS, fails)
    assert judging.faults > 150


@pytest.mark.parametrize(
    "engine", [*ENGINES, pytest.param(SHORT_LOG, marks=pytest.mark.full, id="log of short segments")]
)
@pytest.mark.parametrize(
    ("name", "kinds"), few("held and released", "warned, then bounced", seldom="a batch of two")
)
def test_a_sender_whose_disk_fails_says_so_and_loses_nothing(
    name: str, kinds: Sequence[str], engine: OnModel
) -> None:
    base, judging = prepared(engine=engine), Judge(engine)

    def fails(kind: str, nth: int) -> bool:
        world = World(base.after_kill(), engine=engine)
        world.sender_disk.fail(replace(FAULTS[kind], nth=nth))
        with contextlib.suppress(SpoolError, OSError):
            STORIES[name].play(world)
        if world.sender_disk.has_failed:
            judging.judge_fault(world, f"{name}, {kind} at {nth}")
        return world.sender_disk.has_failed

    every_call(kinds, fails)
    assert judging.faults > 100


@pytest.mark.parametrize(("name", "kinds"), few("bounced while held", seldom="bounced"))
def test_a_restart_whose_disk_fails_loses_nothing_for_the_next(
    name: str, kinds: Sequence[str], engine: OnModel
) -> None:
    judging = Judge(engine)
    for snapshot in STORIES[name].run(engine)[5::12]:
        ((label, image),) = killed(snapshot)
        _fail_recoveries(image, snapshot, kinds, judging, f"{name}, {label}")
    assert judging.faults > 100


def _fail_recoveries(
    image: ModelDisk, snapshot: Snapshot, kinds: Sequence[str], judging: Judge, story: str
) -> None:
    """Let each call of a start on this image fail, and judge what that leaves for the next start."""

    def fails(kind: str, nth: int) -> bool:
        world = World(image.after_kill(), snapshot.trace.copy(), judging.engine)
        world.sender_disk.fail(replace(FAULTS[kind], nth=nth))
        with contextlib.suppress(SpoolError, OSError):
            sender = world.sender()
            sender.claim()
            sender.end_what_is_done()
        if world.sender_disk.has_failed:
            judging.judge_fault(world, f"{story}, then {kind} at {nth} of the restart")
        return world.sender_disk.has_failed

    every_call(kinds, fails)


@pytest.mark.parametrize(
    ("name", "kinds"), few("bounced while held", "bounced one by one", seldom="a batch of two", kinds=FULL)
)
def test_a_shortage_delays_the_sender_only_while_it_lasts(
    name: str, kinds: Sequence[str], engine: OnModel
) -> None:
    base, story = prepared(engine=engine), STORIES[name]
    judging = Judge(engine)

    def fails(kind: str, nth: int) -> bool:
        world = World(base.after_kill(), engine=engine)
        sender = world.sender()
        sender.claim()
        world.listener().offer(*story.letters)
        sender.claim()
        sender.on_full = world.sender_disk.heal
        if story.meanwhile is not None:
            story.meanwhile(sender)
        world.sender_disk.fail(replace(FAULTS[kind], nth=nth))
        sender.settle_attempts(sorted(sender.queue), story.letters)
        has_failed = world.sender_disk.has_failed
        world.sender_disk.heal()
        judging.judge_fault(world, f"{name}, {kind} at {nth}")
        sender.claim()
        sender.drain()
        sender.spool.close()
        # The next start removes what a failed removal left.
        assert world.sender().claim() == []
        assert not engine.remains(world.sender_disk)
        return has_failed

    every_call(kinds, fails)
    assert judging.faults > 5


@pytest.mark.crash
def test_faults_drawn_from_a_seed_lose_nothing(
    crash_seed: int, crash_budget_s: float, engine: OnModel, tell: Callable[[str], None]
) -> None:
    """A run is killed, cut or failed somewhere; then every call of the restart fails in one way."""
    until = time.monotonic() + crash_budget_s / 4
    judging = Judge(engine)
    runs: dict[str, list[Snapshot]] = {}
    for number in itertools.count():
        rng = random.Random(f"{crash_seed}/{number}")
        name, kind = rng.choice(list(STORIES)), rng.choice(list(FAULTS))
        if name not in runs:
            runs[name] = STORIES[name].run(engine)
        snapshot = rng.choice(runs[name])
        if rng.random() < 0.2:
            fault = replace(FAULTS[rng.choice(list(FAULTS))], nth=rng.randint(1, 90))
            snapshot = _failed(name, fault, engine) or snapshot
        kept = rng.choice((killed, lambda snapshot, rng=rng: cuts(snapshot, rng, 12)))
        label, image = rng.choice(list(kept(snapshot)))
        story = f"RELAY_CRASH_SEED={crash_seed}, story {number}: {name}, {label}"
        _fail_recoveries(image, snapshot, [kind], judging, story)
        if time.monotonic() > until:
            break
    tell(f"spool: {judging.faults} drawn faults, seed {crash_seed}: nothing lost")


def _failed(name: str, fault: Fault, engine: OnModel) -> Snapshot | None:
    """Return the snapshot that a run with a failing call leaves when it is killed right after.

    Return None if a sync failed. A maildir repeats such a mark unless it is killed first. After that kill,
    the cache has what the disk lacks, and no start can know it (docs/guarantees.md, outside the model).
    """
    world = World(prepared(engine=engine), engine=engine)
    world.sender_disk.fail(fault)
    with contextlib.suppress(SpoolError, OSError):
        STORIES[name].play(world)
    steps = world.sender_disk.steps
    if any(step.startswith("sync") and then.startswith("  ") for step, then in itertools.pairwise(steps)):
        return None
    return Snapshot(world.sender_disk.platter, world.trace, f"{fault} of the run")
