"""Each kind of damage to a history file: a start, a reader and `relay fsck` judge it alike."""

from collections.abc import Callable
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.policy.model import HistoryPlace
from relay.throttle.file_history import DamagedHistory, read_events
from relay.throttle.history import HistoryError
from relay.throttle.throttle import recorded_book
from tests.engines.history.limits import ask, granted, messages, settle, throttle
from tests.fakes.clock import FakeClock
from tests.fakes.unsynced import Unsynced

LIMITS = [messages(9, seconds=3600)]
LOCK = "isp.lock"
Harm = Callable[[Path], object]


@pytest.fixture
def used(path: Path, clock: FakeClock) -> Path:
    """Return the path of a closed history of seven groups; the last two have the same instant."""
    account = throttle(path, Unsynced(), clock, LIMITS)
    for _ in range(3):
        reservations = granted(account, 1)
        clock.advance(SECOND_NS)
        settle(account, clock, *reservations)
        account.flush()
    granted(account, 1)
    account.close()
    path.write_bytes(path.read_bytes().rstrip(b"\0"))
    return path


def _cut(length: int) -> Harm:
    return lambda path: path.write_bytes(path.read_bytes()[:length])


def _added(more: bytes) -> Harm:
    return lambda path: path.write_bytes(path.read_bytes() + more)


def _changed(old: bytes, new: bytes) -> Harm:
    return lambda path: path.write_bytes(path.read_bytes().replace(old, new, 1))


def _lock(content: bytes) -> Harm:
    return lambda path: path.with_name(LOCK).write_bytes(content)


def _none(path: Path) -> None:
    path.unlink()
    path.with_name(LOCK).unlink()


def _is_damaged(path: Path, clock: FakeClock) -> bool:
    try:
        read_events(path, Unsynced(), clock)
    except DamagedHistory:
        return True
    return False


@pytest.mark.parametrize(
    ("harm", "is_damage"),
    [
        (Path.stat, False),
        (_none, False),
        (_added(bytes(9999)), False),  # room
        (_added(b"00000000 [[1,2,3]" + 500 * b"x"), False),  # a crash tore the last group
        (_lock(b""), False),
        (_lock(b'1b2c3d4e ["relay-history-end",17'), False),
        (Path.unlink, True),
        (_cut(0), True),
        (_cut(-1), True),  # the lock file says that the last group was durable
        (_cut(-200), True),
        (_changed(b'history",7', b'history",6'), True),
        (_changed(b'reserved",1', b'reserved",8'), True),
        (_changed(b"relay", b"replay"), True),
        (lambda path: (_changed(b'ended",1', b'ended",9')(path), _lock(b"")(path)), True),
        (lambda path: path.write_bytes(b"00000000 \n"), True),
        (lambda path: (path.unlink(), path.mkdir()), True),
    ],
)
def test_fsck_and_a_start_agree_on_damage_and_a_damaged_history_grants_nothing(
    harm: Harm, is_damage: bool, used: Path, clock: FakeClock
) -> None:
    harm(used)
    before = used.read_bytes() if used.is_file() else None

    assert _is_damaged(used, clock) == is_damage
    account = throttle(used, Unsynced(), clock, LIMITS)
    if not is_damage:
        known = len(recorded_book(HistoryPlace(used, "isp", None), Unsynced(), clock).slots())
        assert known == (0 if before is None else 4)
        assert len(granted(account, *[1] * 9)) == 9 - known
        assert not _is_damaged(used, clock)
        return
    for _ in range(2):
        with pytest.raises(HistoryError, match="isp"):
            ask(account, 1)
    assert (used.read_bytes() if used.is_file() else None) == before
    with pytest.raises(HistoryError, match="isp"):
        recorded_book(HistoryPlace(used, "isp", None), Unsynced(), clock).slots()


def test_damage_at_any_byte_grants_nothing(used: Path, clock: FakeClock) -> None:
    whole = used.read_bytes()
    for offset in range(len(whole)):
        used.write_bytes(whole[:offset] + bytes([whole[offset] ^ 4]) + whole[offset + 1 :])
        with pytest.raises(HistoryError):
            ask(throttle(used, Unsynced(), clock, LIMITS), 1)
        assert _is_damaged(used, clock)


def test_a_cut_history_of_another_boot_is_left_as_it_is(used: Path, clock: FakeClock) -> None:
    _cut(-1)(used)
    before = used.read_bytes()
    clock.reboot()

    with pytest.raises(HistoryError, match="its last groups are missing or damaged"):
        ask(throttle(used, Unsynced(), clock, LIMITS), 1)
    assert used.read_bytes() == before
