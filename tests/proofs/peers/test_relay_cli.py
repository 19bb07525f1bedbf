"""The command line on a real relay: while it runs, while it is down, and after it came back."""

import contextlib
import io
import json
import os
import re
import smtplib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from relay.cli.main import main
from relay.clock import SystemClock
from relay.spool.disk.durable import RealDisk
from relay.spool.maildir.engine import MaildirSpool
from tests.proofs.peers import smtp_tools
from tests.proofs.peers.demand import demand
from tests.proofs.peers.relay import RelayProcess
from tests.proofs.peers.smtp_tools import SmtpSink, smtp_sink

pytestmark = pytest.mark.slow

SENDER = "mjd@front.test"
OVER, DOWN = "its back-off is over", "the relay is down"
ABSENT_ID = "2jx5qbmkq8b8tnng"


class Ran(NamedTuple):
    """What a verb printed."""

    stdout: str
    stderr: str


class OperatedRelay:
    """A relay whose upstream refuses every recipient for now, and an operator at its command line."""

    def __init__(self, relay: RelayProcess, good: SmtpSink) -> None:
        self.relay = relay
        self.good = good

    def hand_over(self, count: int) -> list[str]:
        """Hand over so many messages; return their queue ids."""
        queue_ids = []
        with smtplib.SMTP("127.0.0.1", self.relay.port, timeout=60) as session:
            session.ehlo()
            for number in range(count):
                session.mail(SENDER)
                session.rcpt(f"r{number}@list.test")
                _, reply = session.data(f"Subject: {number}\r\n\r\n{number}\r\n".encode())
                queue_ids.append(reply.decode().split()[-1])
        return queue_ids

    def run(self, *arguments: str, code: int = os.EX_OK) -> Ran:
        """Run a verb, which exits with this code.

        In this process, since an interpreter of its own takes a second to start: all else
        is as in a shell.  `command` of the relay is the whole of it.
        """
        said, complained = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(complained),
            pytest.raises(SystemExit) as ended,
        ):
            main(arguments)
        assert ended.value.code == code, complained.getvalue() + said.getvalue()
        return Ran(said.getvalue(), complained.getvalue())

    def queue(self) -> dict[str, dict[str, Any]]:
        """Return the queue by id, as a program sees it."""
        lines = self.run("queue", "--json").stdout.splitlines()
        return {message["queue_id"]: message for message in map(json.loads, lines)}

    def states(self) -> dict[str, str]:
        """Return the state of each message of the queue."""
        return {queue_id: message["state"] for queue_id, message in self.queue().items()}

    def wait_for_deferral(self, queue_id: str, times: int) -> None:
        """Wait until a message was deferred so many times."""
        said = re.compile(rf"{queue_id}: to=.*status=deferred")
        self.relay.wait_for_log(
            lambda _: sum(said.search(line) is not None for line in self.relay.log()) >= times
        )

    def wait_for_end(self, queue_id: str) -> None:
        """Wait until a message is gone."""
        self.relay.wait_for_log(lambda line: f"{queue_id}: removed" in line)


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OperatedRelay]:
    """Return a relay that is not started yet."""
    demand(smtp_tools.why_missing())
    with smtp_sink("-r", "RCPT") as refusing, smtp_sink() as good:
        isp = {"host": "127.0.0.1", "port": refusing.port, "tls": "none"}
        limits = [{"messages": 100, "per": "1h"}]
        retry = {"min": "1h", "max": "1h", "lifetime": "5d"}
        relay = RelayProcess(tmp_path, {"isp": isp | {"limits": limits}}, retry=retry)
        monkeypatch.setenv("RELAY_POLICY", str(relay.policy_path))
        yield OperatedRelay(relay, good)


