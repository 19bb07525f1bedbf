"""The headroom that new mail leaves and the reserve that gives way: see relay.spool.root.headroom."""

import errno

import pytest

from relay.spool.interface import SpoolFull
from relay.spool.maildir.engine import MaildirSpool
from relay.spool.maildir.intake import MaildirIntake
from relay.spool.maildir.layout import Layout
from relay.spool.root.headroom import (
    HEADROOM_BYTES,
    HEADROOM_INODES,
    RESERVE_BYTES,
    NoHeadroom,
    why_no_room,
)
from tests.engines.spool.engine import BOUNCED, ENVELOPE, RELAYED, accept, is_balanced, note, taken
from tests.engines.spool.plays import prepared
from tests.engines.spool.recovering import recover
from tests.engines.spool.world import ROOT
from tests.fakes.clock import FakeClock
from tests.fakes.disk import Fault, ModelDisk

RESERVE = Layout(ROOT).file("reserve")


class Nearly(ModelDisk):
    """A disk that says how much is free."""

    def __init__(self, disk: ModelDisk, free_bytes: int) -> None:
        super().__init__(disk.platter)
        self.free_now = (free_bytes, None)

    def free(self, path: str) -> tuple[int, int | None]:
        assert path.startswith(ROOT)
        return self.free_now


def _started(disk: ModelDisk) -> MaildirSpool:
    spool = MaildirSpool(ROOT, disk, FakeClock())
    recover(spool)
    return spool


@pytest.mark.parametrize(
    ("free", "wanted", "is_room"),
    [
        ((HEADROOM_BYTES + 10, None), 10, True),
        ((HEADROOM_BYTES + 10, None), 11, False),
        ((HEADROOM_BYTES, HEADROOM_INODES), 0, True),
        ((HEADROOM_BYTES, HEADROOM_INODES - 1), 0, False),
    ],
)
def test_new_mail_leaves_a_headroom_of_bytes_and_inodes(
    free: tuple[int, int | None], wanted: int, *, is_room: bool
) -> None:
    assert (why_no_room(free, wanted) is None) == is_room


def test_a_report_may_eat_the_headroom_and_new_mail_may_not() -> None:
    disk = Nearly(prepared(), HEADROOM_BYTES + 999)
    spool, intake = _started(disk), MaildirIntake(ROOT, disk, FakeClock())
    draft = intake.draft()
    draft.append(bytes(1000))
    with pytest.raises(NoHeadroom):
        # While it still arrives.
        intake.spill(draft)
    disk.free_now = (HEADROOM_BYTES - 1, None)
    draft = intake.draft()
    draft.append(b"content")
    (error,) = intake.accept([(draft, ENVELOPE)])

    assert isinstance(error, NoHeadroom)
    assert error.errno == errno.ENOSPC
    assert (disk.names(f"{ROOT}/tmp"), disk.names(f"{ROOT}/new")) == ([], [])
    assert spool.publish_report(draft.queue_id, ENVELOPE, b"Subject: sorry\r\n\r\n")


def test_the_reserve_goes_for_a_full_disk_alone_and_comes_back_with_room() -> None:
    disk = Nearly(prepared(), 1 << 30)
    spool = _started(disk)
    queue_id = accept(MaildirIntake(ROOT, disk, FakeClock()))
    taken(spool)
    disk.fail(Fault(1, errno.EMFILE, kinds=frozenset({"open_new"})))
    with pytest.raises(SpoolFull):
        spool.note({queue_id: [note(0)]})
    assert disk.length(RESERVE) == RESERVE_BYTES

    disk.fail(Fault(1, errno.ENOSPC, kinds=frozenset({"open_new"})))
    disk.free_now = (HEADROOM_BYTES + RESERVE_BYTES - 1, None)
    spool.note({queue_id: [note(0)]})
    spool.take(1)
    assert disk.length(RESERVE) is None
    disk.free_now = (HEADROOM_BYTES + RESERVE_BYTES, None)
    spool.take(1)
    assert disk.length(RESERVE) == RESERVE_BYTES


@pytest.mark.parametrize("how", [{"is_short": True}, {"is_lying": True}])
def test_a_reserve_that_does_not_fit_is_none(how: dict[str, bool]) -> None:
    """Some file systems look for blocks only when they have to write them: a sync tells."""
    disk = prepared()
    disk.unlink(RESERVE)
    disk.fail(Fault(1, errno.ENOSPC, kinds=frozenset({"write"}), path=RESERVE, **how))

    _started(disk)

    assert disk.has_failed
    assert disk.length(RESERVE) is None


def test_a_start_on_a_full_disk_goes_on_and_counts_each_message_once() -> None:
    disk = prepared()
    spool, intake = _started(disk), MaildirIntake(ROOT, disk.another(), FakeClock())
    ended, queued = accept(intake), accept(intake)
    taken(spool)
    spool.mark({ended: dict.fromkeys(range(3), RELAYED)})
    spool.finish([ended])
    spool.close()
    # Nothing new can be made, and nothing made longer, until the sender is at work.
    disk.fail(Fault(1, errno.ENOSPC, kinds=frozenset({"open_new"}), forever=True))

    spool = _started(disk)
    spool.mark({queued: {0: RELAYED, 1: RELAYED, 2: BOUNCED}})
    disk.heal()
    spool.finish([queued])

    totals = spool.totals()
    assert (totals.accepted, totals.relayed, totals.bounced, totals.queued) == (6, 5, 1, 0)
    spool.close()
    assert is_balanced(_started(disk).totals())
