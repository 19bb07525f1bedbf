"""A log whose disk, folder or neighbours do what nobody expects of them at the worst instant."""

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import FileStatus, RealDisk
from relay.spool.interface import INLINE_BYTES, Absent, Corrupt, Spool, SpoolFull
from relay.spool.log import recovery as log_recovery
from relay.spool.log import segments
from relay.spool.log.engine import LogSpool
from relay.spool.log.intake import LogIntake
from tests.fakes.disk import Fault, ModelDisk
from tests.fakes.platter import SECTOR_BYTES
from tests.unit.spool.engine import RELAYED, accept, recovered, taken
from tests.unit.spool.log_engine import LogEngine, log_on_the_kernel, log_on_the_model
from tests.unit.spool.recovering import recover
from tests.unit.spool.test_log_damage import drop_summaries, model_of, sectors, small_spool
from tests.unit.spool.test_log_intake import listener
from tests.unit.spool.test_log_refusals import sender

MADE_WRITABLE = "cannot be read, and is left: mode 0666: others may write it"


class MeetsNames(ModelDisk):
    """A disk on which something happens just after log/ was listed."""

    then: Callable[[], None] | None = None

    def __init__(self, of: ModelDisk) -> None:
        super().__init__(of.platter)

    def names(self, path: str) -> list[str]:
        found = super().names(path)
        if path.endswith("/log") and self.then is not None:
            then, self.then = self.then, None
            then()
        return found


class CountsDescriptors(ModelDisk):
    def __init__(self, of: ModelDisk) -> None:
        super().__init__(of.platter)
        self.most = 0

    def _open(self, inode: int, path: str, *, appends: bool = False) -> int:
        fd = super()._open(inode, path, appends=appends)
        self.most = max(self.most, len(self._fds))
        return fd


def end(spool: Spool, queue_id: QueueId) -> None:
    spool.mark({queue_id: dict.fromkeys(range(3), RELAYED)})
    spool.finish([queue_id])
    spool.commit()


