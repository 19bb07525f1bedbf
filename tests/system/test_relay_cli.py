"""The command line on a real relay: while it runs, while it is down, after kills, and with another policy."""

import json
import os
import re
import smtplib
from pathlib import Path
from typing import Any

import pytest

from tests.system.relay import RelayProcess
from tests.system.strict_smarthost import StrictSmarthost
from tests.system.waiting import wait_until

SENDER = "mjd@front.test"
ABSENT_ID = "2jx5qbmkq8b8tnng"


class Operated:
    """A relay, and an operator at its command line; the upstream defers `stay…` and refuses `bad…`."""

    def __init__(self, relay: RelayProcess, host: StrictSmarthost) -> None:
        self.relay = relay
        self.host = host

    def hand_over(self, *recipients: str) -> str:
        """Hand over one message; return its queue id."""
        with smtplib.SMTP("127.0.0.1", self.relay.port, timeout=60) as session:
            session.ehlo()
            session.mail(SENDER)
            for recipient in recipients:
                session.rcpt(recipient)
            names = "Message-ID: <one@Front.test>\r\nSubject: =?utf-8?q?Z=C3=BCrich?= weekly\r\n"
            _, reply = session.data(f"{names}\r\nhello\r\n".encode())
        return reply.decode().split()[-1]

    def deferred(self, count: int) -> list[str]:
        """Hand over so many messages; return their ids once each was deferred."""
        queue_ids = [self.hand_over(f"stay{number}@list.test") for number in range(count)]
        for queue_id in queue_ids:
            self.relay.wait_for_log(re.compile(rf"{queue_id}: to=.*status=deferred").search)
        return queue_ids

    def run(self, *words: str, code: int = os.EX_OK) -> str:
        """Run a verb; fail unless it exits with this code.  Return its stdout and stderr."""
        ran = self.relay.command(*words)
        assert ran.returncode == code, (words, ran)
        return ran.stdout + ran.stderr

    def told(self, *words: str, code: int = os.EX_OK) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run(*words, "--json", code=code))
        return found

    def queue(self) -> dict[str, dict[str, Any]]:
        return {message["queue_id"]: message for message in self.relay.queue()}

    def states(self) -> dict[str, str]:
        return {queue_id: message["state"] for queue_id, message in self.queue().items()}

    def ends(self, text: str) -> dict[str, str]:
        found = map(json.loads, self.relay.command("find", text, "--json").stdout.splitlines())
        return {each["recipient"]: each["became"] for each in found if each["found"] == "recent"}


@pytest.fixture
def operator(tmp_path: Path, upstream: StrictSmarthost) -> Operated:
    """Return a relay that is not started yet."""
    isp = upstream.upstream(limits=[{"messages": 100, "per": "1h"}], shield=None)
    retry = {"min": "1h", "max": "1h", "lifetime": "5d"}
    return Operated(RelayProcess(tmp_path, {"isp": isp}, retry=retry), upstream)


def test_verbs_on_a_relay_that_is_down_take_effect_at_its_next_start(operator: Operated) -> None:
    with operator.relay:
        held, bounced, deleted, released, retried, kept, reported = ids = operator.deferred(7)
        assert all("450" in message["reason"] for message in operator.queue().values())
        assert operator.told("status")["upstreams"][0]["limits"][0]["used"] == 7
        operator.run("queue", "hold", released)
        assert operator.run("queue", "bounce", reported) == f"{reported}: bounced\n"
        operator.host.wait_until(lambda ledger: ledger.relayed == 1)
        (report,) = (seen for seen in operator.host.seen() if seen.is_relayed)
        assert (report.reverse_path, report.recipients) == ("", (SENDER,))

    status = operator.told("status", code=os.EX_UNAVAILABLE)
    assert status["condition"] == "down"
    assert (status["queue"]["deferred"]["messages"], status["queue"]["held"]["messages"]) == (5, 1)
    assert operator.states() == dict.fromkeys(ids[:-1], "deferred") | {released: "held"}
    assert "stay0@list.test" in operator.run("queue", "show", held)
    assert operator.run("queue", "hold", held) == f"{held}: held\n"
    assert operator.run("queue", "release", released) == f"{released}: released\n"
    assert operator.run("queue", "retry", retried) == f"{retried}: back-off ended\n"
    assert operator.run("queue", "delete", deleted) == f"{deleted}: deleted\n"
    assert operator.run("queue", "bounce", bounced) == f"{bounced}: bounced\n"
    operator.run("queue", "hold", ABSENT_ID, code=1)
    became = {"stay1@list.test": "bounced", "stay2@list.test": "deleted", "stay6@list.test": "bounced"}
    assert operator.ends("@list.test") == became
    states = {held: "held", released: "waiting", retried: "waiting", kept: "deferred", bounced: "reporting"}
    assert operator.states() == states
    assert operator.host.ledger.relayed == 1

    operator.host.refusals.clear()
    with operator.relay:
        operator.host.wait_until(lambda ledger: ledger.relayed == 4)
        wait_until(lambda: operator.states() == {held: "held", kept: "deferred"})
        operator.run("queue", "retry", kept)
        operator.run("queue", "release", "ALL", "--yes")
        operator.relay.wait_until_empty()
        totals = operator.told("status")["totals"]

    assert (totals["relayed"], totals["bounced"], totals["expired"]) == (5, 0, 0)


