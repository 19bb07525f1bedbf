"""Every call to the disk of the history fails: nothing is granted that is not charged; it goes on after."""

import errno
import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.throttle.file_history import REPLACE_ABOVE_BYTES
from relay.throttle.history import HistoryError
from relay.throttle.throttle import Reservation, Throttle
from tests.engines.history.limits import ask, granted, messages, settle, throttle
from tests.engines.history.oracle import Seen, most_in_a_window
from tests.engines.spool.faulting import FAULTS
from tests.fakes.clock import FakeClock
from tests.fakes.disk import Fault, ModelDisk
from tests.figures import FIGURES

PATH = Path("/var/history/isp")
LIMIT = messages(5, seconds=60)
OFTEN = ("EIO", "half a write, then ENOSPC", "a lying write", "EIO from then on")
"""Of the kinds of faults those in each `make test`."""


class Account:
    """Senders of one account on one disk, and what their upstream may have seen, in boottime."""

    def __init__(self, disk: ModelDisk, clock: FakeClock, seen: list[Seen], replace_above_bytes: int) -> None:
        self.replace_above_bytes = replace_above_bytes
        self.disk = disk
        self.clock = clock
        self.seen = seen
        self.refused = 0
        """How often the history failed."""

    def sender(self) -> Throttle:
        above = self.replace_above_bytes
        return throttle(PATH, self.disk, self.clock, [LIMIT], replace_above_bytes=above)

    def send(self, sender: Throttle, count: int, *, ends: bool = True) -> None:
        """Send what is granted of so many; what is not seen to end counts until its deadline."""
        try:
            answers = ask(sender, *[1] * count)
        except HistoryError:
            self.refused += 1
            return
        for reservation in (answer for answer in answers if isinstance(answer, Reservation)):
            now_ns = self.clock.boottime_ns()
            self.seen.append(Seen(now_ns, now_ns if ends else reservation.deadline_ns, 1, 1))
            counted = most_in_a_window(self.seen, "messages", LIMIT.per_ns, last=self.seen[-1])
            assert counted <= LIMIT.count, f"{counted} in one window"
            if ends:
                settle(sender, self.clock, reservation)

    def flush(self, sender: Throttle) -> None:
        try:
            sender.flush()
        except HistoryError:
            self.refused += 1


def _live(account: Account) -> None:
    """Two senders, one that dies in the middle, ends that others have to learn, a file that grows."""
    one, two = account.sender(), account.sender()
    account.send(one, 1)
    account.send(two, 2, ends=False)
    account.flush(one)
    account.clock.advance(20 * SECOND_NS)
    account.send(two, 3)
    account.flush(two)
    successor = account.sender()
    account.send(successor, 2)
    account.clock.advance(200 * SECOND_NS)
    for sender in (successor, one, successor):
        account.send(sender, 2)
    account.flush(successor)


def _images(account: Account) -> list[tuple[ModelDisk, FakeClock]]:
    """Return what a sender may find when all others were killed, or the power was cut."""
    platter, clock = account.disk.platter, account.clock
    killed = (account.disk.after_kill(), FakeClock(clock.boottime_ns(), clock.wall_ns()))
    cuts = [ModelDisk(platter.after_cut(())), ModelDisk(platter.after_cut(platter.pending))]
    booted = []
    for cut in cuts:
        after = FakeClock(clock.boottime_ns(), clock.wall_ns())
        # No time passes, which is the worst that a reboot can do.
        after.reboot(boottime_ns=0)
        booted.append((cut, after))
    return [killed, *booted]


def _prepared() -> ModelDisk:
    disk = ModelDisk()
    disk.make_directory(str(PATH.parent.parent))
    return disk


@pytest.mark.parametrize(
    ("kind", "replaces"),
    [
        pytest.param(kind, replaces, marks=() if kind in OFTEN else pytest.mark.full)
        for kind in FAULTS
        for replaces in (False, True)
    ],
)
def test_no_fault_of_the_disk_grants_what_is_not_charged(kind: str, replaces: bool) -> None:
    above = 0 if replaces else REPLACE_ABOVE_BYTES
    for nth in itertools.count(1):
        account = Account(_prepared(), FakeClock(), [], above)
        account.disk.fail(FAULTS[kind](nth))
        _live(account)
        if not account.disk.has_failed:
            assert account.refused == 0
            break
        FIGURES["simulated faults under a history"] += 1
        account.disk.heal()
        for image, clock in _images(account):
            shift_ns = clock.boottime_ns() - account.clock.boottime_ns()
            moved = [_moved(each, shift_ns) for each in account.seen]
            after = Account(image, clock, moved, above)
            after.send(after.sender(), 6)
            assert not after.refused, f"{kind} at {nth}: {account.disk.steps[-4:]}"
    assert nth > 3


def _moved(seen: Seen, shift_ns: int) -> Seen:
    assert seen.ended_at_ns is not None
    return replace(seen, started_at_ns=seen.started_at_ns + shift_ns, ended_at_ns=seen.ended_at_ns + shift_ns)


def test_a_full_disk_that_stops_compaction_stops_no_mail() -> None:
    disk, clock = _prepared(), FakeClock()
    account = throttle(PATH, disk, clock, [LIMIT], replace_above_bytes=0)
    granted(account, 1)
    inode = disk.inode(str(PATH))
    disk.fail(Fault(1, errno.ENOSPC, kinds=frozenset({"open_new"}), forever=True))

    for _ in range(4):
        assert len(granted(account, 1)) == 1
        assert disk.inode(str(PATH)) == inode
    assert disk.inode(f"{PATH}.new") is None
    disk.heal()
    assert granted(throttle(PATH, disk, clock, [LIMIT]), 1) == []
