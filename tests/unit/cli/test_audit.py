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
from tests.unit.cli.conftest import Run
from tests.unit.cli.control import POLICY, write_policy

LIMITED = POLICY.replace("limits: []", "limits: [{messages: 3, per: 1h}, {recipients: 50, per: 1d}]")


@pytest.fixture
def history(policy_path: Path) -> Path:
    """Return the history of a connection and three messages, each to two."""
    policy = parse_policy(LIMITED.encode(), write_policy(policy_path.parent, LIMITED))
    clock, path = SystemClock(), policy.history_path("isp")
    account = Throttle(FileHistory(path, RealDisk(), clock), policy.upstreams["isp"].limits, None, clock)
    for answer in [account.reserve_connection(SECOND_NS), *account.reserve([Request(2)] * 3)]:
        account.settle(answer, clock.boottime_ns())  # type: ignore[arg-type]  # all have room
    account.flush()
    account.close()
    return path


def test_what_was_never_exceeded_is_proven(history: Path, run: Run) -> None:
    def state() -> object:
        return history.read_bytes(), history.stat().st_mtime_ns, sorted(history.parent.iterdir())

    before, disk = state(), RealDisk()
    held = disk.lock(f"{history}.lock", wait=False)
    assert held is not None
    # It waits for nobody who is deciding, and changes nothing.
    code, out, _ = run("audit")
    assert code == 0
    said = out.splitlines()
    assert "3 transactions and 1 connection" in said[0]
    assert said[1].startswith("  3 messages per 1h: at most 3 at once at 20")
    assert said[1].endswith(": never exceeded")
    assert said[2].startswith("  50 recipients per 24h: at most 6 at once at 20")
    by_messages, by_recipients = map(json.loads, run("audit", "--json").out.splitlines())
    disk.close(held)
    told = {"upstream": "isp", "limit": "3 messages per 3600s", "most": 3, "exceeded": False}
    told |= {"transactions": 3, "connections": 1, "period_seconds": 3600.0, "history": str(history)}
    assert by_messages | told == by_messages
    assert (by_recipients["unit"], by_recipients["most"]) == ("recipients", 6)
    assert state() == before


def test_what_is_not_proven_has_its_exit_code(history: Path, policy_path: Path, run: Run) -> None:
    policy_path.write_text(LIMITED.replace("messages: 3", "messages: 2"))
    code, out, _ = run("audit")
    assert (code, "EXCEEDED, 1 more than it allows today" in out) == (1, True)

    history.write_bytes(b"user: password\n")
    code, _, err = run("audit")
    assert (code, "not a history" in err) == (os.EX_DATAERR, True)

    for path in history.parent.iterdir():
        path.unlink()
    code, out, _ = run("audit")
    assert (code, "nothing was sent under a limit" in out) == (0, True)
    assert run("audit", "--json") == (0, "", "")
    assert run("audit", "--policy", str(policy_path.with_name("absent.yaml"))).code == os.EX_CONFIG
