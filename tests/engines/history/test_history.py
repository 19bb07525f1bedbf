"""The file: what a start may find in it, and that a failure of the disk sends nothing."""

import errno
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from relay.clock import SECOND_NS
from relay.spool.disk.durable import ROOM_BYTES, Disk, RealDisk
from relay.throttle.bounds import HistoryBounds
from relay.throttle.history_format import HistoryError
from tests.engines.history.limits import ask, granted, messages, settle, throttle
from tests.engines.history.memory_disk import Killed, MemoryDisk
from tests.fakes.clock import FakeClock

PATH = Path("/history/isp")
LIMITS = [messages(3, seconds=60)]


def _read(disk: Disk, path: Path) -> bytes:
    """Return what was written into a file, less the room behind it."""
    fd = disk.open_update(str(path))
    content = disk.pread(fd, disk.size(fd), 0)
    disk.close(fd)
    return content.rstrip(b"\0")


def _write(disk: Disk, path: Path, content: bytes) -> None:
    """Put other bytes in place of a file, as an editor does."""
    if disk.inode(str(path)) is not None:
        disk.unlink(str(path))
    disk.make_directory(str(path.parent))
    fd = disk.open_new(str(path))
    disk.write_all(fd, content)
    disk.sync(fd)
    disk.close(fd)
    disk.sync_directory(str(path.parent))


def test_a_file_can_be_read_by_people(path: Path, disk: Disk, clock: FakeClock) -> None:
    account = throttle(path, disk, clock, LIMITS)
    granted(account, 2)
    reservation = granted(account, 1)[0]
    settle(account, clock, reservation)
    account.flush()

    lines = _read(disk, path).decode("ascii").splitlines()

    assert lines[0].startswith(f"relay-history 3 {clock.boot_id()} ")
    assert [line.split()[0] for line in lines[1:]] == [
        *("group", "at", "begun", "reading", "reserved", "group", "at", "reserved", "group", "at", "ended")
    ]
    assert lines[-1] == f"ended {reservation.id} {clock.boottime_ns()}"


def test_every_torn_end_is_cut_and_what_came_before_it_counts(memory: MemoryDisk, clock: FakeClock) -> None:
    account = throttle(PATH, memory, clock, LIMITS)
    settle(account, clock, *granted(account, 1))
    account.flush()
    whole, lock = _read(memory, PATH), _read(memory, Path(f"{PATH}.lock"))
    granted(account, 1)
    longer = _read(memory, PATH)

    for size in range(len(whole), len(longer)):
        _write(memory, PATH, longer[:size])
        # Whoever died in the middle of a group had not told the lock of it.
        _write(memory, Path(f"{PATH}.lock"), lock)
        successor = throttle(PATH, memory, clock, LIMITS)
        successor.flush()
        assert successor.usage()[0].used == 1
        assert _read(memory, PATH) == whole
        successor.close()


DAMAGE: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("a damaged group", lambda whole: whole.replace(b"ended", b"endee", 1)),
    ("first group is damaged", lambda whole: whole[: whole.index(b"group") + 30]),
    ("not a history", lambda whole: whole.replace(b"-4000-", b"-5000-", 1)),
    ("not a history", lambda _: b""),
    ("not a history", lambda _: b"user: password\n"),
    ("another version", lambda whole: whole.replace(b"history 3", b"history 4", 1)),
]


@pytest.mark.parametrize(("message", "damage"), DAMAGE)
def test_damage_or_another_file_stops_sending_and_is_left_as_it_is(
    message: str, damage: Callable[[bytes], bytes], path: Path, disk: Disk, clock: FakeClock
) -> None:
    account = throttle(path, disk, clock, LIMITS)
    for _ in range(2):
        settle(account, clock, *granted(account, 1))
        account.flush()
    damaged = damage(_read(disk, path))
    _write(disk, path, damaged)

    for sender in (account, throttle(path, disk, clock, LIMITS), account):
        with pytest.raises(HistoryError, match=f"{path}: .*{message}.*To repair"):
            ask(sender, 1)
    assert _read(disk, path) == damaged


READ_ONLY_OR_FULL = [
    ("open_new", errno.EROFS, "mount its file system for writing"),
    ("open_new", errno.EACCES, "give it, its .lock and its folder to the relay's user"),
    ("open_new", errno.EMFILE, "let the relay open more files"),
    ("write", errno.ENOSPC, "make room on its disk"),
    ("sync", errno.EIO, "see to its disk"),
    ("rename", errno.EISDIR, "see what is in its place"),
    ("sync_directory", errno.EIO, "see to its disk"),
]


