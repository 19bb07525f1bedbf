"""A log whose disk refuses, or whose files are changed behind its back: nothing is lost, and it goes on."""

import errno
import random
from pathlib import Path

import pytest

from relay.mail.envelope import QueueId
from relay.queue.sorting import Sorter, SortingRule
from relay.spool.identity import warning_id
from relay.spool.interface import INLINE_BYTES, Absent, Corrupt, SpoolFault
from relay.spool.log import facts, index, segments, streams
from relay.spool.log.engine import LogSpool
from relay.spool.log.intake import LogIntake
from relay.spool.log.layout import SegmentName, segment_of
from relay.spool.log.record import MOVED
from tests.fakes.disk import Fault, ModelDisk
from tests.unit.spool.engine import CONTENT, ENVELOPE, RELAYED, accept, again, recovered, taken
from tests.unit.spool.log_engine import LogEngine, log_on_the_kernel, log_on_the_model
from tests.unit.spool.recovering import recover
from tests.unit.spool.test_log_damage import Scratched, drop_summaries, model_of

LONG = b"Subject: long\r\n\r\n" + b"y" * INLINE_BYTES
EVERYBODY = dict.fromkeys(range(3), RELAYED)


def sender(engine: LogEngine) -> tuple[LogSpool, ModelDisk]:
    """Return a sender that has read the log, and its view of the disk."""
    view = model_of(engine).another()
    spool = LogSpool(engine.root, view, engine.clock, lambda name, why: engine.told.append((name, why)))
    recover(spool)
    return spool, view


def test_a_start_that_fails_lets_go_of_the_spool() -> None:
    engine = log_on_the_model()
    view = model_of(engine).another()
    view.fail(Fault(1, errno.EIO, kinds=frozenset({"make_fifo"})))
    with pytest.raises(OSError, match="Input/output"):
        LogSpool(engine.root, view, engine.clock)
    assert recovered(engine).accepted_count() == 0


def test_nothing_is_written_before_the_log_was_read() -> None:
    engine = log_on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.close()
    before = engine.segments()
    spool = engine.start()
    assert spool.publish_report(warning_id(queue_id), ENVELOPE, b"Subject: early\r\n\r\n")
    with pytest.raises(AssertionError, match="recover comes first"):
        spool.commit()
    assert engine.segments() == before


def test_the_spool_of_another_format_is_refused() -> None:
    engine = log_on_the_model()
    recovered(engine).close()
    model_of(engine).poke(f"{engine.root}/format", b"relay spool 2 log\n")
    with pytest.raises(ValueError, match="relay spool 2 log"):
        engine.start()


def test_the_reserve_of_a_log_is_spent_once_and_comes_back() -> None:
    spool = recovered(log_on_the_model())
    assert spool.make_room()
    assert not spool.make_room()
    spool.take(1)
    assert spool.make_room()


def test_a_disk_that_may_only_be_read_ends_the_sender() -> None:
    engine = log_on_the_model()
    (spool, view), queue_id = sender(engine), accept(engine.intake(), content=LONG)
    view.fail(Fault(1, errno.EROFS, kinds=frozenset({"open"}), path="/long/"))
    with pytest.raises(SpoolFault, match="Read-only"):
        spool.take(5)
    spool.close()
    assert [entry.queue_id for entry in recover(engine.start()).entries] == [queue_id]


def test_what_ended_owes_no_report() -> None:
    engine = log_on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.mark({queue_id: EVERYBODY})
    spool.finish([queue_id])
    assert spool.owed_report(queue_id) is None


def test_of_what_ended_long_ago_a_call_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "_MOST_ENDED", 1)
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    first, second = accept(intake), accept(intake)
    taken(spool)
    for queue_id in (first, second):
        spool.mark({queue_id: EVERYBODY})
        spool.finish([queue_id])
    spool.mark({second: EVERYBODY})
    with pytest.raises(Absent):
        spool.mark({first: EVERYBODY})


