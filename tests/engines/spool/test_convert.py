"""A spool is converted whole, whichever way and wherever it is killed."""

import errno
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.mail.envelope import QueueId
from relay.policy.source import parse_policy
from relay.spool.convert import Converted, Leftover, convert
from relay.spool.disk.durable import Disk, RealDisk
from relay.spool.engines import ENGINES, engine_of, is_half_converted, open_spool, prepare_spool
from relay.spool.interface import Intake, Spool, SpoolBusy, SpoolFault, SpoolFull, Totals
from relay.spool.log.layout import segment_of
from tests.engines.spool.campaign import few_folders
from tests.engines.spool.carrying import STORIES, State, Story, play, state_of, stories
from tests.engines.spool.engine import accept
from tests.engines.spool.recovering import recover
from tests.engines.spool.test_crash import Killed
from tests.fakes.clock import FakeClock
from tests.fakes.disk import Fault, ModelDisk
from tests.fakes.platter import Model, Platter
from tests.unit.policy.examples import SMALL

ROOT = "/var/spool"
WAYS = [("maildir", "log"), ("log", "maildir")]
TOLD: list[tuple[str, str]] = []


def opened(engine: str, disk: Disk) -> Spool:
    return ENGINES[engine].spool(ROOT, disk, FakeClock(), lambda name, why: TOLD.append((name, why)))


def intake_of(engine: str, disk: Disk) -> Intake:
    return ENGINES[engine].intake(ROOT, disk, FakeClock())


def spool_of(engine: str, told: list[Story], model: Model = Model.ANY_SUBSET) -> ModelDisk:
    """Return a disk with a spool in which some stories happened; all of it is durable."""
    disk = ModelDisk(Platter(model))
    spool = opened(engine, disk)
    recover(spool)
    play(spool, intake_of(engine, disk.another()), told)
    spool.close()
    # Hints are durable by chance only: let that be so here.
    return ModelDisk(_settled(disk))


def _settled(disk: ModelDisk) -> Platter:
    times = dict(disk.platter.modified_at_ns)
    platter = disk.platter.after_cut(disk.platter.pending)
    platter.modified_at_ns = times
    return platter


def converted(disk: ModelDisk, target: str) -> Converted:
    return convert(ROOT, target, disk, FakeClock(), lambda *told: TOLD.append(told), wait=lambda _s: None)


def read(engine: str, disk: ModelDisk) -> State:
    spool = opened(engine, disk)
    try:
        return state_of(spool)
    finally:
        spool.close()


@pytest.fixture(autouse=True)
def _nothing_is_told() -> Iterator[None]:
    TOLD.clear()
    yield
    assert TOLD == []


@pytest.mark.parametrize(("source", "target"), WAYS)
def test_all_that_is_known_of_each_message_is_kept(source: str, target: str) -> None:
    disk = spool_of(source, STORIES)
    before = read(source, disk.after_kill())
    done = converted(disk, target)
    after = read(target, disk.after_kill())

    assert after == before
    assert before.gone
    assert (done.was, done.now, done.late) == (source, target, 0)
    assert done.carried.messages == len(before.messages)
    assert sorted(set(disk.names(ROOT)) & set(ENGINES[source].pieces)) == []
    assert "converting" not in disk.names(ROOT)


@pytest.mark.full
@pytest.mark.parametrize(("source", "target"), WAYS)
@given(st.lists(stories(), max_size=4))
def test_there_and_back_is_where_it_was(source: str, target: str, told: list[Story]) -> None:
    disk = spool_of(source, told)
    before = read(source, disk.after_kill())
    converted(disk, target)
    assert read(target, disk.after_kill()) == before
    converted(disk, source)
    assert read(source, disk.after_kill()) == before


FEW = [STORIES[2], replace(STORIES[3], is_held=True), STORIES[6]]
LONG = [STORIES[4], STORIES[7]]
STEP = 8
"""Of the calls at which a conversion is killed, every so-manieth at once."""


