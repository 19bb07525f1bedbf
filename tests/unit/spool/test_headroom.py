"""The headroom that new mail leaves and the reserve that gives way: see relay.spool.root.headroom."""

import errno

import pytest

from relay.spool.interface import Intake, SpoolFault, SpoolFull, Status
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
from tests.fakes.clock import FakeClock
from tests.fakes.disk import Fault, ModelDisk
from tests.fakes.platter import NameChange
from tests.unit.spool.engine import BOUNCED, ENVELOPE, RELAYED, accept, is_balanced, note, taken
from tests.unit.spool.plays import prepared
from tests.unit.spool.recovering import recover
from tests.unit.spool.world import ROOT, World

RESERVE = Layout(ROOT).file("reserve")


class Nearly(ModelDisk):
    """A disk that says how much is free."""

    def __init__(self, disk: ModelDisk, free_bytes: int, free_inodes: int | None = None) -> None:
        super().__init__(disk.platter)
        self.free_now = (free_bytes, free_inodes)

    def free(self, path: str) -> tuple[int, int | None]:
        assert path.startswith(ROOT)
        return self.free_now


def _started(disk: ModelDisk) -> MaildirSpool:
    spool = MaildirSpool(ROOT, disk, FakeClock())
    recover(spool)
    return spool


def _intake(disk: ModelDisk) -> Intake:
    return World(disk).listener().intake


@pytest.mark.parametrize(
    ("free", "wanted", "is_room"),
    [
        ((HEADROOM_BYTES, None), 0, True),
        ((HEADROOM_BYTES - 1, None), 0, False),
        ((HEADROOM_BYTES + 10, None), 10, True),
        ((HEADROOM_BYTES + 10, None), 11, False),
        ((HEADROOM_BYTES, HEADROOM_INODES), 0, True),
        ((HEADROOM_BYTES, HEADROOM_INODES - 1), 0, False),
    ],
)
def test_new_mail_leaves_a_headroom_of_bytes_and_inodes(
    free: tuple[int, int | None], wanted: int, is_room: bool
) -> None:
    assert (why_no_room(free, wanted) is None) == is_room


def test_a_report_may_eat_the_headroom_and_new_mail_may_not() -> None:
    disk = Nearly(prepared(), HEADROOM_BYTES - 1)
    spool = _started(disk)
    intake = MaildirIntake(ROOT, disk, FakeClock())
    draft = intake.draft()
    draft.append(b"content")
    (error,) = intake.accept([(draft, ENVELOPE)])

    assert isinstance(error, NoHeadroom)
    assert error.errno == errno.ENOSPC
    assert (disk.names(f"{ROOT}/tmp"), disk.names(f"{ROOT}/new")) == ([], [])
    assert spool.publish_report(draft.queue_id, ENVELOPE, b"Subject: sorry\r\n\r\n")


def test_long_mail_leaves_the_headroom_while_it_still_arrives() -> None:
    disk = Nearly(prepared(), HEADROOM_BYTES + 999)
    intake = MaildirIntake(ROOT, disk, FakeClock())
    draft = intake.draft()
    draft.append(bytes(1000))

    with pytest.raises(NoHeadroom):
        intake.spill(draft)
    assert disk.names(f"{ROOT}/tmp") == []
    disk.free_now = (HEADROOM_BYTES + 1000, None)
    draft = intake.draft()
    draft.append(bytes(1000))
    intake.spill(draft)


def test_the_reserve_is_there_at_once_and_comes_back_with_room() -> None:
    disk = Nearly(prepared(), 1 << 30)
    spool = _started(disk)
    assert disk.length(RESERVE) == RESERVE_BYTES

    assert spool.make_room()
    assert not spool.make_room()
    disk.free_now = (HEADROOM_BYTES + RESERVE_BYTES - 1, None)
    spool.take(1)
    assert disk.length(RESERVE) is None
    disk.free_now = (HEADROOM_BYTES + RESERVE_BYTES, None)
    spool.take(1)
    assert disk.length(RESERVE) == RESERVE_BYTES


