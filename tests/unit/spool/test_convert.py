"""A spool is converted whole, whichever way and wherever it is killed."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.spool.convert import Converted, convert
from relay.spool.durable import Disk
from relay.spool.engines import ENGINES, engine_of, is_half_converted
from relay.spool.interface import Intake, Spool
from tests.fakes.clock import FakeClock
from tests.fakes.disk import ModelDisk
from tests.fakes.platter import Model, Platter
from tests.unit.spool.campaign import few_folders
from tests.unit.spool.carrying import STORIES, State, Story, play, state_of, stories
from tests.unit.spool.test_crash import Killed

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
    spool.recover()
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


@pytest.mark.parametrize(("source", "target"), WAYS)
@given(st.lists(stories(), max_size=4))
@settings(max_examples=25, deadline=None)
def test_there_and_back_is_where_it_was(source: str, target: str, told: list[Story]) -> None:
    disk = spool_of(source, told)
    before = read(source, disk.after_kill())
    converted(disk, target)
    assert read(target, disk.after_kill()) == before
    converted(disk, source)
    assert read(source, disk.after_kill()) == before


FEW = [STORIES[2], replace(STORIES[3], is_held=True), STORIES[6]]
LONG = [STORIES[4], STORIES[7]]
SHORT_STEP = 5
"""Of the calls at which a conversion is killed, every so-manieth in the short form."""


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
        q: replace(k, message=replace(k.message, next_attempt_at_ns=None)) for q, k in state.messages.items()
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
    converted(image, target)
    assert without_hints(read(target, image.after_kill())) == before
    assert "converting" not in image.names(ROOT)
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


def kill_everywhere(source: str, target: str, told: list[Story], model: Model, step: int) -> None:
    base = spool_of(source, told, model)
    before = without_hints(read(source, base.after_kill()))
    rng, met = random.Random(f"{source}/{model}"), set()
    judged, calls = 0, calls_of(base, target)
    for nth in sorted({*range(1, calls, step), *range(calls - 2, calls + 1)}):
        found = images_of_two(base, nth, target, rng)
        for story, image in found:
            try:
                met.add(judge(image, source, target, before))
            except Exception as error:
                raise AssertionError(f"at call {nth}, {story}: {error!r}") from error
            judged += 1
    assert judged > 60
    assert met == {source, target, "half"}


@pytest.mark.parametrize("model", [Model.ANY_SUBSET, Model.TORN_RENAMES])
@pytest.mark.parametrize(("source", "target"), WAYS)
def test_a_conversion_killed_anywhere_goes_on(
    source: str, target: str, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_folders(monkeypatch)
    kill_everywhere(source, target, FEW, model, SHORT_STEP)


@pytest.mark.crash
@pytest.mark.parametrize("told", [FEW, LONG], ids=["few", "long"])
@pytest.mark.parametrize("model", Model)
@pytest.mark.parametrize(("source", "target"), WAYS)
def test_a_conversion_killed_at_every_call_goes_on(
    source: str, target: str, model: Model, told: list[Story], monkeypatch: pytest.MonkeyPatch
) -> None:
    few_folders(monkeypatch)
    kill_everywhere(source, target, told, model, 1)