def killed_at(base: ModelDisk, nth: int, target: str) -> ModelDisk | None:
    """Convert until just before the nth call that changes something; None where there are fewer."""
    disk, calls = base.after_kill(), itertools.count(1)

    def before(_step: str) -> None:
        if next(calls) == nth:
            raise Killed

    disk.before = before
    try:
        converted(disk, target)
    except Killed:
        disk.before = None
        return disk
    return None


def images_of(disk: ModelDisk, rng: random.Random) -> Iterator[tuple[str, ModelDisk]]:
    """Yield what a new process finds: behind a kill, and behind losses of power."""
    yield "killed", disk.after_kill()
    yield "cut, nothing survives", ModelDisk(disk.platter.after_cut(()))
    yield "cut by chance", next(disk.cuts(rng, 1))


def without_hints(state: State) -> State:
    """Leave out what a cut of the model takes: each file's time, where the maildir has the hint."""
    kept = {
        q: replace(k, message=k.message._replace(next_attempt_at_ns=None)) for q, k in state.messages.items()
    }
    return replace(state, messages=kept)


def judge(image: ModelDisk, source: str, target: str, before: State) -> str:
    """Look whether a start finds all of the spool, and whether calling again goes on; say what was found."""
    found = engine_of(ROOT, image)
    assert found in (source, target)
    is_half = is_half_converted(ROOT, image)
    assert not (is_half and found == source)
    if not is_half:
        assert without_hints(read(found, image.after_kill())) == before
    if found == source:
        given_up = image.after_kill()
        converted(given_up, source)
        assert "converting" not in given_up.names(ROOT)
        assert without_hints(read(source, given_up)) == before
    converted(image, target)
    assert without_hints(read(target, image.after_kill())) == before
    assert not {"converting", *ENGINES[source].pieces} & set(image.names(ROOT))
    return "half" if is_half else found


def calls_of(base: ModelDisk, target: str) -> int:
    """Return how many calls a conversion makes that change something."""
    disk, made = base.after_kill(), list[str]()
    disk.before = made.append
    converted(disk, target)
    return len(made)


def images_of_two(base: ModelDisk, nth: int, target: str, rng: random.Random) -> list[tuple[str, ModelDisk]]:
    """Return what is found behind a first crash, and behind a second one while it goes on."""
    disk = killed_at(base, nth, target)
    if disk is None:
        return []
    found = list(images_of(disk, rng))
    label, image = rng.choice(found)
    if (again := killed_at(image, rng.randint(1, 80), target)) is not None:
        how, second = rng.choice(list(images_of(again, rng)))
        found.append((f"{label}, then {how}", second))
    return found


def kill_everywhere(source: str, target: str, told: list[Story], model: Model, first: int = 1) -> None:
    base = spool_of(source, told, model)
    before = without_hints(read(source, base.after_kill()))
    rng, met = random.Random(f"{source}/{model}"), set()
    judged, calls = 0, calls_of(base, target)
    for nth in sorted({*range(first, calls, STEP), *range(calls - 2, calls + 1)}):
        found = images_of_two(base, nth, target, rng)
        for story, image in found:
            try:
                met.add(judge(image, source, target, before))
            except Exception as error:
                raise AssertionError(f"at call {nth}, {story}: {error!r}") from error
            judged += 1
    assert judged > 40
    assert met == {source, target, "half"}


