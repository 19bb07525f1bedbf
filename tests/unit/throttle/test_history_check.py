"""What is foreign or damaged in the place of a history: nothing is sent, and `relay fsck` says why."""

import os
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.spool.disk.durable import RealDisk
from relay.throttle.history_check import history_findings, slots_in_file, spans_in_file
from relay.throttle.history_format import HistoryError
from relay.throttle.history_states import LARGEST_BYTES
from relay.throttle.throttle import View
from tests.fakes.clock import FakeClock
from tests.fakes.denying import BROKEN, DENIED, TOO_MANY, Denying
from tests.fakes.foreign import KINDS, kind_of, plant
from tests.unit.throttle.limits import (
    TRANSACTION_NS,
    PerPeriod,
    granted,
    messages,
    recipients,
    settle,
    throttle,
)

LIMITS = [messages(100, seconds=60)]


def findings(path: Path, clock: FakeClock) -> list[tuple[str, bool]]:
    """Return what is found, and whether somebody has to look."""
    found = history_findings(path, RealDisk(), clock, os.geteuid())
    return [(finding.kind, finding.is_damage) for finding in found]


def used(path: Path, clock: FakeClock, times: int = 3) -> bytes:
    """Use a history, and return what it holds."""
    account = throttle(path, RealDisk(), clock, LIMITS)
    for _ in range(times):
        settle(account, clock, *granted(account, 1))
        clock.advance(SECOND_NS)
    return path.read_bytes().rstrip(b"\0")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", ["", ".lock"])
def test_nothing_in_the_place_of_a_history_lets_mail_through(
    tmp_path: Path, kind: str, suffix: str, clock: FakeClock
) -> None:
    (tmp_path / "victim").write_text("untouched")
    path, planted = tmp_path / "isp", tmp_path / f"isp{suffix}"
    plant(planted, kind, tmp_path / "victim")
    found = kind_of(planted)
    account = throttle(path, RealDisk(), clock, LIMITS)
    # As older versions leave it.
    if suffix and kind == "an empty file":
        assert granted(account, 1)
    else:
        with pytest.raises(HistoryError):
            granted(account, 1)
        assert suffix or any(is_damage for _, is_damage in findings(path, clock))

    assert kind_of(planted) == found
    assert (tmp_path / "victim").read_text() == "untouched"


def test_a_history_at_work_at_rest_and_not_yet_there_is_clean(path: Path, clock: FakeClock) -> None:
    assert findings(path, clock) == []
    used(path, clock)
    assert findings(path, clock) == []
    clock.reboot(down_ns=SECOND_NS)
    assert findings(path, clock) == []


@pytest.mark.parametrize("is_lock_lost", [False, True], ids=["its lock is whole", "its lock is empty"])
def test_fsck_tells_damage_at_any_byte_where_nothing_is_sent(
    is_lock_lost: bool, path: Path, clock: FakeClock
) -> None:
    whole = used(path, clock, times=3)
    lock = path.with_name(f"{path.name}.lock")
    said = b"" if is_lock_lost else lock.read_bytes()
    last = whole.rindex(b"group ") if is_lock_lost else len(whole)
    for n in range(len(whole)):
        for content in (whole[:n], whole[:n] + bytes([whole[n] ^ 1]) + whole[n + 1 :]):
            path.write_bytes(content)
            lock.write_bytes(said)
            ((kind, is_damage),) = findings(path, clock) or [("clean", False)]
            before, is_sent = path.read_bytes(), True
            account = throttle(path, RealDisk(), clock, LIMITS)
            try:
                granted(account, 1)
            except HistoryError:
                is_sent = False
                assert path.read_bytes() == before
            account.close()
            assert is_sent is not is_damage, (n, kind)
            assert (kind in ("torn_group", "clean")) == is_sent
            assert n >= last or kind != "torn_group" or len(content) == n


def test_what_else_stops_a_history_is_told(path: Path, clock: FakeClock) -> None:
    whole = used(path, clock)
    path.unlink()
    assert findings(path, clock) == [("damaged_history", True)]
    path.write_bytes(whole)
    path.chmod(0o600)
    Path(f"{path}.new").write_bytes(b"relay-hi")
    assert findings(path, clock) == [("leftover", False)]
    Path(f"{path}.new").write_bytes(b"mine")
    assert findings(path, clock) == [("foreign", True)]
    Path(f"{path}.new").rename(f"{path}.new.1")
    assert findings(path, clock) == [("set_aside", True)]
    Path(f"{path}.new.1").unlink()
    assert findings(path, FakeClock()) == [("future_history", True)]
    path.write_bytes(whole.replace(b"relay-history 3", b"relay-history 4"))
    assert findings(path, clock) == [("damaged_history", True)]
    with path.open("wb") as file:
        file.truncate(LARGEST_BYTES + 1)
    assert findings(path, clock) == [("damaged_history", True)]
    path.write_bytes(whole)
    found = history_findings(path, RealDisk(), clock, os.geteuid() + 1)
    assert [(finding.kind, finding.advice) for finding in found] == [
        ("owner", f"chown it to user {os.geteuid() + 1}, chmod 600")
    ]


