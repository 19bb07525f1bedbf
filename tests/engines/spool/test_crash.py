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
import re
import time
from collections.abc import Callable

import pytest

from relay.mail.envelope import QueueId
from relay.spool.interface import Entry, SpoolFault
from relay.spool.maildir import ledger_file
from relay.spool.maildir.layout import FORMAT, Layout, prepare
from tests.engines.spool.campaign import few_folders
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
from tests.engines.spool.plays import prepared
from tests.engines.spool.world import ROOT, Letter, Snapshot, World
from tests.fakes.disk import Fault, ModelDisk
from tests.fakes.platter import Model

CUTS_AT_ONCE = 6
TOLD = (Letter(({0: RELAYED},)), Letter(({0: BOUNCED},)))


class Killed(BaseException):
    """The process is gone in the middle of a call."""


SOME = ("held and released together", "warned, then bounced", "bounced, the first report waits", "spilled")
"""Of the scenarios, what the small ones do not have: in each run."""
EACH = [*SOME, *(pytest.param(name, marks=pytest.mark.full) for name in SCENARIOS if name not in SOME)]


@pytest.fixture(autouse=True)
def _few_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    few_folders(monkeypatch)


@pytest.mark.parametrize("name", EACH)
def test_a_power_cut_at_any_instant_loses_nothing(name: str) -> None:
    cut_on_each_model(name, run_of, Judge(), CUTS_AT_ONCE)


@pytest.mark.parametrize("name", EACH)
def test_a_kill_at_any_instant_loses_nothing(name: str) -> None:
    judge = Judge()
    judge.judge(run_of(name), killed, story=name)


@pytest.mark.parametrize("model", Model)
def test_the_first_start_of_all_may_be_cut_or_killed_too(model: Model) -> None:
    judge, rng = Judge(), random.Random(1)
    snapshots = run_of("bounced", model, from_nothing=True)

    judge.judge(snapshots, lambda snapshot: cuts(snapshot, rng, 2), story="from nothing")


def test_what_a_killed_start_left_is_durable_before_any_mail() -> None:
    """The folders, and which format the spool is of: else another version may start in it."""
    for snapshot in run_of("relayed", from_nothing=True):
        ((_, image),) = killed(snapshot)
        prepare(ROOT, image)
        _, cut = next(prefixes(Snapshot(image.platter, snapshot.trace, snapshot.step)))
        assert not [folder for folder in ("/var", *Layout(ROOT).folders()) if not _is_there(cut, folder)]
        assert cut.peek(Layout(ROOT).file("format")) == FORMAT


def test_a_start_that_is_killed_twice_has_durable_folders_too() -> None:
    """Its format must not come before the names above it: who finds the format may look no further."""
    for snapshot in run_of("relayed", from_nothing=True):
        if not snapshot.step.startswith("make_directory"):
            continue
        ((_, image),) = killed(snapshot)
        again: list[ModelDisk] = []
        image.after = lambda image=image, again=again: again.append(image.after_kill())
        prepare(ROOT, image)
        for disk in again:
            prepare(ROOT, disk)
            cut = ModelDisk(disk.platter.after_cut(()))
            assert not [folder for folder in ("/var", *Layout(ROOT).folders()) if not _is_there(cut, folder)]


def _is_there(disk: ModelDisk, path: str) -> bool:
    parent = path.rpartition("/")[0]
    return not path or (_is_there(disk, parent) and disk.inode(path) is not None)


def test_a_lost_ledger_costs_its_figures_and_nothing_else() -> None:
    judge, rng = Judge(counts=False), random.Random(1)
    # The report is relayed in the end: then its message must not come back and report again.
    for snapshot in run_of("bounced")[-10:]:
        for label, image in cuts(snapshot, rng, 48):
            if image.inode(f"{ROOT}/ledger") is not None:
                image.unlink(f"{ROOT}/ledger")
                image.sync_directory(ROOT)
            judge.go_on(image, snapshot, f"{label}, without the ledger")


def test_a_ledger_rewritten_while_messages_end_counts_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledger_file, "LINES_BEFORE_REWRITE", 0)
    judge, rng = Judge(), random.Random(4)
    snapshots = run_of("two bounced")
    monkeypatch.undo()

    judge.judge(snapshots, lambda snapshot: cuts(snapshot, rng, 3), story="rewritten at every end")


def test_a_kill_at_the_end_and_a_cut_at_the_start_keep_count() -> None:
    judge, rng = Judge(), random.Random(5)
    for snapshot in run_of("relayed"):
        if re.match("write .*/ledger.new ", snapshot.step) and snapshot.trace.finishing:
            ((label, image),) = killed(snapshot)
            again = judge.go_on(image, snapshot, label, record=True)
            judge.judge(again[:40], prefixes, story=label)
            # Also what a removal leaves that is on the disk before the line that tells of it.
            judge.judge(again[:40], lambda s: cuts(s, rng, 24), story=label)
    assert judge.judged > 20


def test_a_mark_whose_sync_failed_is_written_again_by_recovery() -> None:
    """After a failed sync everybody reads what the disk does not have, and the next sync says all is well."""
    world = World(prepared())
    sender = world.sender()
    sender.recover()
    (queue_id,) = world.listener().offer(Letter(({},), 2))
    assert queue_id is not None
    sender.take()
    world.sender_disk.fail(Fault(1, errno.EIO, kinds=frozenset({"sync_content"})))
    with pytest.raises(SpoolFault):
        sender.spool.mark({queue_id: {0: RELAYED}})

    image = world.sender_disk.after_kill()
    (before,) = World(image).sender().recover().entries
    (after,) = World(next(image.prefixes())).sender().recover().entries
    assert before.recipients_left == after.recipients_left == 1