def test_a_reserve_that_is_whole_is_not_written_again() -> None:
    disk = prepared()
    before = disk.inode(f"{ROOT}/reserve")

    MaildirSpool(ROOT, disk, FakeClock(), lambda *_told: None).close()
    assert disk.inode(f"{ROOT}/reserve") == before is not None


def test_a_reserve_that_a_crash_left_short_is_made_anew() -> None:
    disk = prepared()
    disk.poke(RESERVE, disk.peek(RESERVE)[:5])

    _started(disk)

    assert disk.length(RESERVE) == RESERVE_BYTES


def test_a_reserve_that_does_not_fit_leaves_no_half_of_it() -> None:
    disk = prepared()
    disk.unlink(RESERVE)
    disk.fail(Fault(1, errno.ENOSPC, kinds=frozenset({"write"}), path=RESERVE, is_short=True))

    _started(disk)

    assert disk.length(RESERVE) is None


def test_a_reserve_whose_blocks_the_disk_did_not_give_is_none() -> None:
    """Some file systems look for blocks only when they have to write them: a sync tells."""
    disk = prepared()
    disk.unlink(RESERVE)
    disk.fail(Fault(1, errno.ENOSPC, kinds=frozenset({"write"}), path=RESERVE, is_lying=True))

    _started(disk)

    assert disk.has_failed
    assert disk.length(RESERVE) is None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_only_a_full_disk_takes_the_reserve(number: int) -> None:
    disk = prepared()
    spool = _started(disk)
    queue_id = accept(_intake(disk))
    taken(spool)
    disk.fail(Fault(1, errno.EMFILE, kinds=frozenset({"open_new"})))
    with pytest.raises(SpoolFull):
        spool.note({queue_id: [note(0)]})
    assert disk.length(RESERVE) == RESERVE_BYTES

    disk.fail(Fault(1, number, kinds=frozenset({"open_new"})))
    spool.note({queue_id: [note(0)]})
    assert disk.length(RESERVE) is None


def test_a_start_on_a_full_disk_goes_on_with_the_long_ledger() -> None:
    disk = prepared()
    spool = _started(disk)
    intake = _intake(disk)
    ended, queued = accept(intake), accept(intake)
    taken(spool)
    everybody: dict[int, Status] = dict.fromkeys(range(3), RELAYED)
    spool.mark({ended: everybody})
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


def test_a_ledger_read_on_a_full_disk_is_durable_first() -> None:
    """The lines are in memory only, of a sender whose sync failed; their message goes for good."""
    disk = prepared()
    spool = _started(disk)
    ended = accept(_intake(disk))
    taken(spool)
    spool.mark({ended: dict.fromkeys(range(3), RELAYED)})
    disk.fail(Fault(1, errno.EIO, kinds=frozenset({"sync_content"}), path="/ledger"))
    with pytest.raises(SpoolFault):
        spool.finish([ended])
    image = disk.after_kill()
    image.fail(Fault(1, errno.ENOSPC, kinds=frozenset({"open_new"}), forever=True))
    assert _started(image).totals().relayed == 3
    assert image.inode(Layout(ROOT).queued(ended)) is None

    # Of all that is not synced the removal reaches the platter first, and then the power goes.
    names = [change for change in image.platter.pending if isinstance(change, NameChange)]
    cut = ModelDisk(image.platter.after_cut(names))
    assert _started(cut).totals().relayed == 3


def test_a_first_start_without_room_for_a_ledger_makes_one_later() -> None:
    disk = prepared()
    queue_id = accept(_intake(disk))
    disk.unlink(Layout(ROOT).file("ledger"))
    disk.fail(Fault(1, errno.ENOSPC, path="/ledger", forever=True))

    spool = _started(disk)
    spool.mark({queue_id: dict.fromkeys(range(3), RELAYED)})
    with pytest.raises(SpoolFull):
        spool.finish([queue_id])
    disk.heal()
    spool.finish([queue_id])

    assert spool.totals().relayed == 3
    spool.close()
    assert _started(disk).totals().relayed == 3
