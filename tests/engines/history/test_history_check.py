"""`relay fsck` and those who only look: they say of a history what a start would do, and change nothing."""

import os
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.spool.disk.durable import RealDisk
from relay.throttle.history_check import history_findings, slots_in_file, spans_in_file
from relay.throttle.history_format import HistoryError
from relay.throttle.throttle import View
from tests.engines.history.limits import granted, messages, settle, throttle
from tests.fakes.clock import FakeClock

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
    account.close()
    return path.read_bytes().rstrip(b"\0")


def test_a_history_at_work_at_rest_and_not_yet_there_is_clean(path: Path, clock: FakeClock) -> None:
    assert findings(path, clock) == []
    used(path, clock)
    assert findings(path, clock) == []
    clock.reboot(down_ns=SECOND_NS)
    assert findings(path, clock) == []


@pytest.mark.parametrize("is_lock_lost", [False, True], ids=["its lock is whole", "its lock is empty"])
@pytest.mark.parametrize(
    "step", [7, pytest.param(5, marks=pytest.mark.full), pytest.param(1, marks=pytest.mark.crash(least_s=60))]
)
def test_damage_at_any_byte_is_told_where_nothing_is_sent(
    step: int, is_lock_lost: bool, path: Path, clock: FakeClock
) -> None:
    whole = used(path, clock, times=3)
    lock = path.with_name(f"{path.name}.lock")
    said = b"" if is_lock_lost else lock.read_bytes()
    last = whole.rindex(b"group ") if is_lock_lost else len(whole)
    for n in range(0, len(whole), step):
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
    Path(f"{path}.new").unlink()
    written_ns = clock.boottime_ns() - SECOND_NS
    assert findings(path, FakeClock(written_ns - SECOND_NS)) == []
    assert findings(path, FakeClock(written_ns - SECOND_NS - 1)) == [("future_history", True)]
    path.write_bytes(whole.replace(b"relay-history 3", b"relay-history 4"))
    assert findings(path, clock) == [("damaged_history", True)]


def looked_at(path: Path, clock: FakeClock) -> tuple[int, int]:
    """Return the slots in use, and when the next one opens, as one who only looks sees them."""
    (usage,) = View(slots_in_file(path, LIMITS, 0, RealDisk(), clock), clock).usage()
    return usage.used, usage.opens_at_ns


@pytest.mark.parametrize("down_ns", [None, 0, 30 * SECOND_NS, 31 * 86_400 * SECOND_NS])
def test_one_who_only_looks_sees_what_a_start_would(
    path: Path, clock: FakeClock, down_ns: int | None
) -> None:
    assert looked_at(path, clock) == (0, clock.boottime_ns())
    account = throttle(path, RealDisk(), clock, LIMITS)
    for _ in range(20):
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


def test_one_who_only_looks_refuses_what_a_start_would_and_changes_nothing(
    path: Path, clock: FakeClock
) -> None:
    whole = used(path, clock)
    with pytest.raises(HistoryError, match="written in the future of this boot"):
        looked_at(path, FakeClock())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(HistoryError, match="nothing is sent"):
        looked_at(path, clock)
    path.write_bytes(whole[:-1])
    path.with_name(f"{path.name}.lock").write_bytes(b"")
    before = path.stat()
    assert findings(path, clock) == [("torn_group", False)]
    assert path.stat() == before
    path.unlink()
    path.with_name(f"{path.name}.lock").unlink()
    assert looked_at(path, clock)[0] == 0
    assert not path.exists()


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
