"""Mail of a log that ended is not relayed again, and mail that was accepted is not removed by a start."""

import contextlib
import errno
from pathlib import Path

import pytest

from relay.mail.envelope import QueueId
from relay.spool.identity import report_id, warning_id
from relay.spool.interface import SpoolFull, Status
from relay.spool.log import index, segments
from relay.spool.log.engine import LogSpool
from relay.spool.log.intake import LogIntake
from relay.spool.log.layout import SegmentName, stream_of
from relay.spool.log.segments import Segments, place_of
from tests.fakes.disk import Fault, ModelDisk
from tests.unit.spool.engine import CONTENT, ENVELOPE, accept, again, recovered, taken
from tests.unit.spool.log_engine import LogEngine, log_on_the_kernel, log_on_the_model
from tests.unit.spool.recovering import recover
from tests.unit.spool.test_log_attacked import end
from tests.unit.spool.test_log_damage import Scratched, drop_summaries, model_of
from tests.unit.spool.test_log_intake import listener
from tests.unit.spool.test_log_refusals import LONG, sender


def test_what_ended_before_a_summary_is_not_back_without_it() -> None:
    engine = log_on_the_model()
    spool, (intake, view) = recovered(engine), listener(engine)
    ended, waiting = accept(intake), accept(intake)
    view.die()
    taken(spool)
    end(spool, ended)
    # The segment that tells of the end is left behind.
    for _ in range(4):
        spool = again(engine, spool)
        later = accept(engine.intake())
        assert taken(spool) == [later]
        end(spool, later)
    spool.close()
    drop_summaries(engine)
    assert [entry.queue_id for entry in recover(engine.start()).entries] == [waiting]


def test_an_end_outlives_each_copy_while_the_first_place_is_there() -> None:
    engine = log_on_the_model()
    recovered(engine).close()
    there = Segments(engine.disk, engine.layout)
    kept, *of_sender = (there.add(SegmentName("sender", number)) for number in range(1, 5))
    first, second, third = of_sender
    # Copied forward out of a segment that stays, since damage is in it; then it ended.
    there.keep(place_of(kept, 100, 50))
    there.keep(place_of(first, 100, 50))
    there.end(place_of(kept, 100, 50), place_of(first, 100, 50))
    there.end(place_of(first, 100, 50), place_of(second, 100, 10))
    # Of the copy nothing had to be written anew.
    there.hand_over_needs(first, {third: 10})
    there.remove([first])
    assert there[second].live_bytes > 0
    there.remove([kept])
    assert there[second].live_bytes == there[third].live_bytes == 0


def test_content_stays_while_its_listener_cannot_be_heard() -> None:
    engine = log_on_the_model()
    recovered(engine).close()
    intake, _ = listener(engine)
    queue_id = accept(intake, content=LONG)
    (lock,) = [name for name in engine.names("log") if stream_of(name)]
    path = f"{engine.layout.log}/{lock}"
    said = model_of(engine).peek(path)
    # As it is seen while it is written.
    model_of(engine).poke(path, said[:-1] + b"?")
    spool = engine.start()
    recover(spool)
    assert engine.names("long") == [queue_id]
    model_of(engine).poke(path, said)
    assert taken(spool) == [queue_id]
    assert sum(map(len, spool.content(queue_id))) == len(LONG)


def test_content_stays_while_the_segment_of_its_record_is_set_aside(tmp_path: Path) -> None:
    engine = log_on_the_kernel(tmp_path)
    recovered(engine).close()
    intake = LogIntake(engine.root, engine.disk, engine.clock)
    queue_id = accept(intake, content=LONG)
    intake.close()
    (path,) = [path for path in engine.segments() if "sender" not in path]
    Path(path).chmod(0o666)
    spool = engine.start()
    recover(spool)
    assert engine.names("long") == []
    assert queue_id in engine.names("corrupt")
    spool.close()


