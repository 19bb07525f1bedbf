"""`relay fsck` and `relay audit`: one line for each finding, and the exit codes."""

import json
import os
import re
from pathlib import Path

import pytest

from relay.policy.source import parse_policy
from relay.spool.disk.durable import RealDisk
from tests.engines.spool.engine import CONTENT, LogOnModel, OnDisk, accept, claimed, on_the_kernel
from tests.unit.cli.conftest import Ran, Run
from tests.unit.cli.control import POLICY, charged, write_policy


@pytest.fixture
def engine(policy_path: Path) -> OnDisk:
    made = on_the_kernel(policy_path.parent)
    made.start().close()
    return made


def told(ran: Ran) -> list[dict[str, object]]:
    return [json.loads(line) for line in ran.out.splitlines()]


def test_fsck_exits_0_for_a_clean_spool_and_75_for_a_locked_one(engine: OnDisk, run: Run) -> None:
    accept(engine.intake())
    assert run("fsck") == (os.EX_OK, f"{engine.root}: 1 messages, clean\n", "")
    spool = engine.start()
    code, out, _ = run("fsck")
    assert code == os.EX_TEMPFAIL
    assert f"not read: process {os.getpid()} owns the queue in {engine.root}" in out
    (busy,) = told(run("fsck", "--json"))
    assert busy["messages"] is None
    spool.close()

    summary = {"finding": "summary", "path": engine.root, "messages": 1, "findings": 0}
    assert told(run("fsck", "--json")) == [summary | {"busy": None}]


@pytest.mark.parametrize("name", ["maildir", "log"])
def test_fsck_exits_65_for_a_damaged_message_of_any_length(name: str, policy_path: Path, run: Run) -> None:
    folder = write_policy(policy_path.parent, engine=name).parent
    made = on_the_kernel(folder)
    if name == "log":
        made = OnDisk(LogOnModel(made.root), RealDisk())
    spool, intake = made.start(), made.intake()
    damaged = [accept(intake, content=content) for content in (CONTENT, bytes(600_000))]
    accept(intake)
    assert len(claimed(spool)) == 3
    spool.close()
    intake.close()
    for queue_id in damaged:
        made.damage(queue_id)
    for _ in range(2):
        ran = run("fsck", "--json")
        *findings, summary = told(ran)
        assert ran.code == os.EX_DATAERR
        assert {each["path"] for each in findings} == {f"{made.root}/corrupt/{each}" for each in damaged}
        assert (summary["messages"], summary["findings"]) == (1, 2)


def test_fsck_exits_0_for_a_torn_history_and_65_for_a_damaged_one(engine: OnDisk, run: Run) -> None:
    root = Path(engine.root)
    history = charged(parse_policy(POLICY.encode(), root.parent / "policy.yaml"), [1])
    history.write_bytes(history.read_bytes().rstrip(b"\0") + b"00000000 [[1")
    # The next transaction cuts off what a crash left of a group.
    assert run("fsck").code == os.EX_OK

    for path in (history, root / "reports"):
        path.write_text("not a history")
    (root / "corrupt" / "\x1b[31m\n").write_text("x")
    ran = run("fsck", "--json")
    *findings, summary = told(ran)
    assert ran.code == os.EX_DATAERR
    assert findings[0].keys() == {"finding", "path", "what", "relay", "operator"}
    damaged = {str(history), f"{root}/reports", f"{root}/corrupt/?[31m"}
    assert {each["path"] for each in findings} == damaged
    assert summary["findings"] == 3
    *lines, last = run("fsck").out.splitlines()
    assert any(f"{root}/corrupt/?[31m: " in line and " -> " in line for line in lines)
    assert last == f"{root}: 0 messages, 3 findings"


@pytest.mark.parametrize("verb", ["fsck", "status"])
def test_a_user_who_does_not_own_the_spool_is_refused(
    engine: OnDisk, run: Run, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    code, _, err = run(verb)
    assert (code, f"{engine.root}: it belongs to uid" in err) == (os.EX_NOPERM, True)


LIMITED = POLICY.replace("limits: []", "limits: [{messages: 3, per: 1h}, {recipients: 50, per: 1d}]")


@pytest.fixture
def history(policy_path: Path) -> Path:
    """Return a history with one connection and three messages, each to two recipients."""
    policy = parse_policy(LIMITED.encode(), write_policy(policy_path.parent, LIMITED))
    return charged(policy, [2, 2, 2], connections=1)


def test_audit_proves_that_no_limit_was_exceeded(history: Path, run: Run) -> None:
    def state() -> object:
        return history.read_bytes(), history.stat().st_mtime_ns, sorted(history.parent.iterdir())

    before, disk = state(), RealDisk()
    held = disk.lock(f"{history}.lock", wait=False)
    assert held is not None
    # The audit does not wait for the lock of the history, and changes nothing.
    code, out, _ = run("audit")
    assert code == 0
    messages, recipients = out.splitlines()
    assert re.match(r"isp: 3 messages per 1h: at most 3 at once at 20\S+Z: never exceeded; ", messages)
    assert "; by 3 transactions and 1 connections since 20" in messages
    assert "50 recipients per 24h: at most 6 at once at 20" in recipients
    by_messages, by_recipients = map(json.loads, run("audit", "--json").out.splitlines())
    disk.close(held)
    told = {"upstream": "isp", "limit": "3 messages per 1h", "most": 3, "exceeded": False}
    told |= {"transactions": 3, "connections": 1, "period_seconds": 3600.0, "history": str(history)}
    assert by_messages | told == by_messages
    assert (by_recipients["unit"], by_recipients["most"]) == ("recipients", 6)
    assert state() == before


def test_audit_exits_1_if_a_limit_was_exceeded_and_65_for_damage(
    history: Path, policy_path: Path, run: Run
) -> None:
    policy_path.write_text(LIMITED.replace("messages: 3", "messages: 2"))
    code, out, _ = run("audit")
    assert (code, "EXCEEDED, 1 more than it allows today" in out) == (1, True)

    history.write_bytes(b"user: password\n")
    code, _, err = run("audit")
    assert (code, "not a history" in err) == (os.EX_DATAERR, True)

    # Its lock remembers a history that was removed.
    history.unlink()
    assert run("audit").code == os.EX_DATAERR
    for path in history.parent.iterdir():
        path.unlink()
    code, out, _ = run("audit")
    assert (code, ": at most 0 at once: never exceeded; by 0 transactions" in out) == (0, True)
    assert [each["most"] for each in told(run("audit", "--json"))] == [0, 0]
    assert run("audit", "--policy", str(policy_path.with_name("absent.yaml"))).code == os.EX_CONFIG
