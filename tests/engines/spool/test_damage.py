"""A file that is damaged, or that the disk does not give now: told, set aside, never sent wrong or dropped.

The walks know no file of any engine: they strike whatever files a spool has, one at a time, and start on
each image.  A status byte that becomes another status is the one damage that nothing tells
(docs/guarantees.md); no damage drawn here makes one.
"""

import errno
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from relay.mail.envelope import QueueId
from relay.spool.interface import INLINE_BYTES, Corrupt, Message, Spool, Totals
from relay.spool.message.message_file import HEADER_BYTES
from tests.engines.spool.engine import (
    BOUNCED,
    CONTENT,
    ENVELOPE,
    RELAYED,
    accept,
    again,
    note,
    recovered,
    taken,
)
from tests.engines.spool.log_engine import LogEngine
from tests.engines.spool.maildir_engine import MaildirEngine, on_the_kernel, on_the_model
from tests.engines.spool.recovering import recover
from tests.fakes.disk import Fault, ModelDisk
from tests.fakes.foreign import KINDS as FOREIGN
from tests.fakes.foreign import plant

ROOT = "/var/spool"
SECTOR_BYTES = 512
ENGINES = {"maildir": MaildirEngine, "log": LogEngine}

KINDS: dict[str, Callable[[bytes, int], bytes]] = {
    "a flipped bit": lambda whole, at: whole[:at] + bytes([whole[at] ^ 0x80]) + whole[at + 1 :],
    "a lost sector": lambda whole, at: (
        whole[:at].ljust(at + SECTOR_BYTES, b"\0") + whole[at + SECTOR_BYTES :]
    )[: len(whole)],
    "a cut": lambda whole, at: whole[:at],
    "an end of another": lambda whole, at: whole[:at] + whole[at:][::-1],
    "something behind it": lambda whole, at: whole + whole[at:] + b"?",
}
State = tuple[Message, bytes]


@dataclass
class Found:
    """What a start finds."""

    sound: dict[QueueId, State]
    told: list[str]
    corrupt: int


@dataclass
class Spoiled:
    """A spool at rest with a message in each state."""

    engine: str
    disk: ModelDisk
    known: dict[QueueId, State]
    ended: QueueId
    fresh: dict[QueueId, State]
    """What each message was before any mark."""

    def start(self, image: ModelDisk) -> Found:
        engine = ENGINES[self.engine](ROOT, image)
        spool = engine.start()
        try:
            sound = _sound(spool)
            return Found(sound, [name for name, _ in engine.told], spool.corrupt_count())
        finally:
            spool.close()

    def files(self, folder: str = ROOT) -> Iterator[str]:
        for name in sorted(self.disk.names(folder)):
            path = f"{folder}/{name}"
            if self.disk.inode(path) in self.disk.platter.names:
                yield from self.files(path)
            elif self.disk.length(path):
                yield path

    def is_as_it_was(self, queue_id: QueueId, state: State) -> bool:
        if state == self.known.get(queue_id):
            return True
        # A group of a log that is damaged voids what it said: mail comes again rather than never.
        return self.engine == "log" and state == self.fresh.get(queue_id)


def _sound(spool: Spool) -> dict[QueueId, State]:
    """Return what can be sent of the queue, read as the sender reads it."""
    queued = [entry.queue_id for entry in recover(spool).entries] + taken(spool)
    assert len(set(queued)) == len(queued)
    return _loaded(spool, queued)


def _loaded(spool: Spool, queue_ids: Sequence[QueueId]) -> dict[QueueId, State]:
    found = {}
    for queue_id in queue_ids:
        try:
            message = spool.load(queue_id)
            found[queue_id] = message._replace(next_attempt_at_ns=None), b"".join(spool.content(queue_id))
        except (Corrupt, OSError):
            continue
    return found