@pytest.mark.parametrize("has_summaries", [True, False])
def test_a_start_goes_on_over_segments_cleaned_meanwhile(
    monkeypatch: pytest.MonkeyPatch, has_summaries: bool
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 4000)
    monkeypatch.setattr(log_recovery, "RECOVERED_AT_ONCE", 1)
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    queue_ids = [accept(intake, content=b"x" * 800) for _ in range(40)]
    taken(spool)
    spool.close()
    if not has_summaries:
        drop_summaries(engine)
    spool = engine.start()
    met = []
    for batch in spool.recover():
        for entry in batch:
            met.append(entry.queue_id)
            # Two of three end while the rest is read, and cleaning goes on beside it.
            if len(met) % 3 != 1:
                end(spool, entry.queue_id)
            for _ in range(4):
                spool.hold(met[0])
                spool.commit()
                spool.release(met[0])
                spool.commit()
                spool._cleaner.clean()
    assert met == queue_ids
    left = [each for number, each in enumerate(met, 1) if number % 3 == 1]
    assert sorted(q for q in queue_ids if q in spool._queued.places) == left


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOMEM])
def test_a_start_that_lacks_descriptors_goes_on_later(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    monkeypatch.setattr(log_recovery, "RECOVERED_AT_ONCE", 2)
    engine = log_on_the_model()
    spool = recovered(engine)
    queue_ids = [accept(engine.intake()) for _ in range(40)]
    taken(spool)
    spool.close()
    drop_summaries(engine)
    spool = engine.start()
    walk = spool.recover()
    met = [entry.queue_id for entry in next(walk)]
    sender = spool._disk
    assert isinstance(sender, ModelDisk)
    sender.fail(
        Fault(1, error, kinds=frozenset({"open", "open_new", "sync_directory", "names"}), forever=True)
    )
    batches = [next(walk) for _ in range(30)]
    assert [] in batches
    assert next(walk) == []
    sender.heal()
    for batch in [*batches, *walk]:
        met += [entry.queue_id for entry in batch]
    assert met == sorted(queue_ids)


@pytest.mark.parametrize(
    ("what", "error"), [(".lock", errno.EMFILE), (".lock", errno.EACCES), (".0000000001", errno.EMFILE)]
)
def test_what_may_be_a_writers_and_cannot_be_opened_is_not_judged(what: str, error: int) -> None:
    engine = log_on_the_model()
    spool, (intake, _) = recovered(engine), listener(engine)
    first = accept(intake)
    spool.close()
    view = model_of(engine).another()
    spool = LogSpool(engine.root, view, engine.clock)
    view.fail(Fault(1, error, kinds=frozenset({"open"}), path=what))
    with pytest.raises(OSError, match=os.strerror(error)):
        recover(spool)
    assert view.has_failed
    second = accept(intake)

    found = recover(spool)
    assert [*(entry.queue_id for entry in found.entries), *taken(spool)] == [first, second]
    assert engine.names("corrupt") == []


def test_a_lock_on_a_bad_sector_ends_no_start_and_is_told_once() -> None:
    engine = log_on_the_model()
    recovered(engine).close()
    intake, _ = listener(engine)
    queue_id = accept(intake)
    (lock,) = [name for name in engine.names("log") if name.endswith(".lock")]
    view = model_of(engine).another()
    view.fail(Fault(1, errno.EIO, kinds=frozenset({"open"}), path=lock, forever=True))
    spool = LogSpool(engine.root, view, engine.clock, engine.tell)
    assert recover(spool).entries == ()
    assert [taken(spool), taken(spool)] == [[], []]
    assert engine.told == [(lock, "cannot be read, and is left: Input/output error")]
    # Who converts the spool, or looks what is wrong with it, is told too.
    assert (spool.corrupt_count(), [each.name for each in spool.set_aside_files(5)]) == (1, [lock])
    view.heal()
    assert taken(spool) == [queue_id]
    assert (spool.corrupt_count(), engine.names("corrupt")) == (0, [])


def test_how_far_a_stream_is_cannot_be_read_and_is_asked_again() -> None:
    engine = log_on_the_model()
    (spool, view), (intake, _) = sender(engine), listener(engine)
    first = accept(intake)
    assert taken(spool) == [first]
    second = accept(intake)
    view.fail(Fault(1, errno.EMFILE, kinds=frozenset({"open", "read"}), path=".lock"))
    with pytest.raises(SpoolFull):
        spool.take(5)
    assert view.has_failed
    assert taken(spool) == [second]


def test_a_stream_begun_while_the_sender_looks_is_not_over() -> None:
    engine = log_on_the_model()
    spool, (intake, view) = recovered(engine), listener(engine)
    seen: list[str] = []

    def look() -> None:
        # The sender finds the lock's file before its writer has the lock, and lets go of it.
        if view.steps[-1].startswith("open_new") and view.steps[-1].endswith(".lock") and not seen:
            seen.append(view.steps[-1])
            assert spool.take(5) == []

    view.after = look
    queue_ids = [accept(intake) for _ in range(2)]
    assert seen
    assert taken(spool) == queue_ids


def test_locks_of_streams_that_never_had_mail_go() -> None:
    engine = log_on_the_model()
    spool = recovered(engine)
    for _ in range(20):
        intake, view = listener(engine)
        view.fail(Fault(1, errno.EIO, kinds=frozenset({"open_new"}), path=".00000"))
        with pytest.raises(AssertionError):
            accept(intake)
        view.die()
    assert spool.take(5) == []
    assert [name for name in engine.names("log") if name.endswith(".lock")] == []


def test_a_segment_begun_just_before_its_writer_died_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1)
    engine = log_on_the_model()
    (intake, view), queue_ids = listener(engine), []
    spool = LogSpool(engine.root, MeetsNames(model_of(engine)), engine.clock)
    recover(spool)
    queue_ids.append(accept(intake))
    assert taken(spool) == queue_ids

    def go_on_and_die() -> None:
        queue_ids.append(accept(intake))
        view.die()

    sender = spool._disk
    assert isinstance(sender, MeetsNames)
    sender.then = go_on_and_die
    assert taken(spool) == queue_ids[1:]


PLACES = {
    "a lock": "0123456789abcdef.lock",
    "a summary": "{segment}.sum",
    "a draft of a summary": "{segment}.sum.new",
    "a segment": "0123456789abcdef.0000000001",
    "a segment of the sender": "sender.0000000077",
    "a summary of the sender": "sender.0000000001.sum",
}


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("kind", ["folder", "fifo", "symlink", "file"])
@pytest.mark.parametrize("place", PLACES)
def test_what_others_put_in_log_stops_nothing(place: str, kind: str, is_running: bool) -> None:
    engine = log_on_the_model()
    spool, (intake, view) = recovered(engine), listener(engine)
    first = accept(intake)
    taken(spool)
    (segment,) = [name for name in engine.names("log") if name.endswith(".0000000001")]
    spool.mark_warned(first)
    spool.commit()
    if not is_running:
        view.die()
        spool.close()
        drop_summaries(engine)
    path = f"{engine.layout.log}/{PLACES[place].format(segment=segment)}"
    model_of(engine).plant(path, b"junk" * 500, kind=kind)
    if not is_running:
        spool = engine.start()
        assert [entry.queue_id for entry in recover(spool).entries] == [first]

    (intake, view) = listener(engine)
    second = accept(intake)
    assert taken(spool) == [second]
    view.die()
    taken(spool)
    end(spool, first)
    end(spool, second)
    spool.close()
    spool = engine.start()
    assert recover(spool).entries == ()