def test_a_report_that_needs_a_descriptor_is_taken_once_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1)
    engine = log_on_the_model()
    spool, view = sender(engine)
    reports = [warning_id(accept(engine.intake())) for _ in range(2)]
    waiting = taken(spool)
    for own in reports:
        assert spool.publish_report(own, ENVELOPE, CONTENT)
        spool.commit()
    # Of the first one the segment can be opened.
    view.fail(Fault(2, errno.EMFILE, kinds=frozenset({"open"}), path="sender.", forever=True))
    assert taken(spool) == reports[:1]
    with pytest.raises(SpoolFull):
        spool.take(5)
    view.heal()
    assert taken(spool) == reports[1:]
    assert len(waiting) == 2


def test_a_start_without_room_to_tidy_up_comes_to_its_end() -> None:
    engine = log_on_the_model()
    spool, (intake, listeners) = recovered(engine), listener(engine)
    queue_id = accept(intake)
    taken(spool)
    end(spool, queue_id)
    listeners.die()
    spool.close()
    view = model_of(engine).another()
    spool = LogSpool(engine.root, view, engine.clock)
    view.fail(Fault(1, errno.ENOSPC, kinds=frozenset({"unlink"}), path=".0000", forever=True))
    assert recover(spool).entries == ()
    view.heal()
    spool.close()
    recover(engine.start())
    assert all("sender." in path for path in engine.segments())


def test_a_group_given_up_is_not_back_once_the_next_segment_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = log_on_the_model()
    spool, view = sender(engine)
    kept, intake = accept(engine.intake()), engine.intake()
    ended = accept(intake)
    assert isinstance(intake, LogIntake)
    intake.close()
    taken(spool)
    spool.hold(kept)
    spool.commit()
    (first,) = [path for path in engine.segments() if "/sender." in path]
    # Its group stays behind what counts of the first segment, as no room is there to cut it off either.
    view.fail(Fault(1, errno.ENOSPC, kinds=frozenset({"sync_content", "truncate"}), forever=True))
    warning = warning_id(ended)
    assert spool.publish_report(warning, ENVELOPE, CONTENT)
    with contextlib.suppress(SpoolFull):
        spool.commit()
    view.heal()
    end(spool, ended)
    assert taken(spool) == [warning]
    end(spool, warning)
    before = engine.segments()
    # What said so, and that the first one counts no further, is needed no more.
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1)
    late = accept(engine.intake())
    assert taken(spool) == [late]
    spool.hold(late)
    spool.commit()
    there = engine.segments()
    assert first in there
    assert [path for path in before if path not in there and "/sender." in path]

    again_there = LogEngine(engine.root, model_of(engine).after_kill()).start()
    assert warning not in {entry.queue_id for entry in recover(again_there).entries}
    assert again_there.totals().relayed == 6


def test_what_ended_in_a_sector_not_given_now_is_not_back(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    ended, waiting = accept(intake), accept(intake)
    taken(spool)
    end(spool, ended)
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1)
    spool.hold(waiting)
    spool.commit()
    spool.close()
    drop_summaries(engine)
    (path,) = [path for path in engine.segments() if "/sender." not in path]
    dead = model_of(engine).after_kill()
    for number in range(1, 3):
        scratched = LogEngine(engine.root, Scratched(dead, path, 0), first_intake=100 * number)
        spool = scratched.start()
        assert [entry.queue_id for entry in recover(spool).entries] == [waiting]
        # Much else ends meanwhile, also what cleaning would take along.
        for _ in range(12):
            late = accept(scratched.intake())
            assert taken(spool) == [late]
            end(spool, late)
        spool.close()
        dead = dead.after_kill()
    (entry,) = recover(LogEngine(engine.root, dead).start()).entries
    assert (entry.queue_id, entry.is_held) == (waiting, True)


def test_what_ended_is_not_back_from_a_listener_heard_late() -> None:
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    ended, waiting, held = accept(intake), accept(intake), accept(intake)
    taken(spool)
    end(spool, ended)
    spool.mark({waiting: {1: Status.RELAYED}})
    spool.hold(held)
    spool.commit()
    before = spool.totals()
    spool.close()
    spool, view, entries = unheard(engine)
    assert entries == ()
    view.heal()
    found = {entry.queue_id: (entry.recipients_left, entry.is_held) for entry in spool.take(10)}
    assert found == {waiting: (2, False), held: (3, True)}
    assert spool.totals() == before