@pytest.mark.parametrize("model", Model)
@pytest.mark.parametrize("name", ["a batch of two", "held and released"])
def test_what_recovery_returned_survives_the_next_cut(name: str, model: Model, engine: OnModel) -> None:
    """A killed sender leaves in memory what everybody can see and the disk does not have."""
    for snapshot in run_of(name, model, engine=engine):
        ((_, image),) = killed(snapshot)
        sender = World(image, engine=engine).sender()
        before, totals = sender.recover().entries, sender.spool.totals()
        # Nothing of what is pending survives.
        _, cut = next(prefixes(Snapshot(image.platter, snapshot.trace, snapshot.step)))
        sender = World(cut, engine=engine).sender()
        after = sender.recover().entries
        assert [_without_hint(entry) for entry in before] == [_without_hint(entry) for entry in after]
        assert sender.spool.totals() == totals


def _without_hint(entry: Entry) -> Entry:
    return entry._replace(next_attempt_at_ns=None)


@pytest.mark.parametrize("name", ["bounced", "held and released", "relayed, and its sender is told"])
def test_a_cut_or_a_kill_during_recovery_changes_nothing(name: str) -> None:
    judge, rng = Judge(), random.Random(name)
    for snapshot in rng.sample(run_of(name), 8):
        images = [*killed(snapshot), *itertools.islice(cuts(snapshot, rng, 4), 1, 3)]
        for label, image in images:
            story = f"{name}, {label}"
            again = judge.go_on(image, snapshot, story, record=True)
            some = rng.sample(again, min(len(again), 8))
            judge.judge(some, killed, story=story)
            judge.judge(some, lambda s: cuts(s, rng, 4), story=story)


def _offer_with(world: World, nth: int) -> set[QueueId]:
    """Offer messages while a sender does all it can just before the nth call; return what it took."""
    listener, count, taken = world.listener(), itertools.count(1), set[QueueId]()

    def before(_step: str) -> None:
        if next(count) == nth:
            sender = world.sender()
            taken.update(entry.queue_id for entry in sender.recover().entries)
            assert sender.spool.clean_up() == 0
            taken.update(sender.take())
            sender.drain()
            sender.spool.close()

    world.listener_disk.before = before
    listener.offer(*TOLD)
    world.listener_disk.before = None
    return taken


CALLS_OF_AN_OFFER = range(1, 12)


@pytest.mark.parametrize("fault_at", [0, *CALLS_OF_AN_OFFER])
def test_nothing_is_taken_that_its_listener_may_take_back(fault_at: int) -> None:
    taken_early = False
    for nth in CALLS_OF_AN_OFFER:
        world = World(prepared())
        if fault_at:
            world.listener_disk.fail(Fault(fault_at, errno.EIO))
        taken = _offer_with(world, nth)
        assert taken <= world.trace.accepted
        taken_early = taken_early or bool(taken)
        world.listener_disk.die()
        sender = world.sender()
        sender.recover()
        sender.take()
        assert sender.queue == world.trace.accepted - taken
    # It does take one that is decided while the rest of its batch is tidied up.
    assert taken_early or fault_at


@pytest.mark.parametrize("model", Model)
def test_a_listener_that_is_killed_leaves_whole_messages_or_none(model: Model) -> None:
    """The sender lives on, relays what it finds, and only then the power goes."""
    judge, rng, base = Judge(), random.Random(3), prepared(model)
    for nth in itertools.count(1):
        world, count = World(base.after_kill()), itertools.count(1)
        sender = world.sender()
        sender.recover()

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
        sender.take()
        # One after the other: the ledger of the first is durable while the second is still queued.
        for queue_id, fate in zip(sorted(sender.queue), (RELAYED, BOUNCED), strict=False):
            sender.settle({queue_id: {0: fate}})
        sender.take()
        sender.drain()
        sender.spool.clean_up()
        assert world.sender_disk.names(f"{ROOT}/tmp") == []
        if model is Model.ANY_SUBSET:
            judge.judge(world.snapshots, prefixes, story=f"listener killed at {nth}")
        judge.judge(world.snapshots, lambda s: cuts(s, rng, 2), story=f"listener killed at {nth}")
    assert nth > 10


def test_a_killed_senders_report_is_durable_before_its_mail_goes() -> None:
    """Killed between the report's link and the sync of its folder: the next one finds it there."""
    judge = Judge()
    linked = next(s for s in run_of("bounced") if re.match("link .*/[^/]{17}$", s.step))
    ((label, image),) = killed(linked)
    again = judge.go_on(image, linked, label, record=True)

    removed = [s for s in again if s.step.startswith("sync_directory") and "/cur/" in s.step]
    assert removed
    judge.judge(removed, prefixes, story=label)


def _story(rng: random.Random, judge: Judge) -> None:
    """Draw one run and cut it several times."""
    name, model = rng.choice(list(SCENARIOS)), rng.choice(list(Model))
    snapshots: list[Snapshot] = run_of(name, model, from_nothing=rng.random() < 0.1)
    story = f"{name} ({model.name})"
    for _ in range(rng.choice((1, 2, 2, 3, 4))):
        snapshot = rng.choice(snapshots)
        kind = rng.choice((prefixes, killed, lambda s: cuts(s, rng, 24)))
        label, image = rng.choice(list(kind(snapshot)))
        story = f"{story}, {label}"
        snapshots = judge.go_on(image, snapshot, story, record=True)


@pytest.mark.crash
def test_stories_of_several_cuts_lose_nothing(
    tell: Callable[[str], None], crash_seed: int, crash_budget_s: float
) -> None:
    until, judge = time.monotonic() + crash_budget_s / 10, Judge()
    for number in itertools.count():
        try:
            _story(random.Random(f"{crash_seed}/{number}"), judge)
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
