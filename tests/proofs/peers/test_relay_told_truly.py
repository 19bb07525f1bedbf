"""What the operator's verbs say of a real relay is what holds: its upstream refuses us for two hours."""

import json
import os
import smtplib
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proofs.peers.relay import RelayProcess
from tests.proofs.peers.waiting import free_port

pytestmark = pytest.mark.slow


def hand_over(relay: RelayProcess) -> str:
    """Hand over a message; return its queue id."""
    with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as session:
        session.ehlo()
        session.mail("mjd@front.test")
        session.rcpt("ann@there.test")
        _, reply = session.data(b"Subject: hello\r\n\r\nhello\r\n")
    return reply.decode().split()[-1]


class Refusing(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.wfile.write(b"421 4.7.0 too much mail, try again in 2 hours\r\n")


@pytest.fixture
def refusing_port() -> Iterator[int]:
    with socketserver.TCPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture
def relay(tmp_path: Path, refusing_port: int) -> Iterator[RelayProcess]:
    isp = {"host": "127.0.0.1", "port": refusing_port, "tls": "none"}
    standby = isp | {"port": free_port(), "history": str(tmp_path / "history" / "standby")}
    limits = [{"messages": 100, "per": "1h"}, {"connections": 9, "per": "1h"}]
    with RelayProcess(tmp_path, {"isp": isp | {"limits": limits}, "standby": standby}) as relay:
        yield relay


def test_within_a_pause_the_verbs_say_what_changed_and_what_waits(relay: RelayProcess) -> None:
    queue_id = hand_over(relay)
    relay.wait_for_log(lambda line: "upstream isp paused" in line)

    standby = json.loads(relay.command("status", "--json").stdout)["upstreams"][1]
    assert (standby["state"], standby["health"]) == ("open", "untried")

    def told(verb: str) -> str:
        return relay.command("queue", verb, queue_id).stdout

    assert told("release") == f"{queue_id}: was not held; nothing changed\n"
    assert told("retry") == f"{queue_id}: has no back-off; nothing changed\n"
    assert told("hold") == f"{queue_id}: held\n"
    assert told("release").startswith(f"{queue_id}: released; isp is paused until ")
    unchanged = "standby: neither paused nor stopped; nothing changed\n"
    assert relay.command("resume", "standby").stdout == unchanged
    assert relay.command("resume", "isp").stdout.startswith("isp: used again, one message first")
    relay.wait_for_log(lambda line: "upstream isp is tried again" in line)

    def is_paused_again() -> bool:
        return sum("upstream isp paused" in line for line in relay.log()) > 1

    relay.wait_for_log(lambda _: is_paused_again())
    assert [line for line in relay.log() if "isp resumed" in line] == []


BROKEN = {
    "no YAML": "retry: {min: 5m\nspool: ./spool  # as it was\n\t: [",
    "no policy": "spool: ./spool\nlisten: 7\n",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_broken_policy_stops_no_verb_while_the_relay_runs(relay: RelayProcess, text: str) -> None:
    queue_id = hand_over(relay)
    relay.wait_for_log(lambda line: "upstream isp paused" in line)
    relay.policy_path.write_text(text)

    verbs = [["queue", verb, queue_id] for verb in ("show", "hold", "release", "retry")]
    for verb in (["status"], ["queue"], *verbs, ["resume", "standby"], ["audit"], ["fsck"]):
        ran = relay.command(*verb)
        assert (ran.returncode, ran.stderr) == (os.EX_OK, ""), (verb, ran)
    assert "the last edit of the policy was refused: " in relay.command("status").stdout
    assert "never exceeded" in relay.command("audit").stdout
    assert relay.command("queue", "delete", queue_id).stdout == f"{queue_id}: deleted\n"


def test_no_verb_acts_on_a_relay_that_runs_by_another_policy(relay: RelayProcess, tmp_path: Path) -> None:
    queue_id = hand_over(relay)
    other = tmp_path / "other.yaml"
    other.write_text("spool: ./spool\nlisten: 7\n")
    delete = ("queue", "delete", queue_id, "--policy", str(other))
    refused = relay.command(*delete)
    assert (refused.returncode, refused.stdout) == (os.EX_CONFIG, "")
    assert "--spool DIR asks the one on DIR" in refused.stderr

    spool = str(relay.folder / "spool")
    assert relay.command(*delete, "--spool", spool).stdout == f"{queue_id}: deleted\n"
    other.unlink()
    for verb in (["status"], ["queue"], ["resume", "standby"], ["audit"], ["fsck"]):
        assert relay.command(*verb, "--policy", str(other)).returncode == os.EX_CONFIG, verb
        assert relay.command(*verb, "--policy", str(other), "--spool", spool).returncode == os.EX_OK, verb
    relay.stop()
    down = relay.command("status", "--policy", str(other), "--spool", spool)
    assert down.returncode == os.EX_CONFIG
    assert relay.command("status", "--spool", spool).returncode == os.EX_UNAVAILABLE
    elsewhere = relay.command("status", "--spool", str(tmp_path))
    assert elsewhere.returncode == os.EX_UNAVAILABLE
    assert "is about another spool" in elsewhere.stderr


def test_a_relay_that_is_down_is_seen_as_it_will_start(relay: RelayProcess) -> None:
    hand_over(relay)
    relay.wait_for_log(lambda line: "upstream isp paused" in line)
    up = json.loads(relay.command("status", "--json").stdout)["upstreams"]
    relay.stop()

    down = json.loads(relay.command("status", "--json").stdout)["upstreams"]
    for upstream, before in zip(down, up, strict=True):
        for key in ("health", "paused_because", "waiting_messages", "waiting_recipients"):
            assert upstream[key] == before[key], key
    isp, standby = down
    assert (isp["state"], isp["waiting_messages"], isp["held_by"]) == ("paused", 1, "stop: the relay is down")
    assert isp["paused_until"] is not None
    assert (isp["limits"][1]["used"], standby["state"], standby["health"]) == (1, "down", "untried")
    text = relay.command("status").stdout
    assert "421 4.7.0 too much mail, try again in 2 hours" in text
    assert "100 messages per 1h" in text
