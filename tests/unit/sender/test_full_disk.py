"""On a nearly full disk (a real tmpfs) new mail is refused, so that room is left for reports and marks.

tests/system/test_relay_full_disk.py tests a relay on a disk that is full to its last blocks.
"""

from pathlib import Path

import pytest

from relay.clock import SystemClock
from relay.daemon.spool_intake import NO_ROOM, SpoolIntake
from relay.mail.envelope import Envelope
from relay.smtp.commands import Refused
from relay.spool.disk.durable import RealDisk
from relay.spool.interface import Unavailable
from relay.spool.maildir.intake import MaildirIntake
from relay.spool.maildir.layout import prepare
from relay.spool.root.headroom import HEADROOM_BYTES, HEADROOM_INODES
from relay.spool.root.trigger import Trigger
from tests.system import small_disk
from tests.system.demand import demand
from tests.system.small_disk import MEGABYTE, tmpfs
from tests.unit.sender.in_process_relay import CONTENT

PAGE_BYTES = 4096
ENVELOPE = Envelope("a@here.example", ("b@there.example",), 1, "local", "here", "ESMTP")


async def test_new_mail_leaves_room_for_reports(tmp_path: Path) -> None:
    demand(small_disk.why_missing())
    with tmpfs(tmp_path / "small", size_bytes=24 * MEGABYTE) as small:
        root = str(small.path / "spool")
        prepare(root, RealDisk())
        errors: list[Unavailable] = []
        intake = SpoolIntake(
            MaildirIntake(root, RealDisk(), SystemClock()), Trigger(root, RealDisk()), errors.append
        )
        small.fill_to(HEADROOM_BYTES + MEGABYTE)
        await intake.look_for_room()

        assert (intake.refusal(0), intake.refusal(MEGABYTE // 2)) == (None, None)
        # With a declared size before anything is sent; without one when the message is written.
        assert intake.refusal(2 * MEGABYTE) == NO_ROOM
        for lacks in ("octets", "inodes"):
            small.empty()
            if lacks == "octets":
                small.fill_to(HEADROOM_BYTES - PAGE_BYTES)
            else:
                small.fill_inodes_to(HEADROOM_INODES - 1)
            draft = intake.draft()
            draft.append(CONTENT)
            with pytest.raises(Refused, match=r"452 4\.3\.1"):
                await intake.accept(draft, ENVELOPE)
            await intake.look_for_room()
            assert intake.refusal(0) == NO_ROOM
        small.empty()
        await intake.look_for_room()
        assert intake.refusal(0) is None
        draft = intake.draft()
        draft.append(CONTENT)
        await intake.accept(draft, ENVELOPE)
        assert (RealDisk().names(f"{root}/new"), RealDisk().names(f"{root}/tmp")) == ([draft.queue_id], [])
        assert not errors
        intake.close()