@pytest.fixture(scope="module", params=ENGINES)
def spoiled(request: pytest.FixtureRequest) -> Spoiled:
    engine = ENGINES[request.param](ROOT, ModelDisk())
    spool, intake = recovered(engine), engine.intake()
    partly, failed, held, ended = (accept(intake) for _ in range(4))
    long = accept(intake, content=b"Subject: long\r\n\r\n" + bytes(range(256)) * (INLINE_BYTES // 256))
    fresh = _sound(spool)
    spool.mark({partly: {0: RELAYED}, ended: dict.fromkeys(range(3), RELAYED)})
    spool.note({failed: [note(1)]})
    spool.mark({failed: {1: BOUNCED}})
    spool.hold(held)
    spool.finish([ended])
    spool = again(engine, spool)
    new = accept(intake, replace(ENVELOPE, recipients=("x@example.com",)), CONTENT * 9)
    spool.close()
    assert isinstance(engine.disk, ModelDisk)
    found = Spoiled(request.param, engine.disk.after_kill(), {}, ended, fresh)
    found.known = found.start(found.disk.after_kill()).sound
    assert found.known.keys() == {partly, failed, held, long, new}
    return found


def strike(spoiled: Spoiled, path: str, what: str, at: int) -> None:
    """Damage a file and start twice."""
    damaged = KINDS[what](spoiled.disk.peek(path), at)
    if damaged == spoiled.disk.peek(path):
        return
    image = spoiled.disk.after_kill()
    image.poke(path, damaged)
    if path.endswith("/format"):
        with pytest.raises(ValueError, match="does not know"):
            spoiled.start(image)
        assert image.peek(path) == damaged
        return
    found = spoiled.start(image)
    lost = spoiled.known.keys() - found.sound.keys()

    may_come_again = {spoiled.ended} if spoiled.engine == "log" else set()
    assert found.sound.keys() <= spoiled.known.keys() | may_come_again
    assert not [q for q, state in found.sound.items() if not spoiled.is_as_it_was(q, state)]
    assert bool(found.told) == bool(found.corrupt) >= bool(lost)
    if spoiled.engine == "maildir" or what == "a flipped bit":
        assert len(lost) <= 1
        assert lost <= set(found.told)
        assert not lost or spoiled.engine == "log" or _is_kept(image, damaged)
    after = spoiled.start(image.after_kill())
    assert (after.sound, after.corrupt) == (found.sound, found.corrupt)


def _is_kept(image: ModelDisk, damaged: bytes) -> bool:
    return any(damaged == image.peek(f"{ROOT}/corrupt/{name}") for name in image.names(f"{ROOT}/corrupt"))


@pytest.mark.parametrize(
    "places",
    [4, pytest.param(12, marks=pytest.mark.full), pytest.param(40, marks=pytest.mark.crash(least_s=60))],
)
def test_any_damage_to_any_file_is_told_and_costs_no_other_message(spoiled: Spoiled, places: int) -> None:
    for path in spoiled.files():
        rng, length = random.Random(path), spoiled.disk.length(path) or 0
        for what in KINDS:
            for at in sorted({rng.randrange(length) for _ in range(places)}):
                try:
                    strike(spoiled, path, what, at)
                except Exception as error:
                    raise AssertionError(f"{path}: {what} at {at}: {error!r}") from error


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("kind", ["read", "open"])
def test_a_file_that_the_disk_does_not_give_now_is_there_once_it_does(
    spoiled: Spoiled, kind: str, number: int
) -> None:
    """A start says so, or leaves that file alone: no other message waits, and none is taken for damaged."""
    started = 0
    for path in spoiled.files():
        image = spoiled.disk.after_kill()
        image.fail(Fault(1, number, kinds=frozenset({kind}), path=path, forever=True))
        engine = ENGINES[spoiled.engine](ROOT, image)
        engine.view = lambda image=image: image
        try:
            spool = engine.start()
            sound = _sound(spool)
        except OSError:
            image.die()
        else:
            started += 1
            lost = spoiled.known.keys() - sound.keys()
            # A segment of a log has many messages.
            assert len(lost) <= 1 or "/log/" in path
            assert bool(engine.told) >= bool(lost)
            image.heal()
            spool.clean_up()
            later = _loaded(spool, taken(spool))
            # What a start could not read of a segment is for the next one.
            assert sound | later == spoiled.known or "/log/" in path
            spool.close()
        found = spoiled.start(image.after_kill())
        assert (found.sound, found.corrupt) == (spoiled.known, 0)
    assert started or number == errno.EMFILE


@pytest.mark.parametrize("place", ["tmp", "new", "cur/07", "hold", "bounce"])
def test_nothing_that_lies_about_in_a_folder_stops_a_start_or_is_sent(tmp_path: Path, place: str) -> None:
    engine, victim = on_the_kernel(tmp_path), tmp_path / "victim"
    victim.write_text("untouched")
    recovered(engine).close()
    for number, kind in enumerate(FOREIGN):
        plant(Path(engine.root) / place / f"0123456789abcde{number}", kind, victim)
    (Path(engine.root) / place / "README").write_text("mine")
    queue_id = accept(engine.intake())

    spool = recovered(engine)
    assert list(_loaded(spool, taken(spool) or [queue_id])) == [queue_id]
    assert spool.corrupt_count() == len(spool.set_aside_files(99)) >= len(FOREIGN)
    assert [path.read_text() for path in (Path(engine.root) / "corrupt").glob("*README")] == ["mine"]
    assert victim.read_text() == "untouched"


def test_what_is_set_aside_replaces_nothing_and_is_listed_with_its_reason() -> None:
    engine = on_the_model()
    spool, intake = recovered(engine), engine.intake()
    one, other = accept(intake), accept(intake)
    taken(spool)
    spool = again(engine, spool)
    engine.plant(f"{engine.root}/corrupt/{one}", b"of an earlier day")
    engine.damage(one)
    with pytest.raises(Corrupt):
        spool.load(one)

    assert engine.names("corrupt") == [one, f"{one}.1"]
    assert engine.content_of(f"{engine.root}/corrupt/{one}") == b"of an earlier day"
    spool = again(engine, spool)
    listed = {file.name: file for file in spool.set_aside_files(9)}
    assert listed.keys() == {one, f"{one}.1"}
    assert "checksum" in listed[f"{one}.1"].reason
    assert spool.load(other).content == CONTENT


def test_damage_that_cannot_be_moved_is_not_sent_and_is_listed() -> None:
    engine = on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.close()
    engine.damage(queue_id)
    assert isinstance(engine.disk, ModelDisk)
    view = engine.disk.another()
    engine.view = lambda: view  # type: ignore[method-assign]  # the one whose calls fail
    view.fail(Fault(1, errno.EPERM, kinds=frozenset({"rename"}), path="/corrupt/", forever=True))

    spool = engine.start()
    assert _sound(spool) == {}
    assert [file.name for file in spool.set_aside_files(9)] == [queue_id]
    view.heal()
    spool.clean_up()
    assert (taken(spool), engine.names("corrupt"), spool.corrupt_count()) == ([], [queue_id], 1)


def test_an_operator_may_mend_a_message_and_bring_it_back_through_new() -> None:
    engine = on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.mark({queue_id: {0: RELAYED}})
    spool = again(engine, spool)
    path, aside = engine.layout.queued(queue_id), f"{engine.root}/corrupt/{queue_id}"
    middle = HEADER_BYTES + ((engine.disk.length(path) or 0) - HEADER_BYTES) // 2
    engine.damage(queue_id)
    with pytest.raises(Corrupt):
        spool.load(queue_id)
    spool.close()
    engine.flip(aside, middle)
    engine.disk.rename(aside, engine.layout.accepted(queue_id))

    spool = recovered(engine)
    assert (spool.load(queue_id).content, spool.load(queue_id).left) == (CONTENT, (1, 2))
    assert spool.totals() == Totals(accepted=3, relayed=1, queued=2)
