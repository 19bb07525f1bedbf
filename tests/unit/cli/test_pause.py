"""`relay pause` and `relay resume`: an upstream at rest, and used again."""

import json
import os
import re
from pathlib import Path

import pytest

from relay.status.snapshot import UpstreamState
from relay.verdicts.account import PauseAsked
from tests.fakes.operations import FakeOperations
from tests.fakes.snapshots import a_snapshot, an_upstream
from tests.unit.cli.conftest import Run
from tests.unit.cli.control import relay_up

HOUR_NS = 3600 * 10**9
NO_ROOM = "no room in 8 messages per 60s until 2025-10-09T08:53:40Z"
UNCHANGED = "isp: neither paused nor stopped; nothing changed\n"
AGAIN = "isp: used again, one message first"


@pytest.fixture(autouse=True)
def _anna(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "anna")


def test_a_running_relay_is_told_for_how_long_and_by_whom(policy_path: Path, run: Run) -> None:
    operations = FakeOperations()
    with relay_up(policy_path.parent / "spool", operations):
        timed, lasting = run("pause", "isp", "--for", "2h"), run("pause", "isp")
        absent = run("pause", "no/../such")

    asked = [PauseAsked("anna", 2 * HOUR_NS), PauseAsked("anna"), PauseAsked("anna")]
    assert operations.paused == list(zip(("isp", "isp", "no/../such"), asked, strict=True))
    assert timed.out == "isp: paused until 2025-10-09T10:53:20Z; 2 in flight finish\n"
    assert lasting.out == "isp: paused until `relay resume isp`; 2 in flight finish\n"
    assert absent == (1, "", "no/../such: there is no such upstream\n")


@pytest.mark.parametrize("length", ["0h", "2", "-1h", "an hour", "367d", ""])
def test_a_time_that_is_none_is_a_wrong_call(policy_path: Path, length: str, run: Run) -> None:
    operations = FakeOperations()
    with relay_up(policy_path.parent / "spool", operations):
        code, _, err = run("pause", "isp", "--for", length)
    assert (code, "duration" in err) == (os.EX_USAGE, True)
    assert operations.paused == []


def test_a_running_relay_says_what_holds_the_mail_all_the_same(policy_path: Path, run: Run) -> None:
    operations = FakeOperations()
    with relay_up(policy_path.parent / "spool", operations):
        assert run("resume", "isp").out == UNCHANGED
        operations.shown = a_snapshot(upstream=an_upstream(state=UpstreamState.PAUSED))
        assert run("resume", "isp").out == f"{AGAIN}; {NO_ROOM}\n"
        operations.shown = a_snapshot(upstream=an_upstream(state=UpstreamState.STOPPED, because="535 no"))
        operations.is_refused_again = True
        assert run("resume", "isp", "--bounce").out == f"{AGAIN}; isp is stopped: 535 no\n"
        assert run("resume", "no/../such") == (1, "", "no/../such: there is no such upstream\n")
    assert operations.resumed == ["isp", "isp", "isp, believed", "no/../such"]


@pytest.mark.usefixtures("policy_path")
def test_a_relay_that_is_down_finds_the_pause_at_its_start_and_its_end(run: Run) -> None:
    def state() -> tuple[object, ...]:
        code, out, _ = run("status", "--json")
        assert code == os.EX_UNAVAILABLE
        (upstream,) = json.loads(out)["upstreams"]
        return upstream["state"], upstream["paused_by"], upstream["paused_until"] is None

    assert run("pause", "nobody") == (1, "", "nobody: there is no such upstream\n")
    assert run("resume", "isp").out == UNCHANGED
    assert run("pause", "isp").out == "isp: paused until `relay resume isp`\n"
    assert state() == ("paused", "anna", True)
    assert run("pause", "isp", "--for", "2h").code == 0
    assert state() == ("paused", "anna", False)
    said = run("status").out
    assert "paused for 2h: by anna, since 20" in said
    # Every instant is in UTC and says so.
    for instant in re.findall(r"\S*\d\d:\d\d:\d\d\S*", said):
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ,?", instant), said
    assert run("resume", "isp").out == f"{AGAIN}; the relay is down\n"
    assert state()[:2] == ("down", None)
    assert run("resume", "isp").out == UNCHANGED
    code, _, err = run("resume", "isp", "--bounce")
    assert (code, "is known while it runs" in err) == (1, True)
