"""Conversion of a spool to another engine: no message changes, whichever call is killed or cut."""

import errno
import itertools
import random
from collections.abc import Callable

import pytest

from relay.spool.convert import Converted, convert
from relay.spool.engines import ENGINES, engine_of
from relay.spool.interface import Full, Message, Spool, Unavailable
from tests.engines.spool.engine import claimed, fill
from tests.fakes.clock import FakeClock
from tests.fakes.disk import Fault, ModelDisk

ROOT = "/var/spool"
BOTH = pytest.mark.parametrize(("was", "now"), [("maildir", "log"), ("log", "maildir")])


def opened(disk: ModelDisk, engine: str) -> Spool:
    def nothing_is_damaged(name: str, why: str) -> None:
        raise AssertionError(f"{name}: {why}")

    return ENGINES[engine].spool(ROOT, disk, FakeClock(), nothing_is_damaged)


def filled(engine: str) -> ModelDisk:
    disk = ModelDisk()
    fill(opened(disk, engine), ENGINES[engine].intake(ROOT, disk.another(), FakeClock()))
    return ModelDisk(disk.platter.after_cut(disk.platter.pending))


def state_of(disk: ModelDisk) -> list[tuple[Message, bytes]]:
    """Return all messages and contents, as read by the current engine on a copy of the disk."""
    disk = disk.after_kill()
    return told_by(opened(disk, engine_of(ROOT, disk) or ""))


def told_by(spool: Spool) -> list[tuple[Message, bytes]]:
    found = [(each, b"".join(spool.content(each.queue_id))) for each in claimed(spool)]
    spool.close()
    return [(message._replace(next_attempt_at_ns=None), content) for message, content in found]


def converted(disk: ModelDisk, to: str) -> Converted:
    return convert(ROOT, to, disk, FakeClock(), lambda _name, _why: None)


@BOTH
@pytest.mark.parametrize("each", [9, pytest.param(1, marks=pytest.mark.full)])
def test_a_kill_or_cut_at_any_call_of_a_conversion_changes_no_message(was: str, now: str, each: int) -> None:
    base = filled(was)
    before, rng = state_of(base), random.Random(1)
    disk, images = base.after_kill(), dict[object, ModelDisk]()

    def keep() -> None:
        for image in (disk.after_kill(), *disk.cuts(rng, 2)):
            images.setdefault(image.platter.fingerprint(), image)

    disk.after = keep
    done = converted(disk, now)
    assert (done.was, done.now, done.messages, done.held) == (was, now, len(before), 1)
    assert done.recipients == sum(len(message.left) for message, _ in before)
    assert set(disk.names(ROOT)) <= {*ENGINES[now].pieces, "format", "lock", "intakes", "corrupt"}
    engines = set()
    for number, image in enumerate([*images.values()][::each]):
        engines.add(engine_of(ROOT, image))
        assert state_of(image) == before
        if number % 5 == 0:
            converted(image, now)
            assert (engine_of(ROOT, image), state_of(image)) == (now, before)
    assert engines == {was, now}


@BOTH
@pytest.mark.parametrize("each", [9, pytest.param(1, marks=pytest.mark.full)])
def test_a_disk_failure_at_any_call_leaves_the_old_or_the_new_spool(was: str, now: str, each: int) -> None:
    base, seen = filled(was), set[object]()
    before = state_of(base)
    for nth in itertools.count(1, each):
        disk = base.after_kill()
        disk.fail(Fault(nth, errno.ENOSPC if nth % 2 else errno.EIO))
        try:
            converted(disk, now)
        except (Full, Unavailable, OSError):
            assert disk.has_failed
        if not disk.has_failed:
            break
        disk.die()
        if (found := disk.platter.fingerprint()) in seen:
            continue
        seen.add(found)
        assert state_of(disk) == before
        disk.heal()
        converted(disk, now)
        assert (engine_of(ROOT, disk), state_of(disk)) == (now, before)
    assert nth > 50


@BOTH
@pytest.mark.parametrize("opens", [opened, lambda disk, was: ENGINES[was].intake(ROOT, disk, FakeClock())])
def test_a_process_that_read_the_format_before_a_conversion_is_refused_after_it(
    was: str, now: str, opens: Callable[[ModelDisk, str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = filled(was)
    before, view = state_of(disk), disk.another()
    lock = view.lock

    def converts_first(path: str, *, wait: bool, is_shared: bool = False) -> int | None:
        converted(disk, now)
        return lock(path, wait=wait, is_shared=is_shared)

    monkeypatch.setattr(view, "lock", converts_first)
    with pytest.raises(ValueError, match="this engine needs"):
        opens(view, was)
    assert (engine_of(ROOT, disk), state_of(disk)) == (now, before)
    assert ENGINES[now].intake(ROOT, disk, FakeClock()).room() > 0


def test_a_missing_spool_or_an_unknown_engine_cannot_be_converted() -> None:
    with pytest.raises(FileNotFoundError):
        converted(ModelDisk(), "log")
    disk = filled("maildir")
    with pytest.raises(ValueError, match="unknown engine mbox"):
        converted(disk, "mbox")
    disk.poke(f"{ROOT}/format", b"relay spool 9 mbox\n")
    with pytest.raises(ValueError, match="relay spool 9 mbox"):
        converted(disk, "log")