def test_what_is_damaged_stays_where_corrupt_has_no_room() -> None:
    base, _ = small_spool()
    compared = 0
    for path, at in sectors(base):
        damaged = model_of(base).after_kill()
        raw = damaged.peek(path)
        damaged.poke(path, raw[:at] + bytes(SECTOR_BYTES)[: len(raw) - at] + raw[at + SECTOR_BYTES :])
        with_room, without = [LogEngine(base.root, damaged.after_kill()) for _ in range(2)]
        spool = with_room.start()
        recover(spool)
        spool.close()
        view = model_of(without).another()
        full = Fault(1, errno.ENOSPC, forever=True, path="/corrupt", kinds=frozenset({"write", "open_new"}))
        view.fail(full)
        spool = LogSpool(without.root, view, without.clock)
        for entry in recover(spool).entries:
            with contextlib.suppress(Absent, Corrupt):
                end(spool, entry.queue_id)
        spool.close()
        assert without.names("corrupt") == []

        recover(without.start())
        assert len(without.names("corrupt")) >= len(with_room.names("corrupt")), f"{path} at {at}"
        compared += len(with_room.names("corrupt"))
    assert compared > 0


def test_a_summary_whose_segment_is_gone_goes() -> None:
    engine = log_on_the_model()
    recovered(engine).close()
    for name in ("0123456789abcdef.0000000001.sum", "0123456789abcdef.0000000002.sum.new"):
        model_of(engine).plant(f"{engine.layout.log}/{name}", b"x")
    recover(engine.start())
    assert [name for name in engine.names("log") if ".sum" in name] == []


def _held_in_each_segment(monkeypatch: pytest.MonkeyPatch, engine: LogEngine) -> list[QueueId]:
    """Return messages of several small segments, which cleaning would copy."""
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 4000)
    spool, intake = recovered(engine), engine.intake()
    queue_ids = [accept(intake, content=b"x" * 800) for _ in range(40)]
    assert taken(spool) == queue_ids
    spool.close()
    drop_summaries(engine)
    return queue_ids


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOMEM, errno.EIO])
def test_cleaning_that_cannot_read_stops_no_commit(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    engine = log_on_the_model()
    queue_ids = _held_in_each_segment(monkeypatch, engine)
    view = model_of(engine).another()
    spool = LogSpool(engine.root, view, engine.clock)
    recover(spool)
    listeners = [path for path in engine.segments() if "/sender." not in path]
    for queue_id in [each for number, each in enumerate(queue_ids) if number % 3]:
        spool.mark({queue_id: dict.fromkeys(range(3), RELAYED)})
        spool.finish([queue_id])
    stream = listeners[0].rpartition("/")[2].partition(".")[0]
    view.fail(Fault(1, error, forever=True, kinds=frozenset({"open", "read"}), path=stream))
    spool.commit()
    for _ in range(5):
        spool.hold(queue_ids[0])
        spool.commit()
        spool.release(queue_ids[0])
        spool.commit()
    assert view.has_failed

    spool = LogEngine(engine.root, model_of(engine).after_kill()).start()
    assert [entry.queue_id for entry in recover(spool).entries] == queue_ids[::3]


def test_many_dead_listeners_take_few_descriptors_and_leave_nothing() -> None:
    engine = log_on_the_model()
    recovered(engine).close()
    queue_ids = []
    for number in range(300):
        intake, view = listener(engine)
        queue_ids.append(accept(intake))
        view.die()
        model_of(engine).plant(f"{engine.layout.log}/{number:016d}.lock")
    view = CountsDescriptors(model_of(engine))
    spool = LogSpool(engine.root, view, engine.clock)
    assert [entry.queue_id for entry in recover(spool).entries] == sorted(queue_ids)
    for _ in range(5):
        assert spool.take(5) == []
    for queue_id in queue_ids:
        end(spool, queue_id)
    assert [name for name in engine.names("log") if not name.startswith("sender")] == []
    assert view.most < 100


NO_DESCRIPTOR = frozenset({"open", "open_new"})


def start_of(content: bytes, count: int) -> tuple[LogSpool, ModelDisk, list[QueueId]]:
    """Return a start that has to read each message."""
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    queue_ids = [accept(intake, content=content) for _ in range(count)]
    taken(spool)
    spool.close()
    drop_summaries(engine)
    spool = engine.start()
    disk = spool._disk
    assert isinstance(disk, ModelDisk)
    return spool, disk, queue_ids


def test_a_start_that_lacks_descriptors_for_its_first_message_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1)
    spool, disk, _ = start_of(b"x", 40)

    def use_up_all() -> None:
        if spool.unread_count():
            disk.fail(Fault(1, errno.EMFILE, kinds=NO_DESCRIPTOR, forever=True))

    with pytest.raises(OSError, match="open files"):
        next(spool.recover(on_step=use_up_all))


