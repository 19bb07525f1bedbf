"""The log engine: the common suite, and tests of what only the log has.

That is the checkpoint, the removal of segments, damage, and a full disk. The crash and fault suites also run
on the log, with long segments and with short ones.
"""

import contextlib
import errno
import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import RealDisk
from relay.spool.identity import report_id
from relay.spool.interface import Full, Intake, Message, Report, Settlement, Spool, Status, Unavailable
from relay.spool.log.record import sealed
from tests.engines.spool.conformance import Conformance, FailingConformance
from tests.engines.spool.engine import (
    BOUNCED,
    ENVELOPE,
    LOG,
    RELAYED,
    REPORT,
    LogOnModel,
    OnDisk,
    accept,
    bounced,
    claimed,
    ended,
    note,
    read,
    settle,
)
from tests.fakes.disk import READS, Fault, Killed, ModelDisk

ROOT = "/var/spool"
CONTENT = b"Subject: minutes\r\n\r\n" + b"All agreed.\r\n" * 20


class TestLogOnTheModel(FailingConformance):
    @pytest.fixture
    def engine(self) -> OnDisk:
        return OnDisk(LOG, ModelDisk())


@pytest.mark.full
class TestLogOnTheKernel(Conformance):
    @pytest.fixture
    def engine(self, tmp_path: Path) -> OnDisk:
        return OnDisk(LogOnModel(str(tmp_path / "spool")), RealDisk())


class Life(OnDisk):
    """A listener and an owner on one disk; faults of `disk` hit the owner."""

    disk: ModelDisk

    def __init__(self, disk: ModelDisk, segment_bytes: int = 4000, checkpoint_bytes: int = 8000) -> None:
        self.lengths = segment_bytes, checkpoint_bytes
        super().__init__(LogOnModel(ROOT, self.lengths), disk)
        self.most_bytes = 0
        """The size of the log before the last checkpoint."""

    def start(self) -> Spool:
        return self.kind.spool(self.disk, self.clock, self.tell)

    def listener(self, view: ModelDisk) -> Intake:
        return self.kind.listener(view, self.clock, random.Random(3).randbytes)

    def age(self, rounds: int) -> list[Message]:
        """Let mail come and go; return what is left: a held and half done message of each round."""
        spool, intake = self.start(), self.intake()
        claimed(spool)
        for _ in range(rounds):
            for _ in range(10):
                accept(intake, content=CONTENT)
            first, *others = claimed(spool)
            settle(spool, *ended(*(each.queue_id for each in others)))
            marks = {0: RELAYED, 2: BOUNCED}
            settle(spool, Settlement(first.queue_id, ENVELOPE, marks, [note(2)], is_held=True))
        folder = f"{ROOT}/log"
        self.most_bytes = sum(self.disk.length(f"{folder}/{name}") or 0 for name in self.disk.names(folder))
        intake.close()
        spool.close()
        return claimed(self.again(self.disk.after_kill()).start())

    def again(self, disk: ModelDisk) -> "Life":
        return Life(disk, *self.lengths)

    def check(self, image: ModelDisk, left: Sequence[Message], *, told: int = 0) -> None:
        """Fail unless two starts on the image find these messages, and tell of so much damage at most."""
        life = self.again(image)
        for _ in range(2):
            spool = life.start()
            assert claimed(spool) == left
            spool.close()
        assert len(life.told) <= told


def segments(disk: ModelDisk, stream: str = "") -> list[str]:
    names = sorted(disk.names(f"{ROOT}/log"))
    return [f"{ROOT}/log/{name}" for name in names if name[-1].isdigit() and name.startswith(stream)]


@pytest.mark.parametrize(("segment_bytes", "checkpoint_bytes"), [(4000, 8000), (20_000, 3000)])
def test_held_messages_keep_at_most_twice_their_own_octets_of_ended_mail(
    segment_bytes: int, checkpoint_bytes: int
) -> None:
    life = Life(ModelDisk(), segment_bytes, checkpoint_bytes)
    left = life.age(40)
    assert [(message.statuses, message.notes, message.is_held) for message in left] == [
        ((RELAYED, Status.TODO, BOUNCED), (note(2),), True)
    ] * 40
    live_bytes = sum(len(message.content or b"") + 600 for message in left)
    assert life.most_bytes < 3 * live_bytes + 4 * segment_bytes + 2 * checkpoint_bytes