def test_a_message_that_cannot_be_set_aside_stays_and_is_told_of() -> None:
    engine = log_on_the_model()
    (spool, view), queue_id = sender(engine), accept(engine.intake())
    taken(spool)
    spool.close()
    spool, view = sender(engine)
    engine.damage(queue_id)
    view.fail(Fault(1, errno.ENOSPC, kinds=frozenset({"open_new"}), path="/corrupt/"))
    with pytest.raises(Corrupt):
        spool.load(queue_id)
    assert "cannot be set aside: No space left" in engine.told[-1][1]
    assert (spool.totals().queued, engine.names("corrupt"), spool.corrupt_count()) == (3, [], 1)
    with pytest.raises(Corrupt):
        spool.load(queue_id)
    assert (engine.names("corrupt"), spool.corrupt_count()) == ([queue_id], 1)


def test_long_content_that_cannot_be_moved_stays_and_is_listed() -> None:
    engine = log_on_the_model()
    (spool, view), queue_id = sender(engine), accept(engine.intake(), content=LONG)
    taken(spool)
    engine.damage(queue_id)
    view.fail(Fault(1, errno.EPERM, kinds=frozenset({"rename"})))
    with pytest.raises(Corrupt):
        list(spool.content(queue_id))
    assert [each.name for each in spool.set_aside_files(5)] == [queue_id]
    assert (engine.names("long"), engine.names("corrupt")) == ([queue_id], [])
    with pytest.raises(Corrupt):
        list(spool.content(queue_id))
    assert (engine.names("long"), engine.names("corrupt")) == ([], [queue_id])


def test_a_damaged_message_is_not_finished_but_set_aside() -> None:
    engine = log_on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool = again(engine, spool)
    engine.damage(queue_id)
    spool.finish([queue_id])
    assert engine.names("corrupt") == [queue_id]
    assert again(engine, spool).totals().imbalance == 0


def test_what_was_set_aside_before_is_not_written_over() -> None:
    engine = log_on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool = again(engine, spool)
    model_of(engine).plant(f"{engine.layout.corrupt}/{queue_id}", b"of an earlier start")
    engine.damage(queue_id)
    with pytest.raises(Corrupt):
        spool.load(queue_id)
    assert engine.names("corrupt") == [queue_id, f"{queue_id}.1"]
    assert model_of(engine).peek(f"{engine.layout.corrupt}/{queue_id}") == b"of an earlier start"


@pytest.mark.parametrize("size", [0, 20, 300])
def test_a_segment_cut_short_meanwhile_costs_its_message(size: int) -> None:
    engine = log_on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool = again(engine, spool)
    ((path, at, _),) = engine.places(queue_id)
    model_of(engine).poke(path, model_of(engine).peek(path)[: at + size])
    with pytest.raises(Corrupt):
        spool.load(queue_id)
    with pytest.raises(Absent):
        spool.load(queue_id)


def test_drafts_that_go_while_they_are_looked_at_are_let_be() -> None:
    engine = log_on_the_model()
    spool, view = sender(engine)
    accept(engine.intake(), content=LONG)
    view.fail(Fault(1, errno.ENOENT, kinds=frozenset({"open"}), path="/long/"))
    assert spool.clean_up() == 0
    view.fail(Fault(1, errno.EIO, kinds=frozenset({"open"}), path="/long/"))
    assert spool.clean_up() == 0
    assert [why for _, why in engine.told] == ["cannot be read, and is left: Input/output error"]
    assert len(taken(spool)) == 1


def test_a_draft_whose_listener_lives_is_left_to_it() -> None:
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    draft = intake.draft()
    draft.append(CONTENT)
    intake.spill(draft)
    assert spool.clean_up() == 0
    assert recover(spool).abandoned == 0
    assert intake.accept([(draft, ENVELOPE)]) == [None]
    assert taken(spool) == [draft.queue_id]