def test_a_running_relay_is_seen_and_told_what_to_do(operator: OperatedRelay) -> None:
    with operator.relay:
        held, retried, bounced, deleted = ids = operator.hand_over(4)
        for queue_id in ids:
            operator.wait_for_deferral(queue_id, 1)

        assert operator.states() == dict.fromkeys(ids, "deferred")
        assert all("450" in message["reason"] for message in operator.queue().values())
        status = json.loads(operator.run("status", "--json").stdout)
        assert (status["condition"], status["queue"]["deferred"]["messages"]) == ("running", 4)
        assert status["upstreams"][0]["limits"][0]["used"] == 4
        assert "100 messages per 1h" in operator.relay.command("status").stdout
        assert all(queue_id in operator.run("queue").stdout for queue_id in ids)
        assert "r0@list.test" in operator.run("queue", "show", held).stdout
        shown = json.loads(operator.run("queue", "show", "--json", held).stdout)
        assert [r["status"] for r in shown["recipient_statuses"]] == ["to do"]

        assert operator.run("queue", "hold", held).stdout == f"{held}: held\n"
        assert operator.run("queue", "retry", retried).stdout == f"{retried}: to be tried at once\n"
        operator.wait_for_deferral(retried, 2)
        assert operator.run("queue", "delete", deleted).stdout == f"{deleted}: deleted\n"
        assert operator.run("queue", "bounce", bounced).stdout == f"{bounced}: bounced\n"
        told = operator.relay.wait_for_log(
            lambda line: f"{bounced}: sender non-delivery notification" in line
        )
        report = told.split()[-2]
        operator.wait_for_deferral(report, 1)
        assert operator.states() == {held: "held", retried: "deferred", report: "deferred"}
        assert (operator.queue()[report]["reverse_path"], operator.queue()[report]["recipients"]) == (
            "",
            [SENDER],
        )

        assert operator.run("queue", "release", held).stdout == f"{held}: released\n"
        operator.wait_for_deferral(held, 2)


def test_wrong_calls_are_told_apart_by_their_exit_codes(operator: OperatedRelay) -> None:
    with operator.relay:
        (queue_id,) = operator.hand_over(1)
        operator.wait_for_deferral(queue_id, 1)

        absent = operator.run("queue", "hold", ABSENT_ID, queue_id, code=1)
        assert (absent.stdout, absent.stderr) == (
            f"{queue_id}: held\n",
            f"{ABSENT_ID}: there is no such message in the queue\n",
        )
        operator.run("queue", "show", ABSENT_ID, code=1)
        operator.run("queue", "hold", "../../etc/passwd", code=os.EX_USAGE)
        operator.run("queue", "hold", code=os.EX_USAGE)
        operator.run("queue", "hold", "ALL", code=os.EX_USAGE)
        operator.run("queue", "eat", queue_id, code=os.EX_USAGE)
        operator.run("status", "--policy", "/nowhere/policy.yaml", code=os.EX_CONFIG)
        assert operator.states() == {queue_id: "held"}


def test_what_is_done_while_the_relay_is_down_counts_later(operator: OperatedRelay) -> None:
    with operator.relay:
        held, bounced, deleted, released, retried, kept = ids = operator.hand_over(6)
        for queue_id in ids:
            operator.wait_for_deferral(queue_id, 1)
        operator.run("queue", "hold", released)

    status = json.loads(operator.relay.command("status", "--json").stdout)
    assert status["condition"] == "down"
    assert (status["queue"]["deferred"]["messages"], status["queue"]["held"]["messages"]) == (5, 1)
    assert operator.states() == dict.fromkeys(ids, "deferred") | {released: "held"}
    assert "r0@list.test" in operator.run("queue", "show", held).stdout
    assert operator.run("queue", "hold", held).stdout == f"{held}: held\n"
    assert operator.run("queue", "release", released).stdout == f"{released}: released; {DOWN}\n"
    assert operator.run("queue", "retry", retried).stdout == f"{retried}: {OVER}; {DOWN}\n"
    assert operator.run("queue", "delete", deleted).stdout == f"{deleted}: deleted\n"
    assert operator.run("queue", "bounce", bounced).stdout == f"{bounced}: bounced\n"
    operator.run("queue", "hold", ABSENT_ID, code=1)
    (report,) = set(operator.states()) - set(ids)
    states = {held: "held", released: "waiting", retried: "waiting", kept: "deferred", report: "waiting"}
    assert operator.states() == states
    assert operator.good.count == 0

    # Another process at the spool, and no relay that answers.
    busy = MaildirSpool(str(operator.relay.folder / "spool"), RealDisk(), SystemClock())
    try:
        assert "the spool is in use" in operator.run("status", code=os.EX_TEMPFAIL).stderr
        assert operator.relay.command("run").returncode == os.EX_TEMPFAIL
    finally:
        busy.close()

    operator.relay.policy["upstreams"]["isp"]["port"] = operator.good.port
    operator.relay.write_policy()
    with operator.relay:
        for queue_id in (released, retried, report):
            operator.wait_for_end(queue_id)
        assert operator.states() == {held: "held", kept: "deferred"}
        operator.run("queue", "retry", kept)
        operator.wait_for_end(kept)
        operator.run("queue", "release", "ALL", "--yes")
        operator.good.wait_for(5)
        operator.relay.wait_until_empty()
        ledger = json.loads(operator.run("status", "--json").stdout)["ledger"]

    fates = {name: ledger[name] for name in ("accepted", "relayed", "bounced", "deleted", "imbalance")}
    assert fates == {"accepted": 7, "relayed": 5, "bounced": 1, "deleted": 1, "imbalance": 0}
