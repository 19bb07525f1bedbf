"""Two processes at one file at the same instant: whoever is quicker, nothing is lost and nothing leaks."""

import errno
import signal
import threading
from pathlib import Path
from types import FrameType

import pytest

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import RealDisk
from relay.spool.maildir.intake import MaildirIntake
from tests.fakes.disk import Fault, ModelDisk
from tests.unit.spool.engine import ENVELOPE, accept, recovered, taken
from tests.unit.spool.maildir_engine import MaildirEngine, on_the_model
from tests.unit.spool.recovering import recover


def listener_of(engine: MaildirEngine, disk: ModelDisk) -> MaildirIntake:
    return MaildirIntake(engine.root, disk, engine.clock)


def model_of(engine: MaildirEngine) -> ModelDisk:
    assert isinstance(engine.disk, ModelDisk)
    return engine.disk


@pytest.mark.parametrize("spills", [False, True])
def test_a_draft_that_clean_up_took_is_refused(*, spills: bool) -> None:
    """Clean-up holds the lock of a file that its writer has created and not locked yet."""
    engine = on_the_model()
    recovered(engine).close()
    cleaner, writer = model_of(engine).another(), model_of(engine).another()
    locked: list[int] = []

    def lock_first() -> None:
        writer.after = None
        (name,) = cleaner.names(engine.layout.folder("tmp"))
        locked.append(cleaner.open_update(engine.layout.draft(QueueId(name))))
        assert cleaner.lock_open(locked[0])

    intake = listener_of(engine, writer)
    draft = intake.draft()
    draft.append(b"Subject: taken\r\n\r\n")
    writer.after = lock_first
    if spills:
        with pytest.raises(OSError, match="abandoned"):
            intake.spill(draft)
    else:
        (error,) = intake.accept([(draft, ENVELOPE)])
        assert error is not None
        assert error.errno == errno.EAGAIN

    assert draft.fd is None
    assert engine.names("new") == []
    cleaner.close(locked[0])
    spool = recovered(engine)
    assert engine.names("tmp") == []
    assert taken(spool) == []


def test_a_message_its_listener_may_take_back_is_left_for_later() -> None:
    """The sender looks between the link into new/ and the sync that makes it durable."""
    engine = on_the_model()
    spool, writer = recovered(engine), model_of(engine).another()
    seen: list[list[QueueId]] = []

    def look() -> None:
        if not seen and engine.names("new"):
            seen.append(taken(spool))

    intake = listener_of(engine, writer)
    draft = intake.draft()
    draft.append(b"Subject: early\r\n\r\n")
    writer.after = look

    assert intake.accept([(draft, ENVELOPE)]) == [None]
    assert seen == [[]]
    assert taken(spool) == [draft.queue_id]
    spool.close()


def test_a_draft_whose_writer_was_quicker_is_none_to_clean_up() -> None:
    engine = on_the_model()
    cleaner = model_of(engine).another()
    spool = recovered(engine)
    intake = listener_of(engine, model_of(engine).another())
    draft = intake.draft()
    draft.append(b"x")
    intake.spill(draft)
    spool.close()
    engine.disk.another = lambda: cleaner  # type: ignore[attr-defined]  # the one that comes too late
    spool = recovered(engine)
    cleaner.fail(Fault(1, errno.ENOENT, kinds=frozenset({"open"}), path="/tmp/"))

    assert spool.clean_up() == 0
    assert cleaner.has_failed
    assert intake.accept([(draft, ENVELOPE)]) == [None]
    assert taken(spool) == [draft.queue_id]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_clean_up_removes_no_live_draft_that_it_cannot_open(number: int) -> None:
    engine = on_the_model()
    recovered(engine).close()
    intake = listener_of(engine, model_of(engine).another())
    draft = intake.draft()
    draft.append(b"x")
    intake.spill(draft)
    view = model_of(engine).another()
    engine.disk.another = lambda: view  # type: ignore[attr-defined]  # the one whose calls fail
    spool = engine.start()
    view.fail(Fault(1, number, kinds=frozenset({"open"}), path="/tmp/"))

    if number == errno.EMFILE:
        with pytest.raises(OSError, match="Too many open files"):
            recover(spool)
    else:
        # A bad sector: told of, and no reason to keep all mail.
        recover(spool)
        assert engine.told == [(f"tmp-{draft.queue_id}", "cannot be read, and is left: Input/output error")]
    assert engine.names("tmp") == [draft.queue_id]


def test_a_start_that_slept_finds_what_was_removed_absent() -> None:
    """A name that was listed and is gone when it is opened is nobody's fault."""
    engine = on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.close()
    view = model_of(engine).another()
    engine.disk.another = lambda: view  # type: ignore[attr-defined]  # the one that comes too late
    spool = engine.start()
    view.fail(Fault(1, errno.ENOENT, kinds=frozenset({"open"}), path=queue_id))

    recovery = recover(spool)
    assert view.has_failed
    assert (recovery.entries, recovery.corrupt, recovery.missing_recipients) == ((), 0, 3)


class Alarm(Exception):  # noqa: N818 - what rings
    """Somebody interrupts whoever waits."""


def test_an_interrupted_wait_for_a_lock_leaves_no_descriptor(tmp_path: Path) -> None:
    disk, path = RealDisk(), str(tmp_path / "lock")
    holder = disk.lock(path, wait=False)
    assert holder is not None
    assert threading.current_thread() is threading.main_thread()
    open_before = len(list(Path("/proc/self/fd").iterdir()))

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(Alarm):
            disk.lock(path, wait=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    assert len(list(Path("/proc/self/fd").iterdir())) == open_before
    disk.close(holder)
    again = disk.lock(path, wait=False)
    assert again is not None
    disk.close(again)
