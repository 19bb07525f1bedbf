"""An operator pauses the upstream of a real relay: up, down, through SIGKILL, and until its own end."""

import json
import os
import smtplib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.proofs.peers import smtp_tools
from tests.proofs.peers.demand import demand
from tests.proofs.peers.relay import RelayProcess
from tests.proofs.peers.smtp_tools import SmtpSink, smtp_sink
from tests.proofs.peers.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def sink() -> Iterator[SmtpSink]:
    demand(smtp_tools.why_missing())
    with smtp_sink() as sink:
        yield sink


@pytest.fixture
def relay(tmp_path: Path, sink: SmtpSink) -> RelayProcess:
    return RelayProcess(tmp_path, {"isp": {"host": "127.0.0.1", "port": sink.port, "tls": "none"}})


def hand_over(relay: RelayProcess, count: int) -> None:
    with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as session:
        for _ in range(count):
            session.sendmail("mjd@front.test", ["r@list.test"], "Subject: x\r\n\r\nx\r\n")


def said(relay: RelayProcess, *arguments: str) -> str:
    done = relay.command(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def states(relay: RelayProcess) -> dict[str, str]:
    listed = [json.loads(line) for line in said(relay, "queue", "--json").splitlines()]
    return {each["queue_id"]: each["state"] for each in listed}


def shown(relay: RelayProcess) -> dict[str, Any]:
    done = relay.command("status", "--json")
    assert done.returncode in (os.EX_OK, os.EX_UNAVAILABLE), done.stderr
    (upstream,) = json.loads(done.stdout)["upstreams"]
    return dict(upstream)


def test_it_lasts_through_kills_up_and_down_until_resume(relay: RelayProcess, sink: SmtpSink) -> None:
    with relay:
        hand_over(relay, 1)
        sink.wait_for(1)
        assert said(relay, "pause", "isp").startswith("isp: paused until `relay resume isp`")
        # The answer says that it is durable, so nothing may come between.
        relay.kill()
        relay.start()
        hand_over(relay, 3)
        upstream = shown(relay)
        assert (upstream["state"], upstream["paused_until"]) == ("paused", None)
        assert upstream["held_by"] == f"operator: {upstream['paused_because']}"
        assert upstream["paused_by"] in upstream["paused_because"]
        assert relay.metrics()['relay_upstream_paused_by_operator{upstream="isp"}'] == 1
        assert upstream["paused_because"] in relay.get("/")
        listed = [json.loads(line) for line in said(relay, "queue", "--json").splitlines()]
        assert [each["held_by"] for each in listed] == [upstream["held_by"]] * 3
        relay.wait_for_log(lambda line: f"upstream isp paused by {upstream['paused_by']} until -" in line)

    assert shown(relay)["paused_by"] == upstream["paused_by"]
    assert said(relay, "pause", "isp", "--for", "10h").startswith("isp: paused until ")
    with relay:
        assert shown(relay)["paused_until"] is not None
        assert sink.count == 1
        assert said(relay, "resume", "isp").startswith("isp: used again, one message first")
        sink.wait_for(4)
        relay.wait_until_empty()
        assert shown(relay)["paused_by"] is None


def test_mail_goes_by_itself_when_its_time_is_over(relay: RelayProcess, sink: SmtpSink) -> None:
    assert said(relay, "pause", "isp").startswith("isp: paused until `relay resume isp`")
    with relay:
        hand_over(relay, 2)
        assert said(relay, "pause", "isp", "--for", "1s").startswith("isp: paused until ")
        sink.wait_for(2)
        relay.wait_for_log(lambda line: "isp: the operator's pause has ended: the time of" in line)


def test_new_mail_is_held_through_kills_until_resume(relay: RelayProcess, sink: SmtpSink) -> None:
    with relay:
        assert said(relay, "pause", "isp").startswith("isp: paused until")
        hand_over(relay, 1)
        assert said(relay, "pause", "isp", "--new").endswith("; what comes in for it is held\n")
        hand_over(relay, 2)
        for _ in range(2):
            relay.kill()
            relay.start()
            # A start reads the pause beside its first steps.
            wait_until(lambda: sorted(states(relay).values()) == ["held", "held", "waiting"])
        assert relay.metrics()['relay_upstream_holds_new_mail{upstream="isp"}'] == 1
        assert "new mail for it is held" in relay.get("/")
        first, second = (queue_id for queue_id, state in states(relay).items() if state == "held")
        assert said(relay, "queue", "hold", first) == f"{first}: held\n"
        assert relay.command("queue", "release", second).returncode == 1
    # Down, it lists the same.
    assert sorted(states(relay).values()) == ["held", "held", "waiting"]
    with relay:
        said(relay, "resume", "isp")
        sink.wait_for(2)
        assert said(relay, "queue", "release", first) == f"{first}: released\n"
        sink.wait_for(3)
        relay.wait_until_empty()


def test_what_is_no_pause_is_refused_and_changes_nothing(relay: RelayProcess) -> None:
    with relay:
        assert relay.command("pause", "isp", "--for", "0s").returncode == 64
        assert relay.command("pause").returncode == 64
        unknown = relay.command("pause", "../isp")
        assert (unknown.returncode, unknown.stderr) == (1, "../isp: there is no such upstream\n")
        assert shown(relay)["paused_by"] is None