@pytest.mark.full
def test_an_operators_pause_lasts_through_kills_until_resume(operator: Operated) -> None:
    relay, told = operator.relay, operator.relay.folder / "told"
    relay.policy["notify"] = [{"command": ["/bin/sh", "-c", f"(cat; echo) >>{told}"]}]
    relay.write_policy()

    def shown() -> dict[str, Any]:
        return dict(operator.told("status")["upstreams"][0])

    with relay:
        assert operator.run("pause", "isp").startswith("isp: paused until `relay resume isp`")
        # The answer says that the pause is durable, so a kill right after it must not lose it.
        relay.kill()
        relay.start()
        queue_id = operator.hand_over("ann@list.test")
        upstream = shown()
        assert (upstream["state"], upstream["paused_until"]) == ("paused", None)
        assert upstream["held_by"] == f"operator: {upstream['paused_because'].removeprefix('by ')}"
        assert relay.metrics()['relay_upstream_paused_by_operator{upstream="isp"}'] == 1
        assert upstream["paused_because"] in relay.get("/")
        assert operator.queue()[queue_id]["held_by"] == upstream["held_by"]

    events = [json.loads(line)["event"] for line in told.read_text().splitlines()]
    assert set(events) == {"paused"}, "a hook is told of it"
    with relay:
        assert shown()["paused_by"] == upstream["paused_by"]
        assert operator.run("pause", "isp", "--for", "10h").startswith("isp: paused until ")
        assert shown()["paused_until"] is not None
        assert operator.host.ledger.relayed == 0
        assert operator.run("resume", "isp").startswith("isp: resumed; one message goes first")
        relay.wait_until_empty()
        assert shown()["paused_by"] == ""

        operator.run("pause", "isp", "--for", "1s")
        operator.hand_over("bob@list.test")
        operator.host.wait_until(lambda ledger: ledger.relayed == 2)


@pytest.mark.full
def test_no_verb_acts_on_a_relay_of_another_spool(operator: Operated, tmp_path: Path) -> None:
    other, spool = str(tmp_path / "other.yaml"), str(tmp_path / "spool")
    Path(other).write_text("spool: ./elsewhere\nlisten: 7\n")
    with operator.relay:
        (queue_id,) = operator.deferred(1)
        delete = ("queue", "delete", queue_id, "--policy", other)
        assert "--spool DIR asks the relay on DIR" in operator.run(*delete, code=os.EX_CONFIG)
        assert operator.run(*delete, "--spool", spool) == f"{queue_id}: deleted\n"
        Path(other).unlink()
        operator.run("status", "--policy", other, code=os.EX_CONFIG)
        operator.run("status", "--policy", other, "--spool", spool)
    operator.run("status", "--policy", other, "--spool", spool, code=os.EX_CONFIG)
    operator.run("status", "--spool", spool, code=os.EX_UNAVAILABLE)
    elsewhere = operator.run("status", "--spool", str(tmp_path), code=os.EX_UNAVAILABLE)
    assert "names another spool" in elsewhere


@pytest.mark.full
@pytest.mark.parametrize("to", [b"[" * 1_000_000, b"a@b.test" + b"\n x" * 300_000, b'"[\\' * 300_000])
def test_a_list_of_addresses_crafted_to_be_slow_is_refused(operator: Operated, to: bytes) -> None:
    """None of these megabytes is an address; a parser that reads them more than once takes for ever."""
    refused = operator.relay.command("sendmail", "-t", stdin=b"To: " + to + b"\n\nhi\n")
    assert refused.returncode == os.EX_DATAERR
    assert len(refused.stderr) < 10_000