def test_what_was_read_before_descriptors_lack_is_known_first() -> None:
    # Content in a file of its own costs each of them a descriptor.
    spool, disk, queue_ids = start_of(b"x" * (INLINE_BYTES + 1), 6)

    def use_up_all() -> None:
        if spool.unread_count():
            disk.fail(Fault(3, errno.EMFILE, kinds=NO_DESCRIPTOR, forever=True))

    walk = spool.recover(on_step=use_up_all)
    met = [entry.queue_id for entry in next(walk)]
    assert met == queue_ids[:2]
    disk.fail(Fault(1, errno.EMFILE, kinds=NO_DESCRIPTOR, forever=True))
    spool_step = next(walk)
    assert len(spool_step) < len(queue_ids)
    disk.heal()
    met += [entry.queue_id for entry in spool_step]
    while batch := next(walk, None):
        disk.heal()
        met += [entry.queue_id for entry in batch]
    assert met == queue_ids


def test_what_is_taken_is_at_hand_until_its_record_is_asked_for() -> None:
    engine = log_on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    assert spool.at_hand(queue_id) is None
    taken(spool)
    at_hand = spool.at_hand(queue_id)
    assert at_hand is not None
    assert at_hand == spool.load(queue_id)


def test_cleaning_leaves_a_segment_that_is_somebody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 2000)
    engine = log_on_the_kernel(tmp_path)
    spool, intake = recovered(engine), engine.intake()
    queue_ids = [accept(intake, content=b"x" * 300) for _ in range(40)]
    taken(spool)
    ((path, _, _),) = engine.places(queue_ids[0])
    inside = [queue_id for queue_id in queue_ids if engine.places(queue_id)[0][0] == path]
    assert 1 < len(inside) < 20
    spool.close()
    spool = engine.start()
    recover(spool)
    for queue_id in inside[1:]:
        end(spool, queue_id)
    # Its descriptor was let go of, as when there are many segments.
    spool._segments.close()
    Path(path).chmod(0o666)
    spool._cleaner.clean()
    assert Path(path).exists()
    with pytest.raises(Corrupt):
        spool.load(queue_ids[0])


@pytest.mark.parametrize("is_dead", [True, False])
def test_a_segment_whose_mode_is_changed_once_listed_is_told(tmp_path: Path, *, is_dead: bool) -> None:
    engine = log_on_the_kernel(tmp_path)
    spool, intakes = recovered(engine), [engine.intake(), engine.intake()]
    changed, other = accept(intakes[0]), accept(intakes[1])
    if is_dead:
        assert isinstance(intakes[0], LogIntake)
        intakes[0].close()
    # It lists the segments, and opens them when it takes.
    assert spool.accepted_count() == 2
    ((path, _, _),) = engine.places(changed)
    Path(path).chmod(0o666)
    assert [taken(spool), taken(spool)] == [[other], []]
    assert engine.told == [(Path(path).name, MADE_WRITABLE)]
    assert (spool.corrupt_count(), engine.names("corrupt")) == (1, [])
    Path(path).chmod(0o600)
    spool.close()
    spool = engine.start()
    assert {entry.queue_id for entry in recover(spool).entries} == {changed, other}
    assert spool.corrupt_count() == 0


def test_a_segment_changed_while_a_start_lists_it_ends_no_start(tmp_path: Path) -> None:
    engine = log_on_the_kernel(tmp_path)
    recovered(engine).close()
    intake = LogIntake(engine.root, engine.disk, engine.clock)
    queue_id = accept(intake)
    intake.close()
    ((path, _, _),) = engine.places(queue_id)

    class ChangesModes(RealDisk):
        """A disk whose segment is given away once it was judged."""

        looks = 0

        def status(self, fd: int) -> FileStatus:
            found = super().status(fd)
            self.looks += os.path.samestat(os.fstat(fd), Path(path).stat())
            return found._replace(mode=0o666) if self.looks > 1 else found

    spool = LogSpool(engine.root, ChangesModes(), engine.clock, engine.tell)
    assert recover(spool).entries == ()
    assert engine.told == [(Path(path).name, MADE_WRITABLE)]
    assert spool.corrupt_count() == 1
    spool.close()
    assert [entry.queue_id for entry in recover(engine.start()).entries] == [queue_id]