@pytest.mark.parametrize(
    "model", [pytest.param(Model.ANY_SUBSET, marks=pytest.mark.full), Model.TORN_RENAMES]
)
@pytest.mark.parametrize(("source", "target"), WAYS)
def test_a_conversion_killed_anywhere_goes_on(
    source: str, target: str, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_folders(monkeypatch)
    kill_everywhere(source, target, FEW, model)


Case = tuple[tuple[str, str], Model, list[Story], int]


@pytest.mark.crash
def test_a_conversion_killed_at_every_call_goes_on(
    monkeypatch: pytest.MonkeyPatch,
    drawn_in_time: Callable[[Iterable[Case], float], Iterator[tuple[int, Case]]],
) -> None:
    few_folders(monkeypatch)
    cases = itertools.product(WAYS, Model, [FEW, LONG], range(1, STEP + 1))
    for _, ((source, target), model, told, first) in drawn_in_time(cases, 0.2):
        kill_everywhere(source, target, told, model, first)


@pytest.mark.parametrize("told", [FEW, LONG], ids=["few", "long"])
@pytest.mark.parametrize(("source", "target"), WAYS)
def test_a_conversion_that_ended_outlives_the_power(
    source: str, target: str, told: list[Story], monkeypatch: pytest.MonkeyPatch
) -> None:
    few_folders(monkeypatch)
    disk = spool_of(source, told)
    before = without_hints(read(source, disk.after_kill()))
    converted(disk, target)
    image = ModelDisk(disk.platter.after_cut(()))
    assert (engine_of(ROOT, image), is_half_converted(ROOT, image)) == (target, False)
    assert "converting" not in image.names(ROOT)
    assert without_hints(read(target, image)) == before


def test_nothing_is_built_while_a_listener_takes_mail() -> None:
    disk = spool_of("log", FEW)
    listener = disk.another()
    accept(intake_of("log", listener))
    with pytest.raises(SpoolBusy):
        converted(disk, "maildir")
    assert (engine_of(ROOT, disk), "converting" in disk.names(ROOT)) == ("log", False)


@pytest.mark.parametrize(("source", "target"), WAYS)
def test_what_a_listener_accepts_meanwhile_is_there(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listener that outlived its relay gets 451, or its message is in the new spool."""
    few_folders(monkeypatch)
    base = spool_of(source, [STORIES[0]])
    outcomes = set()
    for nth in range(1, calls_of(base, target) + 1, 5):
        disk = base.after_kill()
        listener = disk.another()
        intake, calls, accepted = intake_of(source, listener), itertools.count(1), set[QueueId]()

        def before(
            _step: str,
            nth: int = nth,
            intake: Intake = intake,
            calls: "itertools.count[int]" = calls,
            accepted: set[QueueId] = accepted,
        ) -> None:
            if next(calls) == nth:
                draft = intake.draft()
                draft.append(b"Subject: late\r\n\r\n")
                (error,) = intake.accept([(draft, STORIES[0].envelope)])
                accepted.update([draft.queue_id] if error is None else [])

        disk.before = before
        try:
            done = converted(disk, target)
        except SpoolBusy:
            listener.die()
            done = converted(disk, target)
        found = read(target, disk.after_kill()).messages
        assert accepted <= set(found), f"at call {nth}"
        assert len(found) == 1 + len(accepted)
        outcomes.add((len(accepted), done.late))
    assert outcomes >= {(1, 1), (0, 0)}


@pytest.mark.parametrize(("source", "target"), WAYS)
def test_without_room_the_spool_is_as_it_was(source: str, target: str) -> None:
    disk = spool_of(source, STORIES)
    before = read(source, disk.after_kill())
    for nth in range(1, 60, 7):
        full = disk.after_kill()
        full.fail(Fault(nth, errno.ENOSPC, forever=True, path="/converting/", kinds=frozenset({"write"})))
        try:
            converted(full, target)
        except SpoolFull:
            full.heal()
            is_half = is_half_converted(ROOT, full)
            assert is_half or (engine_of(ROOT, full) == source and "converting" not in full.names(ROOT))
        again = full.after_kill()
        converted(again, target)
        assert read(target, again) == before


@pytest.mark.parametrize("source", ["maildir", "log"])
def test_a_spool_that_is_of_that_engine_already_stays(source: str) -> None:
    disk = spool_of(source, STORIES)
    before = read(source, disk.after_kill())
    assert converted(disk, source).carried.messages == 0
    assert read(source, disk.after_kill()) == before


def test_no_relay_starts_on_a_spool_between_two_engines(tmp_path: Path) -> None:
    disk, clock = RealDisk(), FakeClock()
    policy = parse_policy(
        SMALL.replace("spool: spool", "spool: {path: spool, engine: log}").encode(), tmp_path / "p"
    )
    open_spool(policy, disk, clock, lambda *_told: None).close()
    (policy.spool / "converting").mkdir()
    (policy.spool / "converting" / "format").write_bytes((policy.spool / "format").read_bytes())
    with pytest.raises(ValueError, match="relay spool convert"):
        prepare_spool(policy, disk)
    with pytest.raises(ValueError, match="relay spool convert"):
        open_spool(policy, disk, clock, lambda *_told: None)
    convert(str(policy.spool), "log", disk, clock, lambda *_told: None)
    open_spool(policy, disk, clock, lambda *_told: None).close()


def test_an_engine_that_there_is_not_is_refused() -> None:
    disk = spool_of("maildir", FEW)
    with pytest.raises(ValueError, match="no engine mbox"):
        converted(disk, "mbox")
    with pytest.raises(FileNotFoundError):
        converted(ModelDisk(), "log")


@pytest.mark.parametrize(("source", "target"), WAYS)
def test_a_damaged_message_is_set_aside_and_counted_as_still_there(source: str, target: str) -> None:
    if source == "log":
        disk = log_of_two()
        path, octets, others = listeners_segment(disk), b"alice@", b"elice@"
        totals = Totals(accepted=6, queued=6)
    else:
        disk = spool_of(source, [STORIES[0], STORIES[4]])
        path, octets, others = f"{ROOT}/hold/{disk.names(f'{ROOT}/hold')[0]}", b"\xe9", b"\xe8"
        totals = Totals(accepted=3, queued=3)
    disk.poke(path, disk.peek(path).replace(octets, others, 1))
    full = disk.after_kill()
    kinds = frozenset({"rename", "open_new"})
    full.fail(Fault(1, errno.ENOSPC, kinds=kinds, path="/corrupt/", forever=True))
    with pytest.raises(Leftover, match="cannot be read now"):
        converted(full, target)
    assert engine_of(ROOT, full) == source

    done = converted(disk, target)
    assert (done.carried.messages, done.carried.set_aside) == (1, 1)
    assert disk.names(f"{ROOT}/corrupt") == [TOLD[-1][0]]
    TOLD.clear()
    assert read(target, disk.after_kill()).totals == totals
    converted(disk, source)
    assert read(source, disk.after_kill()).totals == totals


def log_of_two() -> ModelDisk:
    """Return a disk with a log whose messages stand in a listener's stream."""
    disk = ModelDisk()
    spool, intake = opened("log", disk), intake_of("log", disk.another())
    recover(spool)
    for _ in range(2):
        accept(intake)
    spool.take(5)
    spool.close()
    return ModelDisk(_settled(disk))


def listeners_segment(disk: ModelDisk) -> str:
    (name,) = [name for name in disk.names(f"{ROOT}/log") if segment_of(name) and name[:6] != "sender"]
    return f"{ROOT}/log/{name}"


@pytest.mark.parametrize(("source", "target"), WAYS)
def test_a_read_that_fails_once_stops_the_conversion_or_nothing(source: str, target: str) -> None:
    disk = spool_of(source, [LONG[0]])
    before = read(source, disk.after_kill())
    (queue_id,) = before.messages
    outcomes = set()
    for nth in itertools.count(1):
        failing = disk.after_kill()
        failing.fail(Fault(nth, errno.EIO, kinds=frozenset({"read"}), path=queue_id))
        try:
            converted(failing, target)
            outcomes.add("done")
        except (Leftover, SpoolFault) as error:
            outcomes.add(type(error).__name__)
        TOLD.clear()
        if not failing.has_failed:
            break
        image = failing.after_kill()
        converted(image, target)
        assert read(target, image) == before, f"at read {nth}"
    assert outcomes >= {"done", "Leftover"}
