"""`relay audit`: the proof on a history as it lies there, with no relay to ask."""

import json
import os
from pathlib import Path

import pytest

from relay.clock import SECOND_NS, SystemClock
from relay.policy.source import parse_policy
from relay.spool.disk.durable import RealDisk
from relay.throttle import slots
from relay.throttle.throttle import Request, Throttle
from tests.fakes.clock import FakeClock
from tests.unit.cli.control import POLICY, code_of, write_policy

LIMITED = POLICY.replace(
    "host: smtp", "limits: [{messages: 3, per: 1h}, {recipients: 50, per: 1d}]\n    host: smtp"
)


@pytest.fixture
def policy_path(tmp_path: Path) -> Path:
    """Return a policy under which three messages with two recipients each were sent."""
    path = write_policy(tmp_path, LIMITED)
    policy = parse_policy(LIMITED.encode(), path)
    clock = SystemClock()
    account = Throttle(policy.history_path("isp"), policy.upstreams["isp"].limits, None, RealDisk(), clock)
    for answer in account.reserve([Request(2)] * 3):
        account.settle(answer, clock.boottime_ns())  # type: ignore[arg-type]  # all have room
    account.flush()
    account.close()
    return path


def test_what_was_never_exceeded_is_proven(policy_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("audit", "--policy", str(policy_path)) == 0

    said = capsys.readouterr().out.splitlines()
    assert "3 transactions, since 20" in said[0]
    assert said[1].startswith("  3 messages per 1h: at most 3 at once at 20")
    assert said[1].endswith(": never exceeded")
    assert said[2].startswith("  50 recipients per 24h: at most 6 at once at 20")


def test_connections_are_no_transactions(policy_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy_path.write_text(LIMITED.replace("{recipients", "{connections: 9, per: 1h}, {recipients"))
    policy = parse_policy(policy_path.read_bytes(), policy_path)
    clock = SystemClock()
    account = Throttle(policy.history_path("isp"), policy.upstreams["isp"].limits, None, RealDisk(), clock)
    for _ in range(2):
        opened = account.reserve_connection(SECOND_NS)
        account.settle(opened, clock.boottime_ns())  # type: ignore[arg-type]  # both have room
    account.reserve_connection(SECOND_NS)
    account.close()

    assert code_of("audit", "--policy", str(policy_path)) == 0
    assert ": 3 transactions and 3 connections, since 20" in capsys.readouterr().out
    assert code_of("audit", "--json", "--policy", str(policy_path)) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (told["transactions"], told["in_flight"], told["connections"]) == (3, 0, 3)


def test_json_is_one_object_a_limit(policy_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("audit", "--json", "--policy", str(policy_path)) == 0

    by_messages, by_recipients = map(json.loads, capsys.readouterr().out.splitlines())
    assert (by_messages["limit"], by_messages["most"], by_messages["at_most"]) == (
        "3 messages per 3600s",
        3,
        3,
    )
    assert (by_messages["exceeded"], by_messages["proven"], by_messages["transactions"]) == (False, True, 3)
    assert (by_recipients["upstream"], by_recipients["unit"], by_recipients["most"]) == (
        "isp",
        "recipients",
        6,
    )


def test_more_than_the_policy_allows_today_is_said_and_exits_1(
    policy_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy_path.write_text(LIMITED.replace("messages: 3", "messages: 2"))

    assert code_of("audit", "--policy", str(policy_path)) == 1
    assert "EXCEEDED, 1 more than it allows today" in capsys.readouterr().out


def test_what_was_merged_is_proven_by_what_was_counted_before(
    policy_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "EXACT_ENDS", 1)
    (path,) = (policy_path.parent / "history").glob("*[!k]")
    later = FakeClock(SystemClock().boottime_ns(), SystemClock().wall_ns() + 2 * 3600 * SECOND_NS)
    limits = parse_policy(LIMITED.encode(), policy_path).upstreams["isp"].limits
    # Of another boot: all of it is written anew.
    Throttle(path, limits, None, RealDisk(), later).flush()
    assert b"\nhighest " in path.read_bytes()

    assert code_of("audit", "--policy", str(policy_path)) == 0
    said = capsys.readouterr().out.splitlines()
    assert "2 older ones were merged by compaction" in said[1]
    assert "; what limits held until 20" in said[1]
    assert (said[2].endswith(": never exceeded"), "at most 3 at once at 20" in said[2]) == (True, True)

    policy_path.write_text(LIMITED.replace("per: 1h", "per: 61m").replace("messages: 3", "messages: 2"))
    assert code_of("audit", "--policy", str(policy_path)) == 0
    said = capsys.readouterr().out.splitlines()
    assert ": not exceeded since 20" in said[2]
    assert "; before that, by what is known roughly, not more than 3" in said[2]
    assert code_of("audit", "--json", "--policy", str(policy_path)) == 0
    new, old = map(json.loads, capsys.readouterr().out.splitlines())
    assert (new["proven"], new["proven_since"][:2], new["counted_until"]) == (False, "20", None)
    assert (old["proven"], old["proven_since"], old["counted_until"][:2]) == (True, None, "20")


def test_it_changes_nothing_and_needs_no_leave_to_write(policy_path: Path) -> None:
    (history,) = (policy_path.parent / "history").glob("*[!k]")
    history.chmod(0o400)
    before = history.read_bytes(), history.stat().st_mtime_ns, sorted(history.parent.iterdir())

    assert code_of("audit", "--policy", str(policy_path)) == 0
    assert (history.read_bytes(), history.stat().st_mtime_ns, sorted(history.parent.iterdir())) == before


def test_a_history_that_cannot_be_believed_is_65(
    policy_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (history,) = (policy_path.parent / "history").glob("*[!k]")
    history.write_bytes(b"user: password\n")

    assert code_of("audit", "--policy", str(policy_path)) == os.EX_DATAERR
    assert "not a history" in capsys.readouterr().err


def test_an_account_that_sent_nothing_has_nothing_to_prove(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("audit", "--policy", str(write_policy(tmp_path, LIMITED))) == 0
    assert "nothing was sent under a limit" in capsys.readouterr().out
    assert code_of("audit", "--json", "--policy", str(tmp_path / "policy.yaml")) == 0
    assert capsys.readouterr().out == ""


def test_a_policy_that_is_not_there_is_78(tmp_path: Path) -> None:
    assert code_of("audit", "--policy", str(tmp_path / "absent.yaml")) == os.EX_CONFIG


def test_it_waits_for_nobody_who_is_deciding(policy_path: Path) -> None:
    (history,) = (policy_path.parent / "history").glob("*[!k]")
    disk = RealDisk()
    held = disk.lock(f"{history}.lock", wait=False)
    assert held is not None

    assert code_of("audit", "--policy", str(policy_path)) == 0
    disk.close(held)
