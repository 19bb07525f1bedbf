"""`relay status`, against a relay that runs and a spool that nobody holds."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from relay.cli.options import default_policy
from relay.clock import SECOND_NS, SystemClock
from relay.mail.formats import rfc3339
from relay.spool.disk.durable import RealDisk
from relay.spool.maildir.engine import MaildirSpool
from relay.spool.maildir.layout import prepare
from relay.status import snapshot as snapshots
from relay.status.snapshot import LaneStatus, PolicyStatus, Snapshot, UpstreamState
from relay.telemetry.outcomes import Outcome
from relay.verdicts.health import Health
from tests.fakes.operations import FakeOperations
from tests.fakes.snapshots import AT_NS, a_limit, a_snapshot, an_upstream, routes
from tests.unit.cli.control import POLICY, code_of, relay_up, write_policy
from tests.unit.cli.terminal import on_a_terminal
from tests.unit.cli.test_find import keep


@pytest.fixture
def policy_path(tmp_path: Path) -> Path:
    return write_policy(tmp_path)


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines of stdout, with one space between two words."""
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_json_is_the_snapshot_on_one_line(policy_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with relay_up(policy_path.parent / "spool", FakeOperations()):
        assert code_of("status", "--json", "--policy", str(policy_path)) == 0

    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == snapshots.to_json(a_snapshot())


FULL, FREE = a_limit(opens_in_s=3 * 3600), a_limit(used=1, opens_in_s=None)
CROWDED = replace(a_limit(used=90, count=90), is_crowded=True)
BY_KEY = tuple(
    replace(a_limit(used=5), for_each="sender", key=key) for key in ("list@here.example", "", None)
)
LANES = (LaneStatus("resets", 50.0, None, 1, 2, 3 * SECOND_NS), LaneStatus("lists", 100 / 3, 80))
PAUSED = an_upstream(
    state=UpstreamState.PAUSED,
    because="535 5.7.8 [bold]no\x1b[2J",
    paused_until_ns=AT_NS + 60 * SECOND_NS,
)
REFUSED_EDIT = PolicyStatus("ab", AT_NS, last_reload_ok=False, last_error="p.yaml:3:1: spoool: unknown")


@pytest.mark.parametrize(
    ("shown", "lines"),
    [
        (
            a_snapshot(
                upstream=an_upstream(limits=(a_limit(), a_limit(used=7, count=10_000, opens_in_s=None)))
            ),
            [
                "relay 0.1.0 on relay.example.org: running for 1h 2m",
                "isp smtp.example.net:587 open 3 open, 1 idle 2 400 messages, 800 recipients limit 8",
                "isp 8 messages per 60s 8/8 in 20s",
                "isp 10000 messages per 60s 7/10000 now",
                "waiting 400 800 1000000 1m 30s",
                "held 0 0 0 -",
                "recipients since the start: 1000 accepted, 190 relayed, 4 bounced, 1 expired, 1 deleted",
            ],
        ),
        (
            a_snapshot(upstream=an_upstream(limits=(FULL, FREE, CROWDED, *BY_KEY))),
            [
                "isp 8 messages per 60s 8/8 in 3h",
                "isp 8 messages per 60s 1/8 now",
                "isp 90 messages per 60s 90/90, more keys than are kept apart in 20s",
                "isp 8 messages per 60s 5/8 by list@here.example in 20s",
                "isp 8 messages per 60s 5/8 by <> in 20s",
            ],
        ),
        (
            a_snapshot(upstream=replace(an_upstream(), health=Health.PROVING, proving_after="no answer")),
            ["isp smtp.example.net:587 proving, one message first; before: no answer 3 open"],
        ),
        (
            a_snapshot(upstream=replace(an_upstream(), is_tried=False)),
            ["isp smtp.example.net:587 not tried yet 3 open"],
        ),
        (
            replace(a_snapshot(), routes=routes(), lanes=LANES),
            [
                "1, 3 user or sender, header isp, ses ses failover: isp is down, for 13m ses 1200",
                "2 client ses, isp ses all upstreams of its route are down, for 13m -",
                "4 recipient_domain m365, isp m365 m365 is down, fails over in 4m -",
                "5 all other mail isp, m365, ses isp spill to m365, for 13m isp 3, m365 400",
                "resets 50 % - 1 2 3s",
                "lists 33.33 % 80 % 0 0 -",
            ],
        ),
        (
            a_snapshot(
                upstream=PAUSED,
                refusing_because="no room on the disk",
                policy=REFUSED_EDIT,
            ),
            [
                "refusing mail: no room on the disk",
                "isp smtp.example.net:587 paused for 1m: 535 5.7.8 [bold]no\\x1b[2J",
                "the last edit of the policy was refused: p.yaml:3:1: spoool: unknown",
            ],
        ),
    ],
    ids=["plain", "limits", "proving", "untried", "routes and lanes", "wrong"],
)
def test_people_read_it_in_lines(
    shown: Snapshot, lines: list[str], policy_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    operations = FakeOperations()
    operations.shown = shown
    with relay_up(policy_path.parent / "spool", operations):
        assert code_of("status", "--policy", str(policy_path)) == 0

    told = said(capsys)
    assert [line for line in lines if not any(line in each for each in told)] == [], told


def test_a_pipe_gets_no_colours_and_no_folded_lines(
    policy_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")
    operations = FakeOperations()
    because = "a long story " * 30
    operations.shown = a_snapshot(upstream=an_upstream(state=UpstreamState.STOPPED, because=because))
    with relay_up(policy_path.parent / "spool", operations):
        assert code_of("status", "--policy", str(policy_path)) == 0

    out = capsys.readouterr().out

    assert "\x1b" not in out
    assert because.strip() in out


def test_the_systems_policy_is_looked_for_last(
    policy_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    monkeypatch.delenv("RELAY_POLICY", raising=False)
    with relay_up(policy_path.parent / "spool", FakeOperations()):
        assert default_policy(policy_path) == policy_path
        Path("policy.yaml").symlink_to("nowhere")
        assert default_policy(policy_path) == Path("policy.yaml")
        assert code_of("status") == os.EX_CONFIG
        assert "policy.yaml:1:1: policy: cannot read it" in capsys.readouterr().err
        monkeypatch.setenv("RELAY_POLICY", str(policy_path))
        assert code_of("status") == 0


def test_a_broken_edit_does_not_hide_a_relay_that_runs(
    policy_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_policy(policy_path.parent, POLICY + "nonsense: 1\n")
    with relay_up(policy_path.parent / "spool", FakeOperations()):
        assert code_of("status", "--policy", str(policy_path)) == 0

    assert "running" in capsys.readouterr().out


@pytest.mark.parametrize("text", [POLICY + "nonsense: 1\n", "spool: 7\n", "{", ""])
def test_without_a_relay_a_broken_policy_is_78(
    text: str, policy_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_policy(policy_path.parent, text)

    assert code_of("status", "--policy", str(policy_path)) == os.EX_CONFIG
    assert str(policy_path) in capsys.readouterr().err


def test_a_relay_that_fails_is_75(policy_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    operations = FakeOperations()
    operations.raises = RuntimeError("odd")
    with relay_up(policy_path.parent / "spool", operations):
        assert code_of("status", "--policy", str(policy_path)) == os.EX_TEMPFAIL

    assert "the relay says: 500" in capsys.readouterr().err


def test_a_relay_that_is_down_is_told_by_the_exit_code_and_with_the_policy_that_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = POLICY.replace("    auth: {user: mjd, password_file: not-there}\n", "")
    (tmp_path / "other").mkdir()
    write_policy(tmp_path / "other", text)
    monkeypatch.chdir(tmp_path / "other")
    monkeypatch.delenv("RELAY_POLICY", raising=False)
    with relay_up(write_policy(tmp_path, text).parent / "spool", FakeOperations()):
        assert code_of("status") == os.EX_UNAVAILABLE
        first, *_ = capsys.readouterr().out.splitlines()
        assert first.endswith(f": down; policy {tmp_path}/other/policy.yaml")

        assert code_of("status", "--json") == os.EX_UNAVAILABLE
        told = json.loads(capsys.readouterr().out)
        assert told["condition"] == told["upstreams"][0]["state"] == "down"
        assert told["policy"]["path"] == f"{tmp_path}/other/policy.yaml"

        assert code_of("status", "--spool", str(tmp_path / "nowhere")) == os.EX_UNAVAILABLE


def test_a_spool_that_is_held_by_somebody_silent_is_75(
    policy_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spool = str(policy_path.parent / "spool")
    prepare(spool, RealDisk())
    holder = MaildirSpool(spool, RealDisk(), SystemClock(), lambda _name, _why: None)

    assert code_of("status", "--policy", str(policy_path)) == os.EX_TEMPFAIL
    assert f"held by process {os.getpid()}" in capsys.readouterr().err
    holder.close()


def test_a_spool_of_somebody_else_is_77(policy_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        os.chown(policy_path.parent / "spool", os.geteuid() + 1, -1)
    except PermissionError:
        pytest.skip("only root can make this")

    assert code_of("status", "--policy", str(policy_path)) == os.EX_NOPERM
    assert "run this as the user that the relay runs as" in capsys.readouterr().err


HELD = "limit 100 messages per 3600s"
LONG_REPLY = "421 4.7.0 our-system-has-detected-an-unusual-rate of unsolicited mail from your account"


def test_at_80_columns_no_word_is_broken(policy_path: Path) -> None:
    operations = FakeOperations()
    limit = replace(a_limit(), label="100 messages per 3600s", words="100 messages per 1h")
    upstream = an_upstream(state=UpstreamState.PAUSED, because=LONG_REPLY, limits=(limit,))
    operations.shown = a_snapshot(upstream=replace(upstream, held_by=HELD))
    with relay_up(policy_path.parent / "spool", operations):
        lines = on_a_terminal(80, "status", "--policy", str(policy_path))
        wide = on_a_terminal(300, "status", "--policy", str(policy_path))

    assert max(map(len, lines)) <= 80
    words = " ".join(lines).split()
    assert set(LONG_REPLY.split()) <= set(words)
    assert {"smtp.example.net:587", "connections"} <= set(words)
    assert "isp       100 messages per 1h   8/8  in 20s" in lines
    assert "held by      limit 100 messages per 1h" in lines
    assert not any("3600s" in line for line in lines)
    assert any(line.startswith("upstream  host") for line in wide)


def test_who_used_a_window_is_told_by_sender_client_and_lane(
    policy_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ago = (0, 30, 59, 61)
    outcomes = [
        Outcome(AT_NS - seconds * SECOND_NS, f"{seconds:016}", sender, "b@x.example", "relayed", "isp")
        for seconds, sender in zip(ago, ("list@here.example", "", "LIST@here.example", "old@x"), strict=True)
    ]
    outcomes = [each._replace(client="mx[192.0.2.1]", lane="lists", size_bytes=100) for each in outcomes]
    refused = outcomes[0]._replace(became="bounced", queue_id="1")
    keep(policy_path, *outcomes, refused, outcomes[0]._replace(recipient="c@x.example"))
    with relay_up(policy_path.parent / "spool", FakeOperations()):
        assert code_of("status", "--by", "sender", "--json", "--policy", str(policy_path)) == 0
        told = json.loads(capsys.readouterr().out)
        assert code_of("status", "--by", "sender", "--policy", str(policy_path)) == 0
        by_sender = said(capsys)
        assert code_of("status", "--by", "client", "--policy", str(policy_path)) == 0
        by_client = said(capsys)

    limit = {"upstream": "isp", "limit": "8 messages per 60s", "by": "sender"}
    assert told.pop("usage") == [
        limit | {"key": "list@here.example", "messages": 2, "recipients": 3, "size_bytes": 200},
        limit | {"key": "", "messages": 1, "recipients": 1, "size_bytes": 100},
    ]
    assert told.pop("usage_since") == rfc3339(AT_NS - 61 * SECOND_NS)
    assert told == snapshots.to_json(a_snapshot())
    assert by_sender[1] == "isp 8 messages per 60s 8/8 in 20s"
    assert "isp 8 messages per 60s list@here.example 2 3 200" in by_sender
    assert "isp 8 messages per 60s <> 1 1 100" in by_sender
    assert "isp 8 messages per 60s mx[192.0.2.1] 3 4 300" in by_client


def test_the_first_line_names_the_policy_of_a_relay_that_runs(
    policy_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    operations = FakeOperations()
    operations.shown = a_snapshot(policy=PolicyStatus("ab", AT_NS, path="/etc/relay/policy.yaml"))
    with relay_up(policy_path.parent / "spool", operations):
        assert code_of("status", "--spool", str(policy_path.parent / "spool")) == 0

    first, *_ = capsys.readouterr().out.splitlines()
    assert first == "relay 0.1.0 on relay.example.org: running for 1h 2m; policy /etc/relay/policy.yaml"
