"""`relay resume`: an upstream that rests is used again."""

from pathlib import Path

import pytest

from relay.clock import SystemClock
from relay.policy.source import parse_policy
from relay.sender.state_file import parse, pause_path, render
from relay.status.snapshot import UpstreamState
from relay.verdicts.account import AccountState, PauseRecord
from relay.verdicts.health import Health
from relay.verdicts.operator_pause import FOREVER_NS
from tests.fakes.operations import FakeOperations
from tests.fakes.snapshots import a_snapshot, an_upstream
from tests.unit.cli.control import code_of, relay_up, write_policy

HOUR_NS = 3600 * 10**9


def test_a_running_relay_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy, operations = write_policy(tmp_path), FakeOperations()
    name = operations.shown.upstreams[0].name
    with relay_up(tmp_path / "spool", operations):
        assert code_of("resume", name, "--policy", str(policy)) == 0
        operations.shown = a_snapshot(upstream=an_upstream(state=UpstreamState.PAUSED))
        assert code_of("resume", name, "--policy", str(policy)) == 0
        operations.shown = a_snapshot(upstream=an_upstream(state=UpstreamState.STOPPED, because="535 no"))
        operations.is_refused_again = True
        assert code_of("resume", name, "--policy", str(policy)) == 0
        assert code_of("resume", "no/../such", "--policy", str(policy)) == 1

    assert operations.resumed == [name, name, name, "no/../such"]
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"{name}: neither paused nor stopped; nothing changed",
        f"{name}: used again, one message first; no room in 8 messages per 60s until 2025-10-09T08:53:40Z",
        f"{name}: used again, one message first; isp is stopped: 535 no",
    ]
    assert err == "no/../such: there is no such upstream\n"
    assert a_snapshot().upstreams[0].name == name


def test_a_relay_that_is_down_ends_its_pause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = write_policy(tmp_path)
    assert code_of("resume", "isp", "--policy", str(policy)) == 0
    assert capsys.readouterr().out == "isp: neither paused nor stopped; nothing changed\n"
    kept = pause_path(parse_policy(policy.read_bytes(), policy), "isp")
    kept.parent.mkdir(parents=True, exist_ok=True)
    clock = SystemClock()
    now_ns = clock.boottime_ns()
    state = AccountState(Health.PAUSED, "421 no", now_ns + HOUR_NS, spans=((now_ns, FOREVER_NS),))
    record = PauseRecord(clock.boot_id(), now_ns, clock.wall_ns(), state)
    kept.write_bytes(render(record))

    assert code_of("resume", "isp", "--policy", str(policy)) == 0
    assert capsys.readouterr().out == "isp: used again, one message first; the relay is down\n"
    resumed = parse(kept.read_bytes()).state
    assert resumed.health is Health.PROVING
    # Its time is still no age of what waits.
    assert resumed.spans == ((now_ns, resumed.until_ns),)
    assert code_of("resume", "isp", "--policy", str(policy)) == 0
    assert capsys.readouterr().out == "isp: neither paused nor stopped; nothing changed\n"
    assert code_of("resume", "isp", "--bounce", "--policy", str(policy)) == 1
    assert "is known while it runs" in capsys.readouterr().err
    assert code_of("resume", "nobody", "--policy", str(policy)) == 1
