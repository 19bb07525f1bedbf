"""A log with damage meets another fault at its start: nothing is lost, told falsely, or kept for ever."""

import errno
from pathlib import Path

import pytest

from relay.spool.identity import warning_id
from relay.spool.log import segments
from relay.spool.log.engine import LogSpool
from relay.spool.log.inspection import LogInspector
from relay.spool.log.intake import LogIntake
from relay.spool.log.layout import SegmentName
from relay.spool.log.record import HEADER_BYTES, MOVED, New, Record, encode_group, mark_of
from relay.spool.log.stream_reader import pieces
from tests.fakes.denying import BROKEN, Denying
from tests.fakes.disk import Fault, ModelDisk
from tests.fakes.platter import disk_error
from tests.unit.spool.engine import CONTENT, ENVELOPE, accept, again, recovered, taken
from tests.unit.spool.log_engine import log_on_the_kernel, log_on_the_model, window_on
from tests.unit.spool.recovering import recover
from tests.unit.spool.test_log_attacked import end
from tests.unit.spool.test_log_damage import drop_summaries, is_senders, model_of
from tests.unit.spool.test_log_set_aside import damage, damage_first_record, long_and_short, with_damage


class BadSector(ModelDisk):
    """A disk that does not give one file's bytes."""

    path = ""

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        if self._entry(fd)[1] == self.path:
            raise disk_error(errno.EIO, self.path)
        return super().pread(fd, size, offset)


def test_what_was_set_aside_and_cannot_be_read_keeps_nothing_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1)
    engine, damaged = with_damage()
    intake = engine.intake()
    # Killed before its end was durable: so the next start meets the damage too.
    recovered(engine).close()
    view = BadSector(model_of(engine).platter)
    view.path = f"{engine.layout.corrupt}/{damaged}"
    numbers = []
    for _ in range(3):
        spool = LogSpool(engine.root, view, engine.clock, engine.tell)
        recover(spool)
        for _ in range(5):
            queue_id = accept(intake)
            assert taken(spool) == [queue_id]
            end(spool, queue_id)
        numbers.append(len([path for path in engine.segments() if is_senders(path)]))
        spool.close()
    assert numbers[0] == numbers[2], numbers
    assert engine.names("corrupt") == [damaged, f"{damaged}.1"]


def test_no_summary_hides_damage_from_a_start_that_could_not_look_at_long_content() -> None:
    engine, queue_id, _ = long_and_short()
    damage_first_record(engine)
    # Another listener's lock cannot be opened: not all is read, and no orphan judged.
    late = engine.intake()
    accept(late)
    assert isinstance(late, LogIntake)
    lock = max(name for name in engine.names("log") if name.endswith(".lock"))
    view = model_of(engine).another()
    view.fail(Fault(1, errno.EIO, kinds=frozenset({"open"}), path=lock, forever=True))
    spool = LogSpool(engine.root, view, engine.clock, engine.tell)
    recover(spool)
    spool.commit()
    spool.close()
    assert engine.names("long") == [queue_id]
    late.close()
    recover(engine.start())
    assert queue_id in [*engine.names("long"), *engine.names("corrupt")]


def test_a_report_in_the_last_group_of_an_older_segment_is_not_torn() -> None:
    engine = log_on_the_model()
    spool, intake = recovered(engine), engine.intake()
    first, second = accept(intake), accept(intake)
    taken(spool)
    reports = [warning_id(each) for each in (first, second)]
    assert spool.publish_report(reports[0], ENVELOPE, CONTENT)
    spool.commit()
    spool = again(engine, spool)
    assert spool.publish_report(reports[1], ENVELOPE, CONTENT)
    spool.commit()
    spool = again(engine, spool)
    end(spool, reports[1])
    spool.close()
    senders = [path for path in engine.segments() if is_senders(path)]
    assert [int(path[-10:]) for path in senders] == [1, 3]
    damage(engine, reports[0])
    before = spool.totals()
    spool = recovered(engine)
    spool.hold(first)
    spool.commit()
    assert engine.names("corrupt") == [reports[0]]
    assert spool.totals() == before


def test_an_inspection_takes_for_torn_what_a_start_does(tmp_path: Path) -> None:
    engine = log_on_the_kernel(tmp_path)
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.hold(queue_id)
    spool.commit()
    spool.close()
    drop_summaries(engine)
    (own,) = [Path(path) for path in engine.segments() if not is_senders(path)]
    (senders,) = [Path(path) for path in engine.segments() if is_senders(path)]
    raw = own.read_bytes()
    (whole,) = [
        each
        for each in pieces(window_on(raw), mark_of(SegmentName(own.name[:16], 1)), HEADER_BYTES)
        if isinstance(each, Record) and each.queue_id == queue_id
    ]
    group = b"".join(
        encode_group(
            mark_of(SegmentName("sender", 1)),
            [New(MOVED, queue_id, whole.payload, 3)],
            senders.stat().st_size,
        )[0]
    )
    # Killed while it was copied; and now the disk does not give the first place.
    senders.write_bytes(senders.read_bytes() + group[:-9])
    seen = LogInspector(engine.root, Denying(own.name, BROKEN, when_read=True)).inspect()
    assert [finding.kind for finding in seen.findings] == ["unreadable"]
