"""A history or its lock that is removed or replaced under relays that use it: no window ever holds more."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.spool.disk.durable import Disk, RealDisk
from relay.throttle.history_check import audit_file
from relay.throttle.history_format import HistoryError
from relay.throttle.throttle import Throttle
from tests.fakes.clock import FakeClock
from tests.unit.throttle.limits import ask, granted, messages, settle, throttle

LIMITS = [messages(10, seconds=3600)]
IN_USE = (
    r"isp\.lock: removed or replaced while in use; nothing is sent\. To repair: put it and the history back"
)
GONE = "it is gone, and was in use"


class Overtaken(RealDisk):
    """Has the lock replaced by another before it is opened, or while it is waited for."""

    when = ""

    def lock(self, path: str, *, wait: bool) -> int | None:
        if self.when == "before":
            self._replace(path)
        fd = super().lock(path, wait=wait)
        if self.when == "meanwhile":
            self._replace(path)
        return fd

    def _replace(self, path: str) -> None:
        self.unlink(path)
        Path(path).touch(0o600)


class Interrupted(RealDisk):
    """Has something done to the files behind a write, as whoever is not asked would do it."""

    def __init__(self) -> None:
        super().__init__()
        self.then: list[Callable[[], object]] = []

    def sync_content(self, fd: int) -> None:
        super().sync_content(fd)
        while self.then:
            self.then.pop()()


@pytest.fixture
def two(path: Path, disk: Disk, clock: FakeClock) -> Iterator[list[Throttle]]:
    """Return two relays that share a history: each sent five of ten, the first knows nothing of the other."""
    relays = [throttle(path, disk, clock, LIMITS) for _ in range(2)]
    for relay in relays:
        assert len(granted(relay, *[1] * 5)) == 5
        clock.advance(SECOND_NS)
    yield relays
    for relay in relays:
        relay.close()


def remove(disk: Disk, path: Path, *names: str) -> None:
    for name in names:
        disk.unlink(f"{path}{name}")


@pytest.mark.parametrize("names", [["", ".lock"], [".lock"]])
def test_relays_whose_names_are_gone_grant_nothing(
    names: list[str], two: list[Throttle], path: Path, disk: Disk
) -> None:
    remove(disk, path, *names)

    for relay in [*two, *two]:
        with pytest.raises(HistoryError, match=IN_USE):
            ask(relay, 1)
        with pytest.raises(HistoryError, match=IN_USE):
            relay.reserve_connection(1)
        with pytest.raises(HistoryError, match=IN_USE):
            relay.flush()


def test_a_history_gone_alone_is_written_again_from_memory(
    two: list[Throttle], path: Path, disk: Disk
) -> None:
    remove(disk, path, "")

    with pytest.raises(HistoryError, match=r"it reached 1\.000 s further"):
        ask(two[0], 1)
    assert granted(two[1], 1) == []
    two[1].flush()
    assert disk.inode(str(path)) is None


def test_a_history_gone_with_its_mark_grants_nothing(two: list[Throttle], path: Path, disk: Disk) -> None:
    fd = disk.open_update(f"{path}.lock")
    disk.truncate(fd, 0)
    disk.close(fd)
    remove(disk, path, "")

    for relay in two:
        with pytest.raises(HistoryError, match="its lock does not say how far it reached"):
            ask(relay, 1)


def test_a_start_after_somebody_noticed_does_not_begin_anew(
    two: list[Throttle], path: Path, disk: Disk, clock: FakeClock
) -> None:
    remove(disk, path, "", ".lock")
    with pytest.raises(HistoryError, match=IN_USE):
        ask(two[0], 1)

    with pytest.raises(HistoryError, match=f"{GONE}.*To repair: stop, wait"):
        ask(throttle(path, disk, clock, LIMITS), 1)
    with pytest.raises(HistoryError, match=GONE):
        audit_file(path, LIMITS, disk)


def test_a_start_after_an_idle_relay_ended_does_not_begin_anew(
    two: list[Throttle], path: Path, disk: Disk, clock: FakeClock
) -> None:
    remove(disk, path, "", ".lock")
    two[1].close()

    with pytest.raises(HistoryError, match=GONE):
        ask(throttle(path, disk, clock, LIMITS), 1)


def test_a_start_without_the_folder_does_not_begin_anew(real: Throttle, path: Path, clock: FakeClock) -> None:
    shutil.rmtree(path.parent)
    real.close()

    with pytest.raises(HistoryError, match=GONE):
        ask(throttle(path, RealDisk(), clock, LIMITS), 1)


def test_an_end_makes_no_more_than_the_folder_itself(real: Throttle, path: Path) -> None:
    home = path.parent.parent
    shutil.rmtree(home)
    real.close()
    assert not home.exists()


def test_an_owner_who_takes_the_lock_away_after_a_stop_begins_anew(
    two: list[Throttle], path: Path, disk: Disk, clock: FakeClock
) -> None:
    remove(disk, path, "", ".lock")
    for relay in two:
        with pytest.raises(HistoryError, match=IN_USE):
            ask(relay, 1)
        relay.close()
    remove(disk, path, ".lock")

    assert len(granted(throttle(path, disk, clock, LIMITS), *[1] * 11)) == 10


def test_another_relay_that_began_anew_is_left_alone_and_not_joined(
    two: list[Throttle], path: Path, disk: Disk, clock: FakeClock
) -> None:
    remove(disk, path, "", ".lock")
    other = throttle(path, disk, clock, LIMITS)
    assert len(granted(other, 1)) == 1

    for relay in two:
        with pytest.raises(HistoryError, match=IN_USE):
            ask(relay, 1)
    assert len(granted(other, *[1] * 10)) == 9


def test_a_restart_with_the_history_alone_counts_all_that_it_has(
    two: list[Throttle], path: Path, disk: Disk, clock: FakeClock
) -> None:
    remove(disk, path, ".lock")
    for relay in two:
        with pytest.raises(HistoryError, match=IN_USE):
            ask(relay, 1)

    assert granted(throttle(path, disk, clock, LIMITS), 1) == []


def test_another_relay_that_rewrites_the_history_has_not_stolen_it(
    path: Path, disk: Disk, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.throttle.history.COMPACT_ABOVE_BYTES", 500)
    relays = [throttle(path, disk, clock, [messages(2, seconds=1)]) for _ in range(2)]
    inodes = set()
    for _ in range(40):
        for relay in relays:
            settle(relay, clock, *granted(relay, 1))
            inodes.add(disk.inode(str(path)))
        clock.advance(2 * SECOND_NS)

    assert len(inodes) > 1


@pytest.fixture
def real(path: Path, clock: FakeClock) -> Iterator[Throttle]:
    """Return a relay with one slot left, on a real disk."""
    relay = throttle(path, RealDisk(), clock, LIMITS)
    assert len(granted(relay, *[1] * 9)) == 9
    yield relay
    relay.close()


@pytest.mark.parametrize("is_used", [False, True])
def test_a_lock_replaced_while_waited_for_grants_nothing(is_used: bool, path: Path, clock: FakeClock) -> None:
    disk = Overtaken()
    relay = throttle(path, disk, clock, LIMITS)
    if is_used:
        granted(relay, 1)
    disk.when = "meanwhile"

    with pytest.raises(HistoryError, match="removed or replaced"):
        ask(relay, 1)


def test_a_lock_replaced_before_it_is_opened_lets_nothing_be_written(path: Path, clock: FakeClock) -> None:
    """Else two relays, each with a lock of its own, write at one place."""
    disk = Overtaken()
    relay = throttle(path, disk, clock, LIMITS)
    granted(relay, 1)
    before, disk.when = path.read_bytes(), "before"

    with pytest.raises(HistoryError, match="removed or replaced"):
        ask(relay, 1)
    assert path.read_bytes() == before


def test_a_lock_removed_before_anything_was_sent_leaves_none(
    path: Path, disk: Disk, clock: FakeClock
) -> None:
    relay = throttle(path, disk, clock, LIMITS)
    relay.flush()
    remove(disk, path, ".lock")

    with pytest.raises(HistoryError, match=IN_USE):
        ask(relay, 1)
    assert disk.inode(f"{path}.lock") is None


def test_a_folder_that_is_away_stops_until_it_is_back(real: Throttle, path: Path) -> None:
    away = path.parent.with_name("away")
    path.parent.rename(away)
    for _ in range(2):
        with pytest.raises(HistoryError, match=IN_USE):
            ask(real, 1)
    assert not path.parent.exists()
    away.rename(path.parent)

    assert len(granted(real, 1, 1)) == 1


def test_names_that_were_away_and_are_back_go_on(real: Throttle, path: Path) -> None:
    lock = Path(f"{path}.lock")
    for each in (path, lock):
        each.rename(f"{each}.away")
    with pytest.raises(HistoryError, match=IN_USE):
        ask(real, 1)
    for each in (path, lock):
        Path(f"{each}.away").rename(each)

    assert len(granted(real, 1, 1)) == 1


def test_copies_in_their_place_stop_until_a_restart_reads_them(
    real: Throttle, path: Path, clock: FakeClock
) -> None:
    for each in (path, Path(f"{path}.lock")):
        content = each.read_bytes()
        each.unlink()
        each.write_bytes(content)
        each.chmod(0o600)
    with pytest.raises(HistoryError, match=IN_USE):
        ask(real, 1)
    real.close()

    assert len(granted(throttle(path, RealDisk(), clock, LIMITS), 1, 1)) == 1


def test_an_older_copy_of_the_history_alone_stops_who_runs(path: Path, disk: Disk, clock: FakeClock) -> None:
    relay = throttle(path, disk, clock, LIMITS)
    granted(relay, 1)
    fd = disk.open_read(str(path))
    copy = disk.pread(fd, disk.size(fd), 0)
    disk.close(fd)
    clock.advance(SECOND_NS)
    granted(relay, *[1] * 9)
    remove(disk, path, "")
    fd = disk.open_new(str(path))
    disk.write_all(fd, copy)
    disk.close(fd)
    fd = disk.open_update(f"{path}.lock")
    disk.truncate(fd, 0)
    disk.close(fd)

    with pytest.raises(HistoryError, match=r"it reached 1\.000 s further"):
        ask(relay, 1)


def test_a_symbolic_link_that_is_switched_to_another_folder_stops(tmp_path: Path, clock: FakeClock) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to("one")
    relay = throttle(link / "isp", RealDisk(), clock, LIMITS)
    granted(relay, *[1] * 9)
    link.unlink()
    link.symlink_to("two")

    with pytest.raises(HistoryError, match=IN_USE):
        ask(relay, 1)
    assert [each.name for each in (tmp_path / "two").iterdir()] == ["isp.lock"]


@pytest.mark.parametrize("names", [["", ".lock"], [".lock"], [""]])
def test_names_removed_behind_the_write_grant_nothing(names: list[str], path: Path, clock: FakeClock) -> None:
    disk = Interrupted()
    relay = throttle(path, disk, clock, LIMITS)
    assert len(granted(relay, *[1] * 5)) == 5
    clock.advance(SECOND_NS)
    disk.then = [lambda: remove(disk, path, *names)]

    with pytest.raises(HistoryError, match="removed or replaced while"):
        ask(relay, 1)
    fresh = throttle(path, RealDisk(), clock, LIMITS)
    if "" in names:
        with pytest.raises(HistoryError, match=GONE):
            ask(fresh, 1)
    else:
        assert len(granted(fresh, *[1] * 9)) == 4


def test_relays_that_start_together_use_one_lock(path: Path, disk: Disk, clock: FakeClock) -> None:
    relays = [throttle(path, disk, clock, LIMITS) for _ in range(3)]
    for relay in relays:
        relay.flush()

    assert sum(len(granted(relay, *[1] * 4)) for relay in relays) == 10
