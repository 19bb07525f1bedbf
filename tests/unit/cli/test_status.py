"""`relay status` of a running relay and of a stopped one."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from relay.cli.options import default_policy
from relay.cli.status import status_lines
from relay.clock import SECOND_NS, SystemClock
from relay.spool.disk.durable import RealDisk
from relay.spool.maildir.engine import MaildirSpool
from relay.spool.maildir.layout import prepare
from relay.status.snapshot import PolicyStatus, QueueState, Snapshot, UpstreamState, to_json
from tests.fakes.snapshots import AT_NS, a_limit, a_snapshot, an_upstream
from tests.unit.cli.conftest import Run
from tests.unit.cli.control import POLICY, Up, answering, relay_up, write_policy

PAUSED = an_upstream(
    state=UpstreamState.PAUSED, because="535 5.7.8 [bold]no\x1b[2J", paused_until_ns=AT_NS + 60 * SECOND_NS
)
LIMITS = (
    a_limit(opens_in_s=3 * 3600),
    a_limit(used=7, count=10_000, opens_in_s=None),
    *(replace(a_limit(used=5), for_each="sender", key=key) for key in ("list@here.example", "")),
)
REFUSED_EDIT = PolicyStatus("ab", AT_NS, last_reload_ok=False, last_error="p.yaml:3:1: spoool: unknown")


@pytest.mark.parametrize(
    ("shown", "lines"),
    [
        (
            a_snapshot(upstream=an_upstream(limits=LIMITS)),
            [
                "isp smtp.example.net:587 open 3 open, 1 idle 2 400 messages, 800 recipients limit 8",
                "isp 8 messages per 1m 8/8 in 3h",
                "isp 10000 messages per 1m 7/10000 now",
                "isp 8 messages per 1m 5/8 by list@here.example in 20s",
                "isp 8 messages per 1m 5/8 by <> in 20s",
                "waiting 400 800 1000000 1m 30s",
            ],
        ),
        (
            a_snapshot(upstream=PAUSED, refusing_because="no room on the disk", policy=REFUSED_EDIT),
            [
                "refusing mail: no room on the disk",
                "isp smtp.example.net:587 paused for 1m: 535 5.7.8 [bold]no\\x1b[2J",
                "the last edit of the policy was refused: p.yaml:3:1: spoool: unknown",
            ],
        ),
    ],
    ids=["limits", "wrong"],
)
def test_status_text_shows_limits_and_what_is_wrong(shown: Snapshot, lines: list[str]) -> None:
    told = list(status_lines(shown))
    assert all(line.isprintable() for line in told)
    told = [" ".join(line.split()) for line in told]
    assert [line for line in lines if not any(line in each for each in told)] == [], told


def test_status_json_is_one_object_with_the_whole_snapshot(up: Up, run: Run) -> None:
    told, known = json.loads(run("status", "--json").out), to_json(up.client.snapshot())
    # Other processes write to this disk meanwhile.
    assert told.pop("disk").keys() == known.pop("disk").keys()
    assert told["queue"].keys() == {state.value for state in QueueState}
    assert told == json.loads(json.dumps(known))


def test_status_and_audit_find_the_relay_by_the_spool_of_a_broken_policy(policy_path: Path, run: Run) -> None:
    with relay_up(policy_path.parent):
        for text, code in (
            (POLICY, 0),
            ("spool: ./spool  # here\nretry: {min: 5m\n\t: [", 0),
            ("upstreams: {}\nspool:\n  engine: log\n  path: ./spool\n", 0),
            ("spool:\n  # path: ./spool\n  path: ./elsewhere\nlisten: 7\n", os.EX_CONFIG),
            ('spool: "./else where"  # was path: ./spool\nlisten: 7\n', os.EX_CONFIG),
            ("# spool: ./spool\n{", os.EX_CONFIG),
            ("", os.EX_CONFIG),
        ):
            policy_path.write_text(text)
            assert run("status").code == code, text
            # A verb that needs the whole policy takes the running relay's.
            assert run("audit").code == code, text
    down = run("status")
    assert (down.code, str(policy_path) in down.err) == (os.EX_CONFIG, True)


def test_the_policy_is_sought_in_the_option_then_environment_then_folder_then_system(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RELAY_POLICY", raising=False)
    (systems := tmp_path / "systems.yaml").touch()
    assert default_policy(systems) == systems
    Path("policy.yaml").symlink_to("nowhere")
    assert default_policy(systems) == Path("policy.yaml")
    assert "policy.yaml:1:1: policy: cannot read it" in run("status").err
    monkeypatch.setenv("RELAY_POLICY", "other.yaml")
    assert "other.yaml:1:1: policy: cannot read it" in run("status").err
    assert "policy.yaml:1:1: policy: cannot read it" in run("status", "--policy", "policy.yaml").err


def test_status_of_a_stopped_relay_exits_69_and_names_its_policy(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("RELAY_POLICY", str(write_policy(tmp_path / "other")))
    with relay_up(write_policy(tmp_path).parent):
        assert ": down; policy " in run("status").out
        code, out, _ = run("status", "--json")
        assert code == os.EX_UNAVAILABLE
        told = json.loads(out)
        assert told["condition"] == told["upstreams"][0]["state"] == "down"
        assert told["policy"]["path"] == f"{tmp_path}/other/policy.yaml"
        assert run("status", "--spool", str(tmp_path / "nowhere")).code == os.EX_UNAVAILABLE
        assert run("status", "--spool", str(tmp_path / "spool")).code == 0


def test_status_exits_75_for_a_fault_of_the_relay_and_for_a_locked_spool(policy_path: Path, run: Run) -> None:
    spool = policy_path.parent / "spool"
    with answering(spool, b"HTTP/1.0 200 OK\r\n\r\n"):
        code, _, err = run("status")
        assert (code, "the relay broke off; see its log" in err) == (os.EX_TEMPFAIL, True)

    prepare(str(spool), RealDisk())
    holder = MaildirSpool(str(spool), RealDisk(), SystemClock(), lambda _name, _why: None)
    code, _, err = run("status")
    assert (code, f"process {os.getpid()} owns the queue" in err) == (os.EX_TEMPFAIL, True)
    holder.close()
