"""Clean-up removes what is proven dead and nothing else, whatever clocks and times of files say."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.spool.maildir.intake import MaildirIntake
from relay.spool.message import message_file
from relay.spool.message.arriving import SpoolDraft
from tests.fakes.disk import ModelDisk
from tests.unit.spool.engine import CONTENT, ENVELOPE, accept, again, note, recovered, taken
from tests.unit.spool.maildir_engine import MaildirEngine, on_the_kernel, on_the_model
from tests.unit.spool.recovering import recover

TEN_YEARS_NS = 10 * 365 * 86_400 * SECOND_NS
STEPS = [TEN_YEARS_NS, -TEN_YEARS_NS, 37 * 3600 * SECOND_NS, -37 * 3600 * SECOND_NS]


def half_a_draft(engine: MaildirEngine) -> tuple[MaildirIntake, SpoolDraft]:
    """Return a listener and a draft of it that is partly on disk."""
    intake = cast("MaildirIntake", engine.intake())
    draft = intake.draft()
    draft.append(CONTENT)
    intake.spill(draft)
    return intake, draft


@pytest.mark.parametrize("step_ns", STEPS)
def test_a_live_writers_draft_survives_clean_up_at_any_instant(
    step_ns: int,
) -> None:
    engine = on_the_model()
    spool = recovered(engine)
    intake = cast("MaildirIntake", engine.intake())
    view = intake._disk  # the view of the disk that the listener writes through
    assert isinstance(view, ModelDisk)
    removed: list[int] = []

    def meanwhile(_step: str) -> None:
        engine.clock.step_wall(step_ns)
        removed.append(spool.clean_up())

    view.before = meanwhile
    draft = intake.draft()
    for _ in range(3):
        draft.append(CONTENT)
        intake.spill(draft)
    assert intake.accept([(draft, ENVELOPE)]) == [None]
    view.before = None

    assert len(removed) > 8
    assert sum(removed) == 0
    assert taken(spool) == [draft.queue_id]
    assert spool.load(draft.queue_id).content == CONTENT * 3


@pytest.mark.parametrize("step_ns", STEPS)
def test_a_dead_writers_draft_is_removed_though_the_clock_steps(step_ns: int) -> None:
    engine = on_the_model()
    spool = recovered(engine)
    intake, _ = half_a_draft(engine)
    view = intake._disk  # the view of the disk that the listener writes through
    assert isinstance(view, ModelDisk)
    engine.clock.step_wall(step_ns)
    assert spool.clean_up() == 0
    view.die()
    engine.clock.step_wall(-step_ns)

    assert spool.clean_up() == 1
    assert engine.names("tmp") == engine.names("corrupt") == []


@pytest.mark.parametrize("at_ns", [0, 1, 10**18, 4 * 10**18])
def test_times_that_a_reader_or_a_restore_left_decide_nothing(tmp_path: Path, at_ns: int) -> None:
    engine = on_the_kernel(tmp_path)
    spool = recovered(engine)
    intake, draft = half_a_draft(engine)
    path = engine.layout.draft(draft.queue_id)
    os.utime(path, ns=(at_ns, at_ns))
    assert spool.clean_up() == 0
    spool = again(engine, spool)
    assert Path(path).exists()
    assert draft.fd is not None
    os.close(draft.fd)  # as the kernel does for a dead process
    draft.fd = None
    os.utime(path, ns=(at_ns, at_ns))

    assert spool.clean_up() == 1
    assert intake.free()


def test_a_killed_listeners_draft_goes_and_a_living_ones_stays(tmp_path: Path) -> None:
    program = (
        "import sys; from relay.clock import SystemClock; from relay.spool.disk.durable import RealDisk;"
        "from relay.spool.maildir.intake import MaildirIntake;"
        "intake = MaildirIntake(sys.argv[1], RealDisk(), SystemClock()); draft = intake.draft();"
        "draft.append(b'x' * 4096); intake.spill(draft); print(draft.queue_id, flush=True); sys.stdin.read()"
    )
    engine = on_the_kernel(tmp_path)
    spool = recovered(engine)
    command = [sys.executable, "-c", program, engine.root]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None
        queue_id = listener.stdout.readline().strip()
        os.utime(engine.layout.draft(QueueId(queue_id)), ns=(0, 0))
        assert spool.clean_up() == 0
        listener.send_signal(signal.SIGKILL)
        listener.wait()
        assert spool.clean_up() == 1
    assert engine.names("tmp") == []


@pytest.mark.parametrize(
    "torn", [b"", b"\0", bytes(4096), b"relay-mes", b"relay-message 1 0000" + bytes(492)]
)
def test_what_a_crash_leaves_of_a_draft_is_removed(torn: bytes) -> None:
    engine = on_the_model()
    spool = recovered(engine)
    engine.plant(f"{engine.root}/tmp/0000000000000000", torn)

    assert spool.clean_up() == 1
    assert engine.names("tmp") == engine.names("corrupt") == []


@pytest.mark.parametrize("foreign", [b"From: me\r\n", b"relay-message 2 ", b"\0\0x", b"relay-messagf 1 "])
def test_what_no_listener_of_ours_wrote_is_kept(foreign: bytes) -> None:
    engine = on_the_model()
    spool = recovered(engine)
    engine.plant(f"{engine.root}/tmp/0000000000000000", foreign)

    assert spool.clean_up() == 0
    assert engine.content_of(f"{engine.root}/corrupt/tmp-0000000000000000") == foreign
    assert spool.corrupt_count() == 1


@pytest.mark.parametrize("name", ["mine", ".0000000000000000", "0000000000000000.tmp"])
def test_a_draft_by_a_name_that_we_do_not_give_is_set_aside(name: str) -> None:
    engine = on_the_model()
    spool = recovered(engine)
    # As a listener leaves a long message that it could not finish.
    begun = bytes(message_file.HEADER_BYTES) + b"somebody's"
    engine.plant(f"{engine.root}/tmp/{name}", begun)

    assert spool.clean_up() == 0
    assert engine.names("tmp") == []
    assert engine.names("corrupt") == [f"tmp-{name}"]
    assert engine.content_of(f"{engine.root}/corrupt/tmp-{name}") == begun


def test_a_message_is_due_within_bounds_whatever_its_files_time(tmp_path: Path) -> None:
    """The hint of the next attempt is the one time of a file that is read: it is only a hint."""
    engine = on_the_kernel(tmp_path)
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    for at_ns in (0, 1, 4 * 10**18):
        os.utime(engine.layout.queued(queue_id), ns=(at_ns, at_ns))
        spool.close()
        spool = engine.start()
        (entry,) = recover(spool).entries
        assert entry.next_attempt_at_ns == (at_ns if at_ns > ENVELOPE.arrival_at_ns else None)
        assert entry.recipients_left == 3


def test_only_notes_are_removed_and_only_after_their_message() -> None:
    engine = on_the_model()
    spool, queue_id = recovered(engine), accept(engine.intake())
    taken(spool)
    spool.note({queue_id: [note(0)]})
    engine.plant(f"{engine.root}/bounce/0000000000000000", b'{"index":0,"sta')
    engine.plant(f"{engine.root}/bounce/0000000000000001", b"my shopping list")
    for step_ns in STEPS:
        engine.clock.step_wall(step_ns)
        spool = again(engine, spool)

    assert engine.names("bounce") == [queue_id]
    assert engine.names("corrupt") == ["bounce-0000000000000001"]


def test_what_is_removed_from_corrupt_is_uncounted_by_clean_up() -> None:
    engine = on_the_model()
    spool = recovered(engine)
    engine.plant(f"{engine.root}/new/README", b"x")
    assert taken(spool) == []
    assert spool.corrupt_count() == 1
    engine.disk.unlink(f"{engine.root}/corrupt/README")

    spool.clean_up()
    assert spool.corrupt_count() == 0
