"""`relay resume`: an upstream that rests is used again."""

from pathlib import Path

import pytest

from relay.policy.source import parse_policy
from relay.sender.state_file import pause_path
from tests.fakes.operations import FakeOperations
from tests.fakes.snapshots import a_snapshot
from tests.unit.cli.control import code_of, relay_up, write_policy


def test_a_running_relay_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy, operations = write_policy(tmp_path), FakeOperations()
    name = operations.shown.upstreams[0].name
    with relay_up(tmp_path / "spool", operations):
        assert code_of("resume", name, "--policy", str(policy)) == 0
        assert code_of("resume", "no/../such", "--policy", str(policy)) == 1

    assert operations.resumed == [name, "no/../such"]
    out, err = capsys.readouterr()
    assert out == f"{name}: used again, one message first\n"
    assert err == "no/../such: there is no such upstream\n"
    assert a_snapshot().upstreams[0].name == name


def test_a_relay_that_is_down_forgets_its_pause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = write_policy(tmp_path)
    assert code_of("resume", "isp", "--policy", str(policy)) == 0
    kept = pause_path(parse_policy(policy.read_bytes(), policy), "isp")
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text("{}")

    assert code_of("resume", "isp", "--policy", str(policy)) == 0
    assert "used again" in capsys.readouterr().out
    assert not kept.exists()
    assert code_of("resume", "isp", "--bounce", "--policy", str(policy)) == 1
    assert "is known while it runs" in capsys.readouterr().err
    assert code_of("resume", "nobody", "--policy", str(policy)) == 1
