"""`relay plan`: an edited policy against a relay that runs, and against the spool of one that is down."""

import json
import os
from datetime import datetime
from pathlib import Path

import pytest

from relay.clock import SystemClock
from relay.mail.envelope import Envelope
from relay.policy.source import parse_policy
from relay.spool.disk.durable import RealDisk
from relay.status.plan import plan_to_json
from relay.throttle.admission import Request
from relay.throttle.file_history import FileHistory
from relay.throttle.throttle import Throttle
from tests.engines.spool.engine import accept
from tests.engines.spool.maildir_engine import on_the_kernel
from tests.unit.cli.conftest import Run
from tests.unit.cli.control import POLICY, answering, relay_up, write_policy

LIMITED = POLICY.replace("limits: []", "limits: [{messages: 3, per: 1h}]").replace(
    "    auth: {user: mjd, password_file: not-there}\n", ""
)


@pytest.fixture
def edited(policy_path: Path) -> Path:
    """Return an edit that allows fewer, beside the policy in force."""
    write_policy(policy_path.parent, LIMITED)
    path = policy_path.parent / "edited.yaml"
    path.write_text(LIMITED.replace("messages: 3", "messages: 1"))
    return path


def test_a_running_relay_is_asked(edited: Path, run: Run) -> None:
    with relay_up(edited.parent, LIMITED.replace("messages: 3", "messages: 6")) as up:
        for _ in range(4):
            up.accept()
        code, out, _ = run("plan", str(edited))
        found = json.loads(run("plan", str(edited), "--json").out)
        assert found == json.loads(json.dumps(plan_to_json(up.client.plan(edited.read_text(), edited))))
        codes = [run("plan", str(edited), "--within", within).code for within in ("2h", "179s", "4h")]

    assert (code, found["is_running"], codes) == (0, True, [1, 1, 0])
    for words in (
        "upstreams.isp.limits",
        "isp: 4 messages, 4 recipients wait",
        "  edited:   all have gone in 3h",
    ):
        assert words in out


@pytest.mark.parametrize("words", [["soon"], ["0s"], ["-1h"], ["5"], []])
def test_a_within_that_is_no_duration_is_a_wrong_call(words: list[str], edited: Path, run: Run) -> None:
    assert run("plan", str(edited), "--within", *words).code == os.EX_USAGE


def test_a_faulty_file_is_78_with_every_fault_as_check_tells_it(edited: Path, run: Run) -> None:
    edited.write_text(LIMITED.replace("messages: 3", "messages: 0") + "retyr: {}\n")
    with answering(edited.parent / "spool"):  # which is not asked
        told = run("plan", str(edited))
    assert told == run("check", str(edited))
    assert (told.code, len(told.err.splitlines())) == (os.EX_CONFIG, 2)


def test_of_a_relay_that_is_down_it_tells_what_a_start_would_do_and_changes_no_history(
    edited: Path, run: Run
) -> None:
    engine = on_the_kernel(edited.parent)
    engine.start().close()
    intake = engine.intake()
    policy, clock, disk = parse_policy(LIMITED.encode(), edited), SystemClock(), RealDisk()
    for _ in range(4):
        accept(intake, Envelope("a@here", ("r@there",), clock.wall_ns(), "unknown[127.0.0.1]", "me", "ESMTP"))
    intake.close()
    history = policy.history_path("isp")
    account = Throttle(FileHistory(history, disk, clock), policy.upstreams["isp"].limits, None, clock)
    for answer in account.reserve([Request(1)] * 2):
        account.settle(answer, clock.boottime_ns())  # type: ignore[arg-type]  # both have room
    account.flush()
    account.close()
    before = history.read_bytes(), history.stat().st_mtime_ns
    held = disk.lock(f"{history}.lock", wait=False)
    assert held is not None

    found = json.loads(run("plan", "--json", str(edited)).out)

    disk.close(held)
    assert (history.read_bytes(), history.stat().st_mtime_ns) == before
    assert found["is_running"] is False
    began = datetime.fromisoformat(found["at"])
    (over,) = found["over"]
    assert (over["limit"], over["used"], over["count"]) == ("1 messages per 3600s", 2, 1)
    assert 3500 < (datetime.fromisoformat(over["opens_at"]) - began).total_seconds() <= 3601
    (line,) = found["upstreams"]
    assert (line["messages"], line["held_by"]) == (4, "limit 3 messages per 3600s")
    # One has room now, and the others an hour, two and three after what was sent: half as many as asked.
    ends = [datetime.fromisoformat(line[key]) - began for key in ("drained_at", "edited_drained_at")]
    assert [round(end.total_seconds() / 3601, 1) for end in ends] == [1.0, 4.0]
    assert [run("plan", str(edited), "--within", within).code for within in ("3h", "5h")] == [1, 0]
