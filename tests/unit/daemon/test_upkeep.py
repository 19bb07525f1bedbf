"""What a listener does with a message whose client disconnects."""

import asyncio
import os
import select
import threading
from pathlib import Path

import pytest

from relay.clock import SystemClock
from relay.daemon.spool_intake import SpoolIntake
from relay.mail.envelope import Envelope
from relay.spool.disk.durable import RealDisk
from relay.spool.maildir.intake import MaildirIntake
from relay.spool.maildir.layout import prepare
from relay.spool.root.trigger import Trigger
from tests.fakes.unsynced import Unsynced
from tests.unit.sender.in_process_relay import CONTENT


class Slow:
    """Counts these calls of a disk, and makes the first of them wait for the test."""

    def __init__(self, call: str) -> None:
        self.call, self.count = call, 0
        self.is_at_it = threading.Event()
        self.may_go_on = threading.Event()

    def before(self, call: str, _path: str) -> None:
        if call == self.call:
            self.count += 1
            self.is_at_it.set()
            self.may_go_on.wait()


def intake_on(slow: Slow, root: Path) -> tuple[SpoolIntake, int]:
    disk = Unsynced(slow.before)
    prepare(str(root), RealDisk())
    trigger = Trigger(str(root), disk)
    return SpoolIntake(MaildirIntake(str(root), disk, SystemClock()), trigger), trigger.listen()


async def cancel(call: "asyncio.Task[None]", slow: Slow) -> bool:
    """Cancel a call while its thread is at the disk; return whether the call waits for the thread."""
    await asyncio.to_thread(slow.is_at_it.wait)
    call.cancel()
    for _ in range(9):
        await asyncio.sleep(0)
    has_waited = not call.done()
    slow.may_go_on.set()
    await asyncio.gather(call, return_exceptions=True)
    assert call.cancelled()
    return has_waited


def open_files(root: Path) -> list[str]:
    folder = Path("/proc/self/fd")
    return [str(fd.readlink()) for fd in folder.iterdir() if fd.is_symlink() and str(root) in os.readlink(fd)]  # noqa: PTH115 - may be gone


async def test_a_draft_whose_client_disconnects_leaves_no_file(tmp_path: Path) -> None:
    slow = Slow("write_all")
    intake, _ = intake_on(slow, tmp_path)
    draft = intake.draft()
    draft.append(CONTENT)
    assert await cancel(asyncio.create_task(intake.spill(draft)), slow)
    await intake.discard(draft)

    assert list((tmp_path / "tmp").iterdir()) == []
    assert [path for path in open_files(tmp_path) if "/tmp/" + draft.queue_id in path] == []
    intake.close()


async def test_a_message_whose_client_disconnects_during_the_sync_is_stored(tmp_path: Path) -> None:
    slow = Slow("sync_each")
    intake, woken = intake_on(slow, tmp_path)
    draft, other = intake.draft(), intake.draft()
    envelope = Envelope("a@x.example", ("b@x.example",), 0, "unknown[127.0.0.1]", "here", "ESMTP")
    draft.append(CONTENT)
    other.append(CONTENT)
    storing = asyncio.create_task(intake.accept(draft, envelope))
    also = asyncio.create_task(intake.accept(other, envelope))
    await cancel(storing, slow)
    await also

    assert {path.name for path in (tmp_path / "new").iterdir()} == {draft.queue_id, other.queue_id}
    assert slow.count == 1, "they share a sync"
    assert select.select([woken], [], [], 0)[0]
    intake.close()
    with pytest.raises(RuntimeError):
        await intake.accept(intake.draft(), envelope)
