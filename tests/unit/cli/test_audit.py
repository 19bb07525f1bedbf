"""`relay audit`: what each limit held, of a history as it lies there, with no relay to ask."""

import json
import os
from pathlib import Path

import pytest

from relay.clock import SECOND_NS, SystemClock
from relay.policy.source import parse_policy
from relay.spool.disk.durable import RealDisk
from relay.throttle.admission import Request
from relay.throttle.file_history import FileHistory
from relay.throttle.throttle import Throttle
from tests.unit.cli.control import POLICY, code_of, write_policy

LIMITED = POLICY.replace("limits: []", "limits: [{messages: 3, per: 1h}, {recipients: 50, per: 1d}]")


@pytest.fixture
def policy_path(tmp_path: Path) -> Path:
    """Return a policy under which a connection and three messages, each to two, went."""
    path = write_policy(tmp_path, LIMITED)
    policy = parse_policy(LIMITED.encode(), path)
    clock = SystemClock()
    history = FileHistory(policy.history_path("isp"), RealDisk(), clock)
    account = Throttle(history, policy.upstreams["isp"].limits, None, clock)
    for answer in [account.reserve_connection(SECOND_NS), *account.reserve([Request(2)] * 3)]:
        account.settle(answer, clock.boottime_ns())  # type: ignore[arg-type]  # all have room
    account.flush()
    account.close()
    return path


def history_of(policy_path: Path) -> Path:
    (history,) = (policy_path.parent / "history").glob("*[!k]")
    return history


def test_what_was_never_exceeded_is_proven(policy_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = history_of(policy_path)
    before, disk = (
        (history.read_bytes(), history.stat().st_mtime_ns, sorted(history.parent.iterdir())),
        RealDisk(),
    )
    held = disk.lock(f"{history}.lock", wait=False)
    assert held is not None

    # It waits for nobody who is deciding, and changes nothing.
    assert code_of("audit", "--policy", str(policy_path)) == 0
    said = capsys.readouterr().out.splitlines()
    assert "3 transactions and 1 connection" in said[0]
    assert said[1].startswith("  3 messages per 1h: at most 3 at once at 20")
    assert said[1].endswith(": never exceeded")
    assert said[2].startswith("  50 recipients per 24h: at most 6 at once at 20")
    assert code_of("audit", "--json", "--policy", str(policy_path)) == 0
    disk.close(held)
    by_messages, by_recipients = map(json.loads, capsys.readouterr().out.splitlines())
    assert (
        by_messages
        | {
            "upstream": "isp",
            "limit": "3 messages per 3600s",
            "most": 3,
            "exceeded": False,
            "transactions": 3,
            "connections": 1,
        }
        == by_messages
    )
    assert (by_recipients["unit"], by_recipients["most"]) == ("recipients", 6)
    assert (history.read_bytes(), history.stat().st_mtime_ns, sorted(history.parent.iterdir())) == before


def test_more_than_the_policy_allows_today_is_said_and_exits_1(
    policy_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy_path.write_text(LIMITED.replace("messages: 3", "messages: 2"))

    assert code_of("audit", "--policy", str(policy_path)) == 1
    assert "EXCEEDED, 1 more than it allows today" in capsys.readouterr().out


def test_what_cannot_be_proven_has_its_exit_code(
    policy_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = history_of(policy_path)
    history.write_bytes(b"user: password\n")
    assert code_of("audit", "--policy", str(policy_path)) == os.EX_DATAERR
    assert "not a history" in capsys.readouterr().err

    for path in history.parent.iterdir():
        path.unlink()
    assert code_of("audit", "--policy", str(policy_path)) == 0
    assert "nothing was sent under a limit" in capsys.readouterr().out
    assert code_of("audit", "--json", "--policy", str(policy_path)) == 0
    assert capsys.readouterr().out == ""
    assert code_of("audit", "--policy", str(policy_path.with_name("absent.yaml"))) == os.EX_CONFIG
