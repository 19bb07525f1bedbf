"""What fsck says of a log: nothing where all is well or at work, and else what a start will do."""

from pathlib import Path

import pytest

from relay.spool.disk.durable import RealDisk, opened
from relay.spool.finding import Inspection
from relay.spool.interface import INLINE_BYTES, Corrupt
from relay.spool.log import segments
from relay.spool.log.inspection import LogInspector
from relay.spool.log.intake import LogIntake
from tests.engines.spool.engine import BOUNCED, CONTENT, accept, note, recovered, taken
from tests.engines.spool.log_engine import LogEngine, drop_summaries, log_on_the_kernel
from tests.engines.spool.recovering import recover

LONG = b"Subject: long\r\n\r\n" + b"y" * INLINE_BYTES


def fsck(engine: LogEngine) -> Inspection:
    return LogInspector(engine.root, RealDisk()).inspect()


def kinds(engine: LogEngine) -> list[str]:
    return sorted(finding.kind for finding in fsck(engine).findings)


def append(engine: LogEngine, path: str, content: bytes) -> None:
    with opened(engine.disk, engine.disk.open_append(path)) as fd:
        engine.disk.write_all(fd, content)


def test_fsck_of_a_sound_log_says_nothing(tmp_path: Path) -> None:
    engine = log_on_the_kernel(tmp_path)
    spool, intake = recovered(engine), engine.intake()
    bounced, _, _ = accept(intake), accept(intake), accept(intake, content=LONG)
    taken(spool)
    spool.note({bounced: [note(0)]})
    spool.mark({bounced: dict.fromkeys(range(3), BOUNCED)})
    spool.finish([bounced])
    spool.commit()
    draft = intake.draft()
    draft.append(CONTENT)
    intake.spill(draft)
    # Written and not announced yet.
    (listeners,) = [path for path in engine.segments() if "/sender." not in path]
    append(engine, listeners, b"half a group")

    seen = fsck(engine)
    assert (seen.findings, seen.messages, seen.arriving) == ([], 2, 1)
    assert seen.holder is not None
    spool.close()
    assert fsck(engine).holder is None


def test_fsck_tells_what_is_not_as_it_should_be_and_a_start_does_it(tmp_path: Path) -> None:
    engine, root = log_on_the_kernel(tmp_path), tmp_path / "spool"
    spool, intake = recovered(engine), engine.intake()
    damaged, long, whole = accept(intake), accept(intake, content=LONG), accept(intake)
    taken(spool)
    spool.hold(whole)
    spool.commit()
    spool.close()
    assert isinstance(intake, LogIntake)
    intake.close()
    drop_summaries(engine)
    engine.damage(damaged)
    engine.damage(long)
    append(engine, engine.segments()[0], b"torn")
    (root / "long/0123456789abcdef").write_bytes(b"whole, and without a record")
    (root / "long/0123456789abcdef.part").write_bytes(b"")

    assert kinds(engine) == ["corrupt_message", "damaged_record", "draft", "leftover", "torn_group"]
    assert fsck(engine).messages == 2
    spool = engine.start()
    # Of long content a start reads the beginning.
    assert [entry.queue_id for entry in recover(spool).entries] == [long, whole]
    with pytest.raises(Corrupt):
        list(spool.content(long))
    assert set(engine.names("corrupt")) >= {damaged, long}
    assert engine.names("long") == []
    spool.commit()
    spool.close()
    # The damaged bytes stay where they were, too, while something else in their segment is needed.
    assert set(kinds(engine)) == {"damaged_record", "set_aside", "torn_group"}


def test_fsck_tells_of_a_damaged_header_and_of_a_format_that_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1)
    engine = log_on_the_kernel(tmp_path)
    recovered(engine).close()
    intake = engine.intake()
    accept(intake)
    accept(intake)
    assert isinstance(intake, LogIntake)
    intake.close()
    engine.flip(engine.segments()[0], 0)
    assert kinds(engine) == ["damaged_header"]
    engine.flip(f"{engine.root}/format", 12)
    assert "format" in kinds(engine)