@pytest.mark.parametrize("ends", ["before the start", "before the listener is heard", "uncommitted"])
def test_what_was_copied_and_ended_is_not_back_from_a_listener_heard_late(
    monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 4000)
    engine = log_on_the_model()
    spool, view = sender(engine)
    intake = engine.intake()
    copied, *others = [accept(intake, content=b"x" * 800) for _ in range(8)]
    taken(spool)
    ((first, _, _),) = engine.places(copied)
    # What was copied forward stays where it was as well: no room to remove it.
    view.fail(Fault(1, errno.ENOSPC, kinds=frozenset({"unlink"}), path=first, forever=True))
    for queue_id in others:
        with contextlib.suppress(SpoolFull):
            end(spool, queue_id)
    with contextlib.suppress(SpoolFull):
        spool._cleaner.clean()
    if ends == "before the start":
        with contextlib.suppress(SpoolFull):
            end(spool, copied)
    assert len(engine.places(copied)) == 2
    view.die()

    spool, view, entries = unheard(engine)
    if ends != "before the start":
        assert entries == (copied,)
        spool.mark({copied: dict.fromkeys(range(3), Status.RELAYED)})
        spool.finish([copied])
    if ends == "before the listener is heard":
        spool.commit()
    view.heal()
    assert spool.take(10) == []
    spool.commit()
    assert spool.totals().relayed == 24
    assert recover(LogEngine(engine.root, model_of(engine).after_kill()).start()).entries == ()


def test_a_report_that_ended_is_not_published_again_for_mail_heard_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index, "_MOST_ENDED", 1)
    engine = log_on_the_model()
    before, intake = recovered(engine), engine.intake()
    waiting, other = accept(intake), accept(intake)
    taken(before)
    own = warning_id(waiting)
    assert before.publish_report(own, ENVELOPE, CONTENT)
    before.commit()
    assert taken(before) == [own]
    end(before, own)
    end(before, other)
    before.close()

    spool, view, entries = unheard(engine)
    assert entries == ()
    view.heal()
    assert taken(spool) == [waiting]
    assert not spool.publish_report(own, ENVELOPE, CONTENT)


def test_what_a_report_told_of_is_not_told_again_for_mail_heard_late() -> None:
    engine = log_on_the_model()
    before, waiting = recovered(engine), accept(engine.intake())
    taken(before)
    before.mark({waiting: {1: Status.BOUNCED}})
    own = report_id(waiting, 1)
    assert before.publish_report(own, ENVELOPE, CONTENT)
    # Killed here: that its sender was told is not remembered.
    before.commit()
    before.close()

    spool, view, entries = unheard(engine)
    assert entries == (own,)
    view.heal()
    assert taken(spool) == [waiting]
    spool.mark({waiting: {0: Status.BOUNCED}})
    owed = spool.owed_report(waiting)
    assert owed is not None
    assert owed.indices == (0,)


def unheard(engine: LogEngine) -> tuple[LogSpool, ModelDisk, tuple[QueueId, ...]]:
    """Start where the disk does not give any lock of a listener; return what it knows of too."""
    view = model_of(engine).another()
    spool = LogSpool(engine.root, view, engine.clock)
    view.fail(Fault(1, errno.EIO, kinds=frozenset({"read"}), path=".lock", forever=True))
    return spool, view, tuple(entry.queue_id for entry in recover(spool).entries)


def test_only_an_end_of_long_mail_asks_for_its_file() -> None:
    engine = log_on_the_model()
    spool, disk = sender(engine)
    for content, its_unlinks in ((CONTENT, 0), (LONG, 1)):
        queue_id = accept(engine.intake(), content=content)
        taken(spool)
        steps = list[str]()
        disk.before = steps.append
        end(spool, queue_id)

        assert steps.count(f"unlink {engine.layout.content(queue_id)}") == its_unlinks
        assert engine.names("long") == []