@pytest.mark.parametrize(("operation", "error", "repair"), READ_ONLY_OR_FULL)
def test_a_file_that_cannot_be_made_grants_nothing_and_says_why(
    operation: str, error: int, repair: str, memory: MemoryDisk, clock: FakeClock
) -> None:
    account = throttle(PATH, memory, clock, LIMITS)
    memory.fail(operation, error)

    with pytest.raises(HistoryError, match=rf"{PATH}: cannot (write|lock): .*\. To repair: {repair}"):
        ask(account, 1)

    assert f"{PATH}.new" not in memory.names_now
    memory.cut_power(Random(1))
    assert len(granted(throttle(PATH, memory, clock, LIMITS), 1, 1, 1, 1)) >= 2


def test_nothing_counts_that_was_not_granted_whatever_interrupted_it(
    memory: MemoryDisk, clock: FakeClock
) -> None:
    account = throttle(PATH, memory, clock, LIMITS)
    granted(account, 1)

    memory.kill_at(1, Random(1))
    with pytest.raises(Killed):
        ask(account, 1)
    memory.revive()

    assert len(granted(account, 1, 1, 1)) == 2


def test_where_a_disk_has_no_room_ahead_a_group_is_enough(memory: MemoryDisk, clock: FakeClock) -> None:
    account = throttle(PATH, memory, clock, LIMITS)
    memory.free_bytes = 64 * ROOM_BYTES - 1
    granted(account, 1)
    granted(account, 1)
    without = memory.length(str(PATH)) or 0
    memory.free_bytes += 1
    granted(account, 1)
    grown = memory.length(str(PATH)) or 0
    account.flush()
    assert without < ROOM_BYTES < grown
    # Others find what stands in the room, and whoever starts takes it for none.
    assert len(granted(throttle(PATH, memory, clock, LIMITS), 1)) == 0
    assert memory.length(str(PATH)) == grown


def test_after_a_failed_sync_the_next_group_goes_into_a_new_file(
    memory: MemoryDisk, clock: FakeClock
) -> None:
    account = throttle(PATH, memory, clock, LIMITS)
    granted(account, 1)
    inode = memory.inode(str(PATH))
    memory.fail("sync")
    with pytest.raises(HistoryError):
        ask(account, 1)

    granted(account, 1)

    assert memory.inode(str(PATH)) != inode
    memory.cut_power(Random(1))
    assert len(granted(throttle(PATH, memory, clock, LIMITS), 1, 1, 1)) == 1


def test_an_append_is_one_write_and_one_sync(memory: MemoryDisk, clock: FakeClock) -> None:
    granted(throttle(PATH, memory, clock, LIMITS), 1)
    finder = throttle(PATH, memory, clock, [messages(100, seconds=60)])
    memory.operations.clear()

    for _ in range(3):
        granted(finder, 1)

    # The first one makes durable what somebody else wrote, by writing it again, and its name.
    kinds = [operation.split()[0] for operation in memory.operations]
    assert kinds == ["write", "sync", "sync_directory", *("write", "sync", "note") * 3]


def test_a_shorter_file_whose_name_may_not_be_durable_grants_nothing(
    memory: MemoryDisk, clock: FakeClock
) -> None:
    account = throttle(PATH, memory, clock, LIMITS, HistoryBounds(0, 1))
    granted(account, 1)
    memory.fail("sync_directory")

    with pytest.raises(HistoryError, match="cannot write"):
        ask(account, 1)
    # What was not granted counts all the same: the file that holds it may be the one in force.
    assert len(granted(account, 1, 1, 1)) == 1


@pytest.mark.parametrize(
    ("operation", "message"), [("write", "write"), ("sync", "write"), ("note", "write"), ("pread", "read")]
)
def test_a_call_that_fails_grants_nothing_and_is_undone(
    operation: str, message: str, memory: MemoryDisk, clock: FakeClock
) -> None:
    account = throttle(PATH, memory, clock, LIMITS)
    settle(account, clock, *granted(account, 1))
    before = _read(memory, PATH)
    if operation == "pread":
        account.flush()
        before, account = _read(memory, PATH), throttle(PATH, memory, clock, LIMITS)
    memory.fail(operation)

    with pytest.raises(HistoryError, match=f"cannot {message}"):
        ask(account, 1)

    # The line of the lock is written behind the group, which is durable by then and counts.
    lost = int(operation == "note")
    assert lost or _read(memory, PATH) == before
    # The end that the failed group was to hold is not forgotten, and nothing is counted that was not granted.
    assert len(granted(account, 1, 1, 1)) == 2 - lost
    clock.advance(60 * SECOND_NS)
    account.flush()
    assert len(granted(account, 1, 1, 1)) == 1


