"""`relay pause`: an operator has nothing more sent through an upstream."""

import json
import os
import re
from pathlib import Path

import pytest

from relay.policy.source import parse_policy
from relay.sender.state_file import parse, pause_path
from relay.verdicts.account import PauseRecord
from relay.verdicts.operator_pause import PauseAsked
from tests.fakes.operations import FakeOperations
from tests.unit.cli.control import code_of, relay_up, write_policy

HOUR_NS = 3600 * 10**9


@pytest.fixture(autouse=True)
def _anna(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "anna")


def recorded(policy: Path) -> PauseRecord:
    return parse(pause_path(parse_policy(policy.read_bytes(), policy), "isp").read_bytes())


def test_a_running_relay_is_told_for_how_long_and_by_whom(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy, operations = write_policy(tmp_path), FakeOperations()
    with relay_up(tmp_path / "spool", operations):
        assert code_of("pause", "isp", "--for", "2h", "--policy", str(policy)) == 0
        assert code_of("pause", "isp", "--policy", str(policy)) == 0
        assert code_of("pause", "no/../such", "--policy", str(policy)) == 1

    timed, lasting = PauseAsked("anna", 2 * HOUR_NS), PauseAsked("anna")
    assert operations.paused == [("isp", timed), ("isp", lasting), ("no/../such", lasting)]
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "isp: paused until 2025-10-09T10:53:20Z; 2 in flight finish",
        "isp: paused until `relay resume isp`; 2 in flight finish",
    ]
    assert err == "no/../such: there is no such upstream\n"


@pytest.mark.parametrize("length", ["0h", "2", "-1h", "an hour", "367d", ""])
def test_a_time_that_is_none_is_a_wrong_call(
    tmp_path: Path, length: str, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = write_policy(tmp_path)

    assert code_of("pause", "isp", "--for", length, "--policy", str(policy)) == 64
    assert "duration" in capsys.readouterr().err
    assert not pause_path(parse_policy(policy.read_bytes(), policy), "isp").exists()


def test_a_relay_that_is_down_finds_the_pause_at_its_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = write_policy(tmp_path)

    assert code_of("pause", "isp", "--policy", str(policy)) == 0
    assert capsys.readouterr().out == "isp: paused until `relay resume isp`\n"
    pause = recorded(policy).state.operator
    assert pause is not None
    assert (pause.is_lasting, pause.by) == (True, "anna")
    assert code_of("status", "--json", "--policy", str(policy)) == os.EX_UNAVAILABLE
    (shown,) = json.loads(capsys.readouterr().out)["upstreams"]
    assert (shown["state"], shown["paused_by"], shown["paused_until"]) == ("paused", "anna", None)
    assert shown["paused_because"] == f"by anna, since {shown['paused_since_at'][:19]}Z"


def test_an_unknown_upstream_of_a_relay_that_is_down_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("pause", "nobody", "--policy", str(write_policy(tmp_path))) == 1
    assert capsys.readouterr().err == "nobody: there is no such upstream\n"


def test_every_instant_is_in_utc_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = write_policy(tmp_path)
    assert code_of("pause", "isp", "--for", "2h", "--policy", str(policy)) == 0
    assert code_of("status", "--policy", str(policy)) == os.EX_UNAVAILABLE

    said = capsys.readouterr().out
    instants = re.findall(r"\S*\d\d:\d\d:\d\d\S*", said)
    assert "paused for 2h: by anna, since 20" in said
    assert len(instants) == 2
    for instant in instants:
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ,?", instant), said