def test_a_write_that_did_nothing_is_no_acceptance() -> None:
    engine = log_on_the_model()
    spool = recovered(engine)
    view = model_of(engine).another()
    intake = LogIntake(engine.root, view, engine.clock)
    accept(intake)
    draft = intake.draft()
    draft.append(CONTENT)
    view.fail(Fault(1, 0, is_silent=True, kinds=frozenset({"write"}), path="/log/"))
    (error,) = intake.accept([(draft, ENVELOPE)])
    assert isinstance(error, OSError)
    assert error.errno == errno.EIO
    accept(intake)
    assert len(taken(spool)) == 2


def test_listeners_that_draw_one_name_write_two_streams() -> None:
    engine = log_on_the_model()
    spool = recovered(engine)
    intakes = [
        LogIntake(engine.root, model_of(engine).another(), engine.clock, random.Random(seed).randbytes)
        for seed in (1, 1)
    ]
    drafts = [intake.draft() for intake in intakes]
    for intake, draft in zip(intakes, drafts, strict=True):
        draft.append(CONTENT)
        assert intake.accept([(draft, ENVELOPE)]) == [None]
    assert len([name for name in engine.names("log") if name.endswith(".lock")]) == 2
    assert spool.accepted_count() == 2


def test_mail_that_was_read_ahead_is_taken_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    queue_ids = [accept(intake) for _ in range(3)]
    assert [taken(spool, 1) for _ in range(4)] == [[queue_ids[0]], [queue_ids[1]], [queue_ids[2]], []]

    # And read as far as is asked for, over the end of its stream.
    monkeypatch.setattr(streams, "READ_AHEAD", 1)
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1500)
    view = model_of(engine).another()
    other = LogIntake(engine.root, view, engine.clock)
    more = [accept(other) for _ in range(7)]
    view.die()
    for left in range(7, 0, -1):
        assert spool.accepted_count() == left
        assert taken(spool, 1) == [more[7 - left]]
    assert taken(spool, 1) == []


def test_a_stream_without_its_lock_is_of_a_dead_listener() -> None:
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    queue_id = accept(intake)
    spool.close()
    (lock,) = [name for name in engine.names("log") if name.endswith(".lock")]
    engine.disk.unlink(f"{engine.layout.log}/{lock}")
    assert [entry.queue_id for entry in recover(engine.start()).entries] == [queue_id]


def test_any_number_of_segments_is_read_with_few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1)
    engine = log_on_the_model()
    (spool, view), intake = sender(engine), engine.intake()
    queue_ids = [accept(intake) for _ in range(40)]
    taken(spool)
    for _ in range(2):
        assert all(spool.load(queue_id).content == CONTENT for queue_id in queue_ids)
    assert len(view._fds) < 30


def test_a_segment_that_is_somebody_elses_is_never_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1)
    engine = log_on_the_kernel(tmp_path)
    spool, intake = recovered(engine), engine.intake()
    queue_ids = [accept(intake) for _ in range(20)]
    taken(spool)
    spool = again(engine, spool)
    for queue_id in queue_ids:
        spool.load(queue_id)
    ((path, _, _),) = engine.places(queue_ids[0])
    Path(path).chmod(0o666)
    for _ in range(2):
        with pytest.raises(Corrupt):
            spool.load(queue_ids[0])
    Path(path).chmod(0o600)
    assert spool.load(queue_ids[0]).content == CONTENT


def test_long_content_that_is_damaged_is_set_aside_by_a_start() -> None:
    for is_summed in (True, False):
        engine = log_on_the_model()
        spool, intake = recovered(engine), engine.intake()
        damaged, whole = accept(intake, content=LONG), accept(intake, content=LONG)
        taken(spool)
        spool.close()
        if not is_summed:
            drop_summaries(engine)
        path = engine.layout.content(damaged)
        model_of(engine).poke(path, b"?" + model_of(engine).peek(path)[1:])
        spool = engine.start()
        assert [entry.queue_id for entry in recover(spool).entries] == [whole]
        assert engine.names("corrupt") == [damaged]
        assert spool.totals().queued == 6