@pytest.mark.parametrize("seed", range(4))
def test_groups_of_the_dead_are_made_durable_before_another_is_added(
    seed: int, memory: MemoryDisk, clock: FakeClock
) -> None:
    limits = [messages(100, seconds=60)]
    first = throttle(PATH, memory, clock, limits)
    granted(first, 1)
    # Whole in the page cache, not on the disk: its sender died at the sync.
    memory.kill_at(2, Random(seed))
    with pytest.raises(Killed):
        granted(first, *[1] * 40)
    memory.bury()
    # The pages are clean now and not on the disk, and the only one who knew that dies.
    memory.fail("sync")
    with pytest.raises(HistoryError):
        granted(throttle(PATH, memory, clock, limits), 1)
    memory.bury()
    # Those bytes again, two syncs, its own; dead at the sync of that.
    memory.kill_at(5, Random(seed))
    with pytest.raises(Killed):
        granted(throttle(PATH, memory, clock, limits), *[1] * 3)
    memory.cut_power(Random(seed))

    last = throttle(PATH, memory, clock, limits)
    last.flush()
    assert last.usage()[0].used in (41, 44)


def test_a_new_name_is_made_durable_by_whoever_finds_it(memory: MemoryDisk, clock: FakeClock) -> None:
    first = throttle(PATH, memory, clock, LIMITS)
    # open_new, write, sync, rename; dead before the sync of the folder.
    memory.kill_at(5, Random(0))
    with pytest.raises(Killed):
        granted(first, 1)
    memory.bury()

    granted(throttle(PATH, memory, clock, LIMITS), 1)

    assert str(PATH) in memory.names_durable


@pytest.mark.parametrize("left", [b"", b"relay-hist", b"relay-history 2 6e2f", bytes(300)])
def test_what_a_rewrite_that_died_left_is_removed_by_the_next(
    left: bytes, memory: MemoryDisk, clock: FakeClock
) -> None:
    memory.put(f"{PATH}.new", left)

    assert len(granted(throttle(PATH, memory, clock, LIMITS), 1, 1, 1, 1)) == 3
    assert memory.inode(f"{PATH}.new") is None
    assert len(granted(throttle(PATH, memory, clock, LIMITS), 1)) == 0


@pytest.mark.parametrize("failing", ["sync", "truncate"])
def test_a_torn_end_whose_cut_fails_is_cut_later_or_written_anew(
    failing: str, memory: MemoryDisk, clock: FakeClock
) -> None:
    account = throttle(PATH, memory, clock, LIMITS)
    settle(account, clock, *granted(account, 1))
    account.flush()
    account.close()
    memory.put(str(PATH), _read(memory, PATH) + b"group 40 0")
    account = throttle(PATH, memory, clock, LIMITS)
    memory.fail(failing)

    with pytest.raises(HistoryError, match="Input/output"):
        granted(account, 1)
    inode = memory.inode(str(PATH))
    assert len(granted(account, 1, 1, 1)) == 2
    # After a failed sync the pages of the old file are marked clean, and nobody knows what the disk has.
    assert (memory.inode(str(PATH)) != inode) == (failing == "sync")


def test_a_file_that_outgrew_its_worth_is_compacted_and_counts_as_before(
    tmp_path: Path, clock: FakeClock
) -> None:
    path, disk, limits = tmp_path / "isp", RealDisk(), [messages(5, seconds=60)]
    account, other = (throttle(path, disk, clock, limits, HistoryBounds(5_000)) for _ in range(2))
    before = len(list(Path("/proc/self/fd").iterdir()))
    lengths = []
    # What ended stays known for a longer period, so the file's worth grows by one line a message.
    for _ in range(30):
        for sender in (account, other):
            settle(sender, clock, *granted(sender, 1, 1))
            sender.flush()
        clock.advance(60 * SECOND_NS)
        lengths.append(len(_read(disk, path)))

    assert max(lengths) < 2 * 72 * 150
    assert any(later < earlier for earlier, later in pairwise(lengths))
    other.replan([messages(1000, seconds=86_400)], 0)
    other.flush()
    assert other.usage()[0].used == 120
    account.close()
    other.close()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


class Lockless(MemoryDisk):
    """A disk that never gives a lock."""

    def lock(self, path: str, *, wait: bool, is_shared: bool = False) -> int | None:
        del path, wait, is_shared
        return None


def test_without_the_lock_nothing_is_decided(clock: FakeClock) -> None:
    disk = Lockless()

    with pytest.raises(HistoryError, match="taken"):
        granted(throttle(PATH, disk, clock, LIMITS), 1)
    assert disk.read(str(PATH)) is None
    assert "write" not in disk.operations
