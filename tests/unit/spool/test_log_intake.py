"""Listeners of a log: what they refuse, give up and take back; and what fsck says of what they left."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from relay.spool.disk.durable import RealDisk, opened
from relay.spool.finding import Inspection
from relay.spool.interface import INLINE_BYTES
from relay.spool.log.engine import LogSpool
from relay.spool.log.facts import GONE as GONE_RECORD
from relay.spool.log.inspection import LogInspector
from relay.spool.log.intake import LogIntake
from relay.spool.log.layout import segment_of
from relay.spool.log.record import New, encode_group, mark_of
from relay.spool.log.streams import READ_AHEAD
from relay.spool.root.headroom import HEADROOM_BYTES, NoHeadroom
from tests.fakes.denying import BROKEN, GONE, TOO_MANY, Denying
from tests.fakes.disk import Fault, ModelDisk
from tests.fakes.platter import disk_error
from tests.unit.spool.engine import BOUNCED, CONTENT, ENVELOPE, RELAYED, accept, note, recovered, taken
from tests.unit.spool.log_engine import LogEngine, log_on_the_kernel, log_on_the_model
from tests.unit.spool.recovering import recover

LONG = b"Subject: long\r\n\r\n" + b"y" * INLINE_BYTES


def listener(engine: LogEngine) -> tuple[LogIntake, ModelDisk]:
    """Return a listener and its view of the disk."""
    engine.intake()
    assert isinstance(engine.disk, ModelDisk)
    view = engine.disk.another()
    return LogIntake(engine.root, view, engine.clock), view


def test_one_bad_envelope_of_a_batch_is_refused_alone() -> None:
    engine = log_on_the_model()
    spool, (intake, _) = recovered(engine), listener(engine)
    drafts = [intake.draft() for _ in range(4)]
    for draft in drafts:
        draft.append(b"content")
    bad: list[tuple[str, ...]] = [("r@example.com\nDx",), (), ("\ud800@example.com",)]
    envelopes = [ENVELOPE, *(replace(ENVELOPE, recipients=addresses) for addresses in bad)]

    results = intake.accept(list(zip(drafts, envelopes, strict=True)))

    assert results[0] is None
    assert all(isinstance(error, OSError) and error.errno == errno.EINVAL for error in results[1:])
    assert taken(spool) == [drafts[0].queue_id]


def test_a_draft_of_another_spool_is_no_draft() -> None:
    intake, _ = listener(log_on_the_model())
    with pytest.raises(TypeError):
        intake.discard(object())  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize("content", [CONTENT, LONG])
def test_mail_leaves_headroom(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    engine = log_on_the_model()
    spool, (intake, view) = recovered(engine), listener(engine)
    free = HEADROOM_BYTES + len(content) - 1
    monkeypatch.setattr(view, "free", lambda _path: (free, 1000))
    draft = intake.draft()
    draft.append(content)
    (error,) = intake.accept([(draft, ENVELOPE)])
    assert isinstance(error, NoHeadroom)

    spilled = intake.draft()
    spilled.append(content)
    with pytest.raises(NoHeadroom):
        intake.spill(spilled)
    assert not intake.is_on_disk(spilled)
    # What was given up is not accepted later, whole or not.
    spilled.append(b"more")
    monkeypatch.undo()
    (given_up,) = intake.accept([(spilled, ENVELOPE)])
    assert isinstance(given_up, OSError)
    assert given_up.errno == errno.EINVAL
    assert taken(spool) == []
    assert engine.names("long") == []


@pytest.mark.parametrize("kind", ["rename", "sync_directory", "sync", "write", "open_new"])
def test_long_content_whose_disk_fails_is_refused_and_gone(kind: str) -> None:
    engine = log_on_the_model()
    spool, (intake, view) = recovered(engine), listener(engine)
    drafts = [intake.draft(), intake.draft()]
    for draft in drafts:
        draft.append(LONG)
    view.fail(Fault(1, errno.EIO, kinds=frozenset({kind}), path="/long"))
    results = intake.accept([(draft, ENVELOPE) for draft in drafts])

    refused = [draft.queue_id for draft, error in zip(drafts, results, strict=True) if error is not None]
    assert refused
    assert set(taken(spool)) == {draft.queue_id for draft in drafts} - set(refused)
    assert not set(refused) & set(engine.names("long"))


def test_a_start_while_long_content_is_accepted_leaves_it() -> None:
    engine = log_on_the_model()
    recovered(engine).close()
    intake, view = listener(engine)
    starts: list[str] = []

    def start(step: str) -> None:
        starts.append(step)
        recovered(engine).close()

    view.before = start
    queue_id = accept(intake, content=LONG)
    view.before = None

    assert len(starts) > 5
    spool = recovered(engine)
    assert b"".join(spool.content(queue_id)) == LONG


def test_short_mail_costs_no_sync_of_a_folder() -> None:
    engine = log_on_the_model()
    spool, (intake, view) = recovered(engine), listener(engine)
    first = accept(intake)
    view.fail(Fault(1, errno.EIO, kinds=frozenset({"sync_directory"})))
    second = accept(intake)

    assert not view.has_failed
    assert taken(spool) == [first, second]


def test_a_listener_goes_on_in_another_stream_after_a_fault() -> None:
    engine = log_on_the_model()
    spool, (intake, view) = recovered(engine), listener(engine)
    first = accept(intake)
    view.fail(Fault(1, errno.EIO, kinds=frozenset({"sync_content"})))
    draft = intake.draft()
    draft.append(CONTENT)
    assert [error is not None for error in intake.accept([(draft, ENVELOPE)])] == [True]
    second = accept(intake)
    # That it is accepted cannot be announced: its stream ends, and all of that is read.
    view.fail(Fault(1, errno.EIO, kinds=frozenset({"write"}), path=".lock"))
    third = accept(intake)
    fourth = accept(intake)

    assert taken(spool) == [first, second, third, fourth]
    assert len([name for name in engine.names("log") if name.endswith(".lock")]) == 3


def test_a_stream_that_is_taken_for_abandoned_is_begun_anew() -> None:
    engine = log_on_the_model()
    spool, (intake, view) = recovered(engine), listener(engine)
    quicker = engine.disk
    seen: list[str] = []

    def take_it(step: str) -> None:
        # The sender finds the lock before its writer has it.
        if step.startswith("open_new") and step.endswith(".lock") and not seen:
            seen.append(step)
            quicker.lock(step.removeprefix("open_new "), wait=False)

    view.before = take_it
    queue_id = accept(intake)
    assert seen
    assert taken(spool) == [queue_id]


def test_a_dead_listeners_stream_goes_with_its_mail() -> None:
    engine = log_on_the_model()
    spool, (intake, view) = recovered(engine), listener(engine)
    queue_id = accept(intake)
    taken(spool)
    view.die()
    assert spool.take(5) == []
    spool.mark({queue_id: dict.fromkeys(range(3), RELAYED)})
    spool.finish([queue_id])
    spool.commit()

    assert [name for name in engine.names("log") if not name.startswith("sender")] == []


def fsck(engine: LogEngine) -> Inspection:
    return LogInspector(engine.root, RealDisk()).inspect()


def kinds(seen: Inspection) -> list[str]:
    return sorted(finding.kind for finding in seen.findings)


def test_fsck_of_a_sound_log_says_nothing(tmp_path: Path) -> None:
    engine = log_on_the_kernel(tmp_path)
    spool, intake = recovered(engine), engine.intake()
    queue_ids = [accept(intake), accept(intake), accept(intake, content=LONG)]
    taken(spool)
    spool.note({queue_ids[0]: [note(0)]})
    spool.mark({queue_ids[0]: dict.fromkeys(range(3), BOUNCED)})
    spool.finish([queue_ids[0]])
    spool.commit()
    draft = intake.draft()
    draft.append(CONTENT)
    intake.spill(draft)

    seen = fsck(engine)
    assert (kinds(seen), seen.messages, seen.arriving) == ([], 2, 1)
    assert seen.holder is not None
    spool.close()
    assert isinstance(intake, LogIntake)
    intake.close()
    assert fsck(engine).holder is None


def test_fsck_tells_what_is_not_as_it_should_be(tmp_path: Path) -> None:
    engine = log_on_the_kernel(tmp_path)
    root = tmp_path / "spool"
    spool, intake = recovered(engine), engine.intake()
    damaged, long, whole = accept(intake), accept(intake, content=LONG), accept(intake)
    taken(spool)
    spool.hold(whole)
    spool.commit()
    spool.close()
    assert isinstance(intake, LogIntake)
    intake.close()
    engine.damage(damaged)
    engine.damage(long)
    (segment, *_) = engine.segments()
    with opened(engine.disk, engine.disk.open_append(segment)) as fd:
        engine.disk.write_all(fd, b"torn")
    (root / "log/notes").write_bytes(b"")
    (root / "log/0123456789abcdef.0000000001").mkdir()
    (root / "long/0123456789abcdef").write_bytes(b"")
    (root / "long/0123456789abcdef.part").write_bytes(b"")
    (root / "long/x").write_bytes(b"")
    (root / "corrupt/0123456789abcdef").write_bytes(b"")
    (root / "stray").write_bytes(b"")
    (root / "format.123").write_bytes(b"")
    (root / "boots.new").write_bytes(b"others'")

    seen = fsck(engine)
    wanted = ["corrupt_message", "damaged_record", "draft", "foreign", "foreign", "foreign", "foreign"]
    wanted += ["leftover", "leftover", "set_aside", "stray", "torn_group"]
    assert kinds(seen) == sorted(wanted)
    assert seen.messages == 2

    # A start does what was said; by a summary it would find the damage when the message is loaded.
    for summary in (root / "log").glob("*.sum"):
        summary.unlink()
    spool = engine.start()
    assert [entry.queue_id for entry in recover(spool).entries] == [long, whole]
    assert set(engine.names("corrupt")) >= {damaged, "log-notes", "long-x", "boots.new"}


def test_fsck_tells_of_a_format_that_it_does_not_know(tmp_path: Path) -> None:
    engine = log_on_the_kernel(tmp_path)
    recovered(engine).close()
    (tmp_path / "spool/format").write_bytes(b"relay spool 2 log\n")

    assert kinds(fsck(engine)) == ["format"]


def test_a_listener_that_finds_each_stream_taken_refuses_mail(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = log_on_the_model()
    spool, (intake, view) = recovered(engine), listener(engine)
    with monkeypatch.context() as patched:
        patched.setattr(view, "leads_to", lambda _path, _fd: False)
        draft = intake.draft()
        draft.append(CONTENT)
        (error,) = intake.accept([(draft, ENVELOPE)])
    assert isinstance(error, OSError)
    assert error.errno == errno.EAGAIN
    queue_id = accept(intake)

    assert taken(spool) == [queue_id]
    # Locks that nobody holds, and no segment: what a dead listener leaves goes with the next that ends.
    intake.close()
    assert taken(spool) == []
    spool.mark({queue_id: dict.fromkeys(range(3), RELAYED)})
    spool.finish([queue_id])
    spool.commit()
    assert [name for name in engine.names("log") if name.endswith(".lock")] == []


def test_a_draft_whose_file_was_taken_for_abandoned_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = log_on_the_model()
    recovered(engine)
    intake, view = listener(engine)
    draft = intake.draft()
    draft.append(CONTENT)
    monkeypatch.setattr(view, "lock_open", lambda _fd: False)
    with pytest.raises(OSError, match="taken for abandoned"):
        intake.spill(draft)
    assert engine.names("long") == []


def test_a_silent_write_of_long_content_is_noticed() -> None:
    engine = log_on_the_model()
    recovered(engine)
    intake, view = listener(engine)
    for nth, is_spilled in [(1, False), (1, True), (2, True), (3, True), (4, True)]:
        draft = intake.draft()
        draft.append(LONG)
        view.fail(Fault(nth, 0, is_silent=True, kinds=frozenset({"write"}), path="/long"))
        if is_spilled:
            intake.spill(draft)
        (error,) = intake.accept([(draft, ENVELOPE)])
        assert isinstance(error, OSError)
    assert engine.names("long") == []


def test_fsck_beside_a_writer_and_after_a_loss(tmp_path: Path) -> None:
    engine = log_on_the_kernel(tmp_path)
    spool, intake = recovered(engine), engine.intake()
    accept(intake)
    # Written and not announced: no fault.
    (segment,) = engine.segments()
    with opened(engine.disk, engine.disk.open_append(segment)) as fd:
        engine.disk.write_all(fd, b"half a group")
    assert kinds(fsck(engine)) == []
    taken(spool)
    queue_id = accept(intake, content=LONG)
    spool.close()
    assert isinstance(intake, LogIntake)
    intake.close()
    raw = (tmp_path / "spool/log" / segment.rpartition("/")[2]).read_bytes()
    (tmp_path / "spool/log" / "0123456789abcdef.0000000001").write_bytes(b"?" * len(raw))
    (tmp_path / "spool/log" / "0123456789abcdef.0000000002").write_bytes(b"")

    seen = fsck(engine)
    assert "damaged_header" in kinds(seen)
    assert "damaged_record" in kinds(seen)
    assert queue_id in engine.names("long")


def test_fsck_of_a_writer_that_has_announced_nothing_says_nothing(tmp_path: Path) -> None:
    engine = log_on_the_kernel(tmp_path)
    spool, intake = recovered(engine), engine.intake()
    accept(intake)
    (lock,) = (tmp_path / "spool/log").glob("*.lock")
    lock.write_bytes(b"")
    seen = fsck(engine)
    assert (kinds(seen), seen.messages) == ([], 0)
    spool.close()


def test_fsck_leaves_long_content_to_the_listener_that_holds_it(tmp_path: Path) -> None:
    engine = log_on_the_kernel(tmp_path)
    recovered(engine).close()
    path = tmp_path / "spool/long/0123456789abcdef"
    path.write_bytes(b"whole, and its record is being written")
    assert kinds(fsck(engine)) == ["leftover"]
    held = engine.disk.lock(str(path), wait=False)
    assert held is not None
    assert kinds(fsck(engine)) == []
    engine.disk.close(held)


def test_fsck_tells_what_in_corrupt_was_a_message(tmp_path: Path) -> None:
    engine = log_on_the_kernel(tmp_path)
    recovered(engine).close()
    for name in ("0123456789abcdef", "log-notes.txt"):
        (tmp_path / "spool/corrupt" / name).write_bytes(b"")
    found = {Path(each.path).name: each.what for each in fsck(engine).findings}
    assert found == {
        "0123456789abcdef": "a message that was set aside",
        "log-notes.txt": "what was set aside",
    }


def test_fsck_reads_messages_of_a_listeners_stream_and_nothing_else(tmp_path: Path) -> None:
    engine = log_on_the_kernel(tmp_path)
    recovered(engine).close()
    intake = engine.intake()
    queue_id = accept(intake)
    assert isinstance(intake, LogIntake)
    intake.close()
    (path,) = engine.segments()
    name = segment_of(path.rpartition("/")[2])
    assert name is not None
    size = len(engine.content_of(path))
    group, _ = encode_group(mark_of(name), [New(GONE_RECORD, queue_id, b"", 3)], size)
    with opened(engine.disk, engine.disk.open_append(path)) as fd:
        engine.disk.write_all(fd, b"".join(group))
    seen = fsck(engine)
    assert (kinds(seen), seen.messages) == ([], 1)


@pytest.mark.parametrize("when_read", [True, False])
@pytest.mark.parametrize("error", [BROKEN, GONE])
@pytest.mark.parametrize("part", ["/long/", "/log/sender.", "/log/1"])
def test_fsck_tells_of_what_it_cannot_read_and_not_of_what_went(
    tmp_path: Path, part: str, error: int, *, when_read: bool
) -> None:
    engine = log_on_the_kernel(tmp_path)
    spool, intake = recovered(engine), engine.intake()
    queue_id = accept(intake, content=LONG)
    taken(spool)
    spool.hold(queue_id)
    spool.commit()
    spool.close()
    assert isinstance(intake, LogIntake)
    intake.close()
    seen = LogInspector(engine.root, Denying(part, error, when_read=when_read)).inspect()
    told = [each.becomes for each in seen.findings if part in each.path]
    assert bool(told) == (error == BROKEN)


def test_fsck_passes_on_what_is_a_lack_of_its_own(tmp_path: Path) -> None:
    engine = log_on_the_kernel(tmp_path)
    recovered(engine).close()
    accept(engine.intake())
    with pytest.raises(OSError, match="Too many open files"):
        LogInspector(engine.root, Denying(".0000000001", TOO_MANY)).inspect()


def test_fsck_tells_nothing_of_a_draft_that_went_meanwhile(tmp_path: Path) -> None:
    engine = log_on_the_kernel(tmp_path)
    recovered(engine).close()
    draft = tmp_path / "spool/long/0123456789abcdef.part"
    draft.write_bytes(b"")

    class Later(RealDisk):
        """Removes the draft once its folder was listed."""

        def names(self, path: str) -> list[str]:
            found = super().names(path)
            if path.endswith("/long"):
                draft.unlink()
            return found

    assert kinds(LogInspector(engine.root, Later()).inspect()) == []


def test_fsck_tells_nothing_of_a_segment_that_went_meanwhile(tmp_path: Path) -> None:
    engine = log_on_the_kernel(tmp_path)
    recovered(engine).close()
    accept(engine.intake())
    (segment,) = (tmp_path / "spool/log").glob("*.0000000001")

    class Later(RealDisk):
        """Removes the segment once its folder was listed, as a sender at work does."""

        def names(self, path: str) -> list[str]:
            found = super().names(path)
            if path.endswith("/log"):
                segment.unlink(missing_ok=True)
            return found

    seen = LogInspector(engine.root, Later()).inspect()
    assert (kinds(seen), seen.messages) == ([], 0)


def test_taking_one_reads_a_part_of_a_long_stream() -> None:
    engine = log_on_the_model()
    intake = engine.intake()
    queue_ids = [accept(intake, content=b"x" * 900) for _ in range(3 * READ_AHEAD)]
    ((path, at, size),) = engine.places(queue_ids[-1])

    class Counting(ModelDisk):
        """Knows how far the segment was read."""

        furthest = 0

        def pread(self, fd: int, size: int, offset: int) -> bytes:
            if self._entry(fd)[1] == path:
                self.furthest = max(self.furthest, offset + size)
            return super().pread(fd, size, offset)

    assert isinstance(engine.disk, ModelDisk)
    view = Counting(engine.disk.platter)
    spool = LogSpool(engine.root, view, engine.clock)
    assert taken(spool, 1) == queue_ids[:1]
    assert view.furthest < (at + size) * 2 // 3
    assert taken(spool, len(queue_ids)) == queue_ids[1:]


def test_a_lock_that_cannot_be_looked_at_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = log_on_the_model()
    spool, (intake, view) = recovered(engine), listener(engine)

    def refused(path: str, _fd: int) -> bool:
        raise disk_error(errno.EIO, path)

    draft = intake.draft()
    draft.append(CONTENT)
    with monkeypatch.context() as patched:
        patched.setattr(view, "leads_to", refused)
        (error,) = intake.accept([(draft, ENVELOPE)])
    assert isinstance(error, OSError)
    # Nobody holds it any more: the sender takes its stream for dead.
    assert taken(spool) == []
    assert [name for name in engine.names("log") if name.endswith(".lock")] == []