def test_a_header_that_is_somebody_elses_says_nothing(tmp_path: Path) -> None:
    engine = log_on_the_kernel(tmp_path)
    recovered(engine).close()
    accept(engine.intake())
    (path,) = engine.segments()
    Path(path).chmod(0o666)
    name = segment_of(Path(path).name)
    assert name is not None
    looked_at = segments.Segments(engine.disk, engine.layout)
    looked_at.add(name)
    assert streams.read_header(looked_at, name) is None


def test_a_message_known_by_its_summary_is_sorted_without_its_record() -> None:
    engine = log_on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake(), content=b"List-Id: <l>\r\n\r\nx")
    taken(spool)
    spool.close()
    engine.damage(queue_id)
    sorter = Sorter((SortingRule("list", headers=(("List-Id", ("*",)),)),))
    spool = engine.start()
    # Nothing is sent of it: it is read before.
    recover(spool, sorter)
    with pytest.raises((Corrupt, Absent)):
        spool.load(queue_id)
    assert engine.names("corrupt") == [queue_id]


def test_a_summary_of_damaged_mail_only_tells_of_none() -> None:
    engine = log_on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake(), content=LONG)
    taken(spool)
    spool.close()
    path = engine.layout.content(queue_id)
    model_of(engine).poke(path, b"?" + model_of(engine).peek(path)[1:])
    assert recover(engine.start()).entries == ()
    assert engine.names("corrupt") == [queue_id]


def test_content_whose_record_may_be_unreadable_now_is_kept() -> None:
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    for content in (CONTENT, LONG, CONTENT):
        accept(intake, content=content)
    spool.close()
    drop_summaries(engine)
    (path,) = [path for path in engine.segments() if "sender" not in path]
    dead = model_of(engine).after_kill()
    scratched = Scratched(dead, path, 512)
    spool = LogEngine(engine.root, scratched).start()
    recover(spool)
    spool.close()
    assert len(dead.names(f"{engine.root}/long")) == 1
    for fd in list(scratched._fds):
        scratched.close(fd)
    assert len(recover(LogEngine(engine.root, dead).start()).entries) == 3


def test_nothing_is_added_behind_a_group_whose_sync_failed() -> None:
    engine = log_on_the_model()
    spool, view = sender(engine)
    held, free = accept(engine.intake()), accept(engine.intake())
    taken(spool)
    spool.hold(held)
    spool.commit()
    before = engine.segments()
    spool.hold(free)
    spool.release(free)
    view.fail(Fault(1, errno.ENOSPC, kinds=frozenset({"sync_content"})))
    # With the reserve there is room at once.
    spool.commit()
    assert len(engine.segments()) == len(before) + 1
    spool.close()
    entries = recover(engine.start()).entries
    assert {entry.queue_id: entry.is_held for entry in entries} == {held: True, free: False}


def test_a_message_that_is_copied_and_ends_in_one_group_is_let_go_of() -> None:
    """As after a copy that found no room and was written with what was called next."""
    engine = log_on_the_model()
    recovered(engine).close()
    there = segments.Segments(engine.disk, engine.layout)
    old, new = (there.add(SegmentName(stream, 1)) for stream in ("0123456789abcdef", "sender"))
    queue_id, its = QueueId("0" * 16), index.LogIndex(there)
    its.come(queue_id, 3, segments.place_of(old, 100, 50))
    its.change(facts.FINISHED, queue_id, facts.encode_fates((3, 0, 0, 0)), 3)
    its.placed(MOVED, queue_id, segments.place_of(new, 100, 60))
    its.placed(facts.FINISHED, queue_id, segments.place_of(new, 200, 10))
    assert (its.places, its.totals.relayed, there[old].live_bytes) == ({}, 3, 0)
    # The copy tells where it went, until the segment that it was in cannot come back.
    assert there[new].live_bytes == 60
    there.remove([old])
    assert there[new].live_bytes == 0