def test_a_checkpoint_may_be_missing_or_damaged() -> None:
    life = Life(ModelDisk())
    left = life.age(8)
    paths = [f"{ROOT}/log/checkpoint", f"{ROOT}/log/checkpoint.copy"]
    for path in paths:
        image = flipped(life.disk.after_kill(), path, 40)
        unreadable = life.disk.after_kill()
        unreadable.poke(path, sealed(b"what nobody wrote"))
        life.check(unreadable, left, told=1)
        life.check(image, left, told=1)
        # The checkpoint is rewritten whole and the damaged one is kept. The copy is not read.
        assert image.peek(paths[0]) == image.peek(paths[1])
        image.unlink(path)
        life.check(image, left, told=1)
    # While no segment was removed, a start without a checkpoint reads everything again.
    young = Life(ModelDisk(), 1_000_000, 1_000_000)
    left = young.age(4)
    for path in paths:
        young.disk.unlink(path)
    young.check(young.disk, left)


def flipped(disk: ModelDisk, path: str, at: int) -> ModelDisk:
    raw = disk.peek(path)
    disk.poke(path, raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
    return disk


def test_a_start_keeps_damaged_octets_and_loses_no_other_message() -> None:
    life = Life(ModelDisk(), 1_000_000, 1_000_000)
    intake = life.intake()
    queue_ids = [accept(intake, content=CONTENT) for _ in range(6)]
    spool = life.start()
    found = claimed(spool)
    settle(spool, *ended(queue_ids[5]))
    for queue_id in queue_ids[:2]:
        settle(spool, Settlement(queue_id, ENVELOPE, {1: RELAYED}))
    for path in segments(life.disk):
        size = life.disk.length(path) or 0
        for at in range(0, size, 173):
            image = flipped(life.disk.after_kill(), path, at)
            again = Life(image, 1_000_000, 1_000_000)
            spool = again.start()
            listed = {message.queue_id: message for message in claimed(spool)}
            is_room = "sender" in path and image.peek(path)[at:].strip(b"\0") in (b"", b"\1")
            missing = set(queue_ids[:5]) - set(listed)
            assert len(missing) <= (0 if "sender" in path else 1)
            assert all(m.content == CONTENT and m.envelope == ENVELOPE for m in listed.values())
            if again.told:
                assert image.names(f"{ROOT}/corrupt")
                assert spool.look().corrupt >= 1
            assert bool(again.told) or is_room or "sender" in path or not missing
            spool.close()
            # Damage is reported once, and a damaged segment is never removed.
            told = len(again.told)
            spool = again.start()
            assert {message.queue_id for message in claimed(spool)} == set(listed)
            settle(spool, *ended(*listed))
            spool.close()
            assert len(again.told) == told
            assert (path in segments(image)) is bool(told)
    assert len(found) == 6


@pytest.mark.parametrize("dies", [False, True])
def test_damage_of_a_listeners_last_message_is_not_taken_for_a_torn_write(*, dies: bool) -> None:
    life = Life(ModelDisk())
    view = life.disk.another()
    life.start().close()
    intake = life.listener(view)
    first, last = (accept(intake, content=CONTENT) for _ in range(2))
    if dies:
        view.die()
    (path,) = segments(life.disk)
    flipped(life.disk, path, (life.disk.length(path) or 0) - 100)
    assert [message.queue_id for message in claimed(life.start())] == [first]
    assert len(life.told) == len(life.disk.names(f"{ROOT}/corrupt")) == 1
    assert last.encode() in life.disk.peek(f"{ROOT}/corrupt/{life.disk.names(f'{ROOT}/corrupt')[0]}")


def test_an_end_does_not_count_if_its_report_is_damaged() -> None:
    life = Life(ModelDisk(), 100_000, 100_000)
    spool, (message, other) = begun(life, 2)
    settle(spool, bounced(message.queue_id))
    # A damaged last group would be taken for one that a crash tore.
    settle(spool, *ended(other.queue_id))
    (path,) = segments(life.disk, "sender")
    image = flipped(life.disk.after_kill(), path, life.disk.peek(path).index(b"sorry"))
    again = Life(image, 100_000, 100_000)
    (found,) = claimed(again.start())
    assert (found.queue_id, found.left, found.notes) == (message.queue_id, (), (note(1),))
    assert found.owed_report is not None
    assert len(again.told) == 1


def begun(life: Life, count: int) -> tuple[Spool, list[Message]]:
    intake, spool = life.intake(), life.start()
    for _ in range(count):
        accept(intake, content=CONTENT)
    return spool, claimed(spool)


def test_a_full_disk_leaves_settlements_undone_but_marks_relayed_recipients() -> None:
    life = Life(ModelDisk(), 100_000, 100_000)
    spool, (first, second) = begun(life, 2)
    settle(spool, Settlement(second.queue_id, ENVELOPE, {0: RELAYED}))
    asked = [bounced(first.queue_id), Settlement(second.queue_id, ENVELOPE, is_held=True)]
    life.disk.fail(Fault(1, errno.ENOSPC, kinds=frozenset({"write"}), is_short=True))
    assert [type(failure) for failure in spool.settle(asked)] == [Full, Full]
    life.disk.heal()
    for image in (life.disk.after_kill(), ModelDisk(life.disk.platter.after_cut(()))):
        again = Life(image, 100_000, 100_000)
        one, two = claimed(again.start())
        assert one.statuses == (RELAYED, Status.TODO, RELAYED)
        assert (one.notes, two.is_held, two.left) == ((), False, (1, 2))
        assert not again.told
    # Later writes go to the same segment.
    assert len(segments(life.disk, "sender")) == 1
    assert spool.settle(asked) == [None, None]
    assert [message.queue_id for message in claimed(spool)] == [report_id(first.queue_id)]


def test_leftovers_of_a_full_disk_never_complete_a_group_that_a_crash_tore() -> None:
    """Otherwise a message would be marked as reported, while its report, behind the group's end, is lost."""
    life, rng = Life(ModelDisk(), 1_000_000, 1_000_000), random.Random(5)
    spool, (first, *others) = begun(life, 42)
    settle(spool, Settlement(first.queue_id, ENVELOPE, {0: BOUNCED, 1: RELAYED, 2: RELAYED}, [note(0)]))
    # The report exceeds the room left in the segment.
    report = Report(report_id(first.queue_id), REPORT, bytes(100_000))
    holds = [Settlement(message.queue_id, ENVELOPE, is_held=True) for message in others]
    told = Settlement(first.queue_id, ENVELOPE, report=report, told=[0], ends=True)
    fault = Fault(1, errno.ENOSPC, kinds=frozenset({"write"}), is_short=True, forever=True)
    life.disk.fail(fault)
    assert all(isinstance(failure, Full) for failure in spool.settle([*holds[:20], told]))
    life.disk.heal()
    life.disk.before = lambda step: images.extend(life.disk.cuts(rng, 120)) if "sync" in step else None
    images: list[ModelDisk] = []
    settle(spool, *holds[20:])
    assert len(images) > 100
    for image in images:
        again = Life(image, 1_000_000, 1_000_000)
        message = claimed(again.start())[0]
        assert (message.queue_id, message.told, message.notes) == (first.queue_id, frozenset(), (note(0),))


@pytest.mark.parametrize("kind", ["sync", "sync_content", "write", "open_new", "sync_directory"])
def test_leftovers_of_a_failed_call_are_void_after_the_next_settlement(kind: str) -> None:
    life = Life(ModelDisk(), 100_000, 100_000)
    spool, messages = begun(life, 3)
    if kind == "sync_content":
        settle(spool, Settlement(messages[2].queue_id, ENVELOPE, {0: RELAYED}))
    life.disk.fail(Fault(1, errno.EIO, forever=True, kinds=frozenset({kind, "truncate", "unlink"})))
    (failure,) = spool.settle(ended(messages[0].queue_id))
    assert isinstance(failure, Unavailable)
    life.disk.heal()
    settle(spool, *ended(messages[1].queue_id))
    assert read(spool, messages[0].queue_id).left == (0, 1, 2)
    for image in (life.disk.after_kill(), *life.disk.cuts(random.Random(0), 64)):
        again = Life(image, 100_000, 100_000)
        assert [m.queue_id for m in claimed(again.start())] == [messages[0].queue_id, messages[2].queue_id]
        assert not again.told


def test_marks_survive_restarts_of_the_owner_while_the_listener_lives() -> None:
    life = Life(ModelDisk(), 1000, 1)
    intake, spool = life.intake(), life.start()
    assert claimed(spool) == []
    for _ in range(10):
        queue_id = accept(intake, content=CONTENT)
        (message,) = claimed(spool)
        settle(spool, Settlement(queue_id, ENVELOPE, {0: RELAYED}))
        spool.close()
        spool = life.start()
        *_, message = claimed(spool)
        assert (message.queue_id, message.left) == (queue_id, (1, 2))
    intake.close()
    spool.close()
    spool = life.start()
    everything = [message.queue_id for message in claimed(spool)]
    assert len(everything) == 10
    settle(spool, *ended(*everything))
    spool.close()
    # After the listener ended, no file of it is left.
    assert [name for name in life.disk.names(f"{ROOT}/log") if not name.startswith(("sender", "check"))] == []


@pytest.mark.parametrize("segment_bytes", [1, 100_000])
def test_at_any_instant_an_owner_claims_exactly_the_accepted_messages(segment_bytes: int) -> None:
    """An open stream counts only as far as it is announced."""
    looks = 0
    for nth in itertools.count(1):
        life = Life(ModelDisk())
        spool = life.start()
        spool.claim(1)
        view, chance = life.disk.another(), random.Random(3).randbytes
        intake = LogOnModel(ROOT, (segment_bytes, 1)).listener(view, life.clock, chance)
        accepted: list[QueueId] = []
        found: list[QueueId] = []

        def look(spool: Spool = spool, found: list[QueueId] = found, then: list[QueueId] = accepted) -> None:
            found += [message.queue_id for message in spool.claim(9)]
            assert found == then

        view.at(nth, look)
        for _ in range(3):
            queue_id = accept(intake, content=CONTENT)
            accepted.append(queue_id)
        look()
        if view.before is not None:
            break
        looks += 1
    assert looks > 10


def test_tidying_keeps_long_content_while_its_listener_announces_it() -> None:
    life, content = Life(ModelDisk()), b"Subject: minutes\r\n\r\n" + b"All agreed.\r\n" * 30_000
    intake, spool = life.intake(), life.start()
    accept(intake)
    claimed(spool)
    queue_id = accept(intake, content=content)
    (lock,) = [f"{ROOT}/log/{name}" for name in life.disk.names(f"{ROOT}/log") if name.endswith(".lock")]
    raw = life.disk.peek(lock)
    life.disk.poke(lock, raw[:20])
    with pytest.raises(Unavailable):
        spool.tidy()
    life.disk.poke(lock, raw)
    assert [message.queue_id for message in claimed(spool)] == [queue_id]
    assert b"".join(spool.content(queue_id)) == content


def test_a_hold_survives_on_mail_whose_listener_was_killed_in_accept() -> None:
    """No client got `250` for the mail, but the operator was told that it is held."""
    held = 0
    for nth in itertools.count(1):
        life = Life(ModelDisk(), 100_000, 100_000)
        # The sender's stream exists already, so a settlement syncs no folder.
        spool, (first,) = begun(life, 1)
        settle(spool, Settlement(first.queue_id, ENVELOPE, is_held=True))
        view = life.disk.another()
        view.kill_at(nth)
        with contextlib.suppress(Killed):
            accept(life.listener(view), content=CONTENT)
            break
        view.die()
        page = spool.claim(9)
        settle(spool, *(Settlement(message.queue_id, ENVELOPE, is_held=True) for message in page))
        for image in life.disk.cuts(random.Random(nth), 30):
            found = claimed(Life(image).start())
            assert {m.queue_id for m in found if m.is_held} == {m.queue_id for m in (first, *page)}
            held += len(page)
    assert held


@pytest.mark.parametrize("starts", [False, True])
def test_a_listener_that_begins_a_stream_is_not_taken_for_dead(
    monkeypatch: pytest.MonkeyPatch, *, starts: bool
) -> None:
    """Only a start, or the hourly tidying, at that very instant refuses its mail; the client comes again."""
    life = Life(ModelDisk())
    spool, view = life.start(), life.disk.another()
    if not starts:
        assert claimed(spool) == []
    intake = life.listener(view)
    lock = view.lock_open

    def look_and_lock(fd: int) -> bool:
        # The lock file exists, but its lock is not taken yet.
        assert claimed(spool) == []
        return lock(fd)

    monkeypatch.setattr(view, "lock_open", look_and_lock)
    if starts:
        (failure,) = intake.accept([(intake.draft(), ENVELOPE)])
        assert isinstance(failure, Unavailable)
    for _ in range(2):
        accepted = accept(intake)
        assert [message.queue_id for message in claimed(spool)] == [accepted]


def test_an_unreadable_lock_delays_a_start_and_later_only_its_own_stream() -> None:
    """This happens while the lock file is written, or if the disk fails to read it."""
    life = Life(ModelDisk())
    spool, (message,) = begun(life, 1)
    settle(spool, Settlement(message.queue_id, ENVELOPE, {0: RELAYED}))
    (lock,) = [f"{ROOT}/log/{name}" for name in life.disk.names(f"{ROOT}/log") if name.endswith(".lock")]
    raw = life.disk.peek(lock)
    life.disk.poke(lock, raw[:20])
    assert claimed(spool) == []
    life.disk.poke(lock, raw)
    other = life.intake()
    life.disk.fail(Fault(1, errno.EIO, forever=True, kinds=READS, path=lock))
    accepted = accept(other, content=CONTENT)
    assert [found.queue_id for found in spool.claim(9)] == [accepted]
    life.disk.heal()
    spool.close()
    for is_torn in (True, False):
        spool = life.start()
        if is_torn:
            life.disk.poke(lock, raw[:20])
        else:
            life.disk.fail(Fault(1, errno.EIO, forever=True, kinds=READS, path=lock))
        with pytest.raises(Unavailable):
            spool.claim(1)
        life.disk.poke(lock, raw)
        life.disk.heal()
        assert sorted(found.left for found in claimed(spool)) == [(0, 1, 2), (1, 2)]
        spool.close()


def test_long_content_without_a_message_is_removed_and_other_content_stays() -> None:
    life = Life(ModelDisk())
    spool, intake = life.start(), life.intake()
    long = accept(intake, content=bytes(300_000))
    draft = intake.draft()
    draft.append(bytes(1000))
    draft.spill()
    life.disk.plant(f"{ROOT}/long/{'0' * 16}", b"of a killed listener")
    life.disk.plant(f"{ROOT}/long/{'1' * 16}.part", b"")
    assert [m.queue_id for m in claimed(spool)] == [long]
    assert sorted(life.disk.names(f"{ROOT}/long")) == sorted([long, f"{draft.queue_id}.part"])
    life.disk.plant(f"{ROOT}/long/{'2' * 16}", b"")
    assert spool.tidy() == 1
    assert intake.accept([(draft, ENVELOPE)]) == [None]
    assert [m.queue_id for m in claimed(spool)] == [draft.queue_id]
    settle(spool, *ended(long, draft.queue_id))
    assert life.disk.names(f"{ROOT}/long") == []


def test_long_content_stays_although_its_record_is_not_read_yet() -> None:
    life = Life(ModelDisk(), 10_000_000, 10_000_000)
    spool, intake = life.start(), life.intake()
    assert claimed(spool) == []
    many = [accept(intake, content=bytes(200_000)) for _ in range(3)]
    long = accept(intake, content=bytes(300_000))
    assert spool.tidy() == 0
    assert [message.queue_id for message in claimed(spool)] == [*many, long]
    assert sum(map(len, spool.content(long))) == 300_000


def test_long_content_whose_record_is_damaged_is_set_aside() -> None:
    life = Life(ModelDisk())
    life.start().close()
    long = accept(life.intake(), content=bytes(300_000))
    (path,) = segments(life.disk)
    flipped(life.disk, path, (life.disk.length(path) or 0) - 4)
    assert claimed(life.start()) == []
    assert long in life.disk.names(f"{ROOT}/corrupt")
    assert [name for name, _ in life.told][-1] == long


def test_an_unreadable_sector_is_not_taken_for_an_empty_one() -> None:
    life = Life(ModelDisk())
    spool, messages = begun(life, 3)
    settle(spool, *ended(*(message.queue_id for message in messages[:2])))
    for path in segments(life.disk):
        again = Life(life.disk.after_kill())
        spool = again.start()
        again.disk.fail(Fault(1, errno.EIO, forever=True, kinds=READS, path=path))
        for _ in range(2):
            with pytest.raises(Unavailable):
                spool.claim(9)
        again.disk.heal()
        assert [m.queue_id for m in claimed(spool)] == [messages[2].queue_id]