def test_looking_changes_nothing(path: Path, clock: FakeClock) -> None:
    path.parent.mkdir()
    path.write_bytes(used(path, clock)[:-1])
    path.with_name(f"{path.name}.lock").write_bytes(b"")
    before = path.stat()
    assert findings(path, clock) == [("torn_group", False)]

    after = path.stat()
    assert (after.st_mtime_ns, after.st_size) == (before.st_mtime_ns, before.st_size)
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)


def looked_at(path: Path, clock: FakeClock) -> tuple[int, int]:
    """Return the slots in use, and when the next one opens, as one who only looks sees them."""
    (usage,) = View(slots_in_file(path, LIMITS, 0, RealDisk(), clock), clock).usage()
    return usage.used, usage.opens_at_ns


@pytest.mark.parametrize("down_ns", [None, 0, 30 * SECOND_NS, 31 * 86_400 * SECOND_NS])
def test_one_who_only_looks_sees_what_a_start_would(
    path: Path, clock: FakeClock, down_ns: int | None
) -> None:
    account = throttle(path, RealDisk(), clock, LIMITS)
    for _ in range(100):
        settle(account, clock, *granted(account, 1))
        account.flush()
        clock.advance(SECOND_NS // 10)
    account.close()
    if down_ns is not None:
        clock.reboot(down_ns)
    before, seen = path.read_bytes(), looked_at(path, clock)

    assert path.read_bytes() == before
    again = throttle(path, RealDisk(), clock, LIMITS)
    again.flush()
    (usage,) = again.usage()
    assert seen == (usage.used, usage.opens_at_ns)
    assert usage.used > 0


def test_without_a_history_all_slots_are_free(path: Path, clock: FakeClock) -> None:
    assert looked_at(path, clock) == (0, clock.boottime_ns())


def test_one_who_only_looks_refuses_what_a_start_would(path: Path, clock: FakeClock) -> None:
    whole = used(path, clock)
    with pytest.raises(HistoryError, match="written in the future of this boot"):
        looked_at(path, FakeClock())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(HistoryError, match="nothing is sent"):
        looked_at(path, clock)
    path.unlink()
    with pytest.raises(HistoryError, match="it is gone, and was in use"):
        looked_at(path, clock)


def test_an_unreadable_history_is_told_and_our_own_lack_is_not(path: Path, clock: FakeClock) -> None:
    used(path, clock)
    for error in (DENIED, BROKEN):
        (finding,) = history_findings(path, Denying(path.name, error), clock, os.geteuid())
        assert (finding.kind, finding.is_damage) == ("damaged_history", True)
        assert "cannot be read" in finding.what
    with pytest.raises(OSError, match="Too many open files"):
        list(history_findings(path, Denying(path.name, TOO_MANY), clock, os.geteuid()))


def test_a_history_is_of_the_future_where_a_sender_would_say_so(path: Path, clock: FakeClock) -> None:
    used(path, clock, 1)
    written_ns = clock.boottime_ns() - SECOND_NS

    assert findings(path, FakeClock(written_ns - SECOND_NS)) == []
    assert findings(path, FakeClock(written_ns - SECOND_NS - 1)) != []


def test_the_past_is_told_as_the_file_has_it(path: Path, clock: FakeClock) -> None:
    assert spans_in_file(path, RealDisk(), clock) == []
    account = throttle(path, RealDisk(), clock, LIMITS)
    began_at_ns = clock.boottime_ns()
    ended, open_one = granted(account, 1, 2)
    clock.advance(SECOND_NS)
    settle(account, clock, ended)
    account.flush()

    spans = spans_in_file(path, RealDisk(), clock)

    assert [(span.record.recipients, span.ended_at_ns - began_at_ns) for span in spans] == [
        (1, SECOND_NS),
        (2, open_one.deadline_ns - began_at_ns),
    ]


@pytest.mark.parametrize(
    "edited",
    [
        LIMITS,
        [messages(2, seconds=60)],
        [messages(100, seconds=10), recipients(4, seconds=3600)],
        [messages(9, seconds=60, for_each="sender"), *LIMITS],
        [],
    ],
)
def test_what_limits_would_hold_is_what_they_hold_once_in_force(
    path: Path, clock: FakeClock, edited: list[PerPeriod]
) -> None:
    account = throttle(path, RealDisk(), clock, LIMITS)
    ended, _ = granted(account, 1, 2)
    clock.advance(SECOND_NS)
    settle(account, clock, ended)
    in_force = account.limited(TRANSACTION_NS)

    foretold = account.limited_under(edited, 0, TRANSACTION_NS)

    assert account.limited(TRANSACTION_NS) == in_force
    account.replan(edited, 0)
    assert account.limited(TRANSACTION_NS) == foretold
