"""Each kind of damage to a history file: a start, a reader and `relay fsck` judge it alike."""

from collections.abc import Callable
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.policy.model import HistoryPlace
from relay.throttle.file_history import history_findings
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


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (Path.stat, ""),
        (_none, ""),
        (_added(bytes(9999)), ""),  # room
        (_added(b"00000000 [[1,2,3]" + 500 * b"x"), "torn_group"),
        (_lock(b""), ""),
        (_lock(b'1b2c3d4e ["relay-history-end",17'), ""),
        (Path.unlink, "damaged_history"),
        (_cut(0), "damaged_history"),
        (_cut(-1), "damaged_history"),  # the lock file says that the last group was durable
        (_cut(-200), "damaged_history"),
        (_changed(b'history",6', b'history",5'), "damaged_history"),
        (_changed(b'reserved",1', b'reserved",8'), "damaged_history"),
        (_changed(b"relay", b"replay"), "damaged_history"),
        (lambda path: (_changed(b'ended",1', b'ended",9')(path), _lock(b"")(path)), "damaged_history"),
        (lambda path: path.chmod(0o666), "damaged_history"),
        (lambda path: (path.unlink(), path.mkdir()), "damaged_history"),
    ],
)
def test_fsck_and_a_start_agree_on_damage_and_a_damaged_history_grants_nothing(
    harm: Harm, says: str, used: Path, clock: FakeClock
) -> None:
    harm(used)
    before = used.read_bytes() if used.is_file() else None

    found = [each.kind for each in history_findings(used, Unsynced(), clock)]

    assert found == ([says] if says else [])
    account = throttle(used, Unsynced(), clock, LIMITS)
    if says in ("", "torn_group"):
        known = len(recorded_book(HistoryPlace(used, "isp", None), (), Unsynced(), clock).slots())
        assert known == (0 if before is None else 4)
        assert len(granted(account, *[1] * 9)) == 9 - known
        assert not list(history_findings(used, Unsynced(), clock))
        return
    for _ in range(2):
        with pytest.raises(HistoryError, match="isp"):
            ask(account, 1)
    assert (used.read_bytes() if used.is_file() else None) == before
    if says == "damaged_history":
        with pytest.raises(HistoryError, match="isp"):
            recorded_book(HistoryPlace(used, "isp", None), (), Unsynced(), clock).slots()


def test_damage_at_any_byte_grants_nothing(used: Path, clock: FakeClock) -> None:
    whole = used.read_bytes()
    for offset in range(len(whole)):
        used.write_bytes(whole[:offset] + bytes([whole[offset] ^ 4]) + whole[offset + 1 :])
        with pytest.raises(HistoryError):
            ask(throttle(used, Unsynced(), clock, LIMITS), 1)
        assert list(history_findings(used, Unsynced(), clock))


def test_a_cut_history_of_another_boot_is_left_as_it_is(used: Path, clock: FakeClock) -> None:
    _cut(-1)(used)
    before = used.read_bytes()
    clock.reboot()

    with pytest.raises(HistoryError, match="its last groups are missing or damaged"):
        ask(throttle(used, Unsynced(), clock, LIMITS), 1)
    assert used.read_bytes() == before
