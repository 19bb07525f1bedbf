"""Two real relays share an account in a real PostgreSQL, or a queue too.

What one learns of the account counts for both. Each message of a shared queue is sent once, whichever host is
gone. For kills see test_relay_eight_hosts.
"""

import json
import os
import signal
import smtplib
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.postgresql import Server
from tests.system.demand import demand, missing_program
from tests.system.hosts import DISCONNECT, FAILURES, OF_B, host, make_tables, of_one_queue, send
from tests.system.relay import RelayProcess, upstream_at
from tests.system.smtp_tools import smtp_sink
from tests.system.strict_smarthost import StrictSmarthost
from tests.system.waiting import free_port, wait_until


@pytest.mark.full
@pytest.mark.parametrize("failure", FAILURES)
def test_a_relay_without_its_history_takes_mail_and_sends_nothing(
    tmp_path: Path, server: Server, upstream: StrictSmarthost, *, url: str, relays_url: str, failure: str
) -> None:
    fail, mend, words = FAILURES[failure]
    relay = host(tmp_path, "a", upstream.upstream(), relays_url)
    make_tables(relay, "--as", url)
    with relay:
        send(relay, 1)
        upstream.wait_until(lambda ledger: ledger.relayed == 1)
        fail(server)
        try:
            send(relay, 2)
            relay.wait_for_log(lambda line: "event=history_failed" in line and "nothing is sent" in line)
            relay.wait_for_log(lambda line: words in line)
            assert [each["state"] for each in relay.queue()] == ["waiting"]
            assert "the database: " in relay.command("status").stdout
            assert upstream.ledger.relayed == 1
        finally:
            mend(server)
        relay.wait_until_empty()
    assert upstream.ledger.relayed == 2


def test_an_operators_pause_of_an_account_and_its_end_reach_all_hosts(
    tmp_path: Path, url: str, upstream: StrictSmarthost
) -> None:
    one, other = (host(tmp_path, name, upstream.upstream(), url) for name in "ab")
    make_tables(one)
    with one, other:
        assert one.command("pause", "isp").returncode == 0
        other.wait_for_log(lambda line: "event=operator_paused" in line)
        send(other)
        assert [each["state"] for each in other.queue()] == ["waiting"]
        assert upstream.ledger.relayed == 0
        assert one.command("resume", "isp").returncode == 0
        other.wait_until_empty()
        age = 'relay_host_history_age_seconds{host="b.test",upstream="isp"}'
        wait_until(lambda: one.metrics().get(age) is not None)
    assert upstream.ledger.relayed == 1
    (told,) = json.loads(one.command("status", "--json").stdout)["hosts"]
    assert (told["host"], told["lease_seconds"], [*told["history_age_seconds"]]) == ("b.test", None, ["isp"])


def test_no_host_tries_an_upstream_that_refused_another_host(tmp_path: Path, url: str) -> None:
    with StrictSmarthost(tmp_path, {"messages": 2, "per": "1h"}, seed=1) as upstream:
        one, other = (host(tmp_path, name, upstream.upstream(), url) for name in "ab")
        make_tables(one)
        with one, other:
            for number in range(3):
                send(one, number)
            other.wait_for_log(lambda line: "event=upstream_paused" in line)
            send(other, OF_B)
            assert [each["state"] for each in other.queue()] == ["waiting"]
        # A relay that starts knows it too.
        with other:
            assert [each["state"] for each in other.queue()] == ["waiting"]
        assert (upstream.ledger.relayed, upstream.ledger.refused) == (2, 1)


@pytest.mark.full
def test_a_host_that_lost_its_connection_to_its_history_sends_within_30_s(
    tmp_path: Path, server: Server, url: str, upstream: StrictSmarthost
) -> None:
    """Its connection for LISTEN stays, so nothing there tells it that the database answers again."""
    relay = host(tmp_path, "a", upstream.upstream(), url)
    make_tables(relay)
    with relay:
        send(relay, 1)
        relay.wait_until_empty()
        server.execute(
            DISCONNECT.replace("usename = 'relay'", "datname = 'mail' AND query NOT LIKE 'LISTEN%'")
        )
        send(relay, 2)
        relay.wait_for_log(lambda line: "event=history_failed" in line)
        relay.wait_until_empty(within_s=30)


ENDED = "UPDATE relay.owner SET until = clock_timestamp() WHERE host = 'a.test'"


@pytest.fixture
def hosts(tmp_path: Path, url: str, upstream: StrictSmarthost) -> tuple[RelayProcess, RelayProcess]:
    """Return a relay whose upstream does not answer, and one that can send."""
    a = of_one_queue(tmp_path, "a", upstream.upstream() | {"port": free_port()}, url)
    make_tables(a)
    return a, of_one_queue(tmp_path, "b", upstream.upstream(), url)


def test_messages_that_a_lost_host_claimed_are_sent_by_another(
    server: Server, hosts: tuple[RelayProcess, RelayProcess], upstream: StrictSmarthost
) -> None:
    """At once if the host was stopped; when its lease ends if it was killed."""
    a, b = hosts
    a.start()
    send(a, 1)
    wait_until(lambda: len(a.queue()) == 1)
    assert a.stop() == 0
    with b:
        upstream.wait_until(lambda ledger: ledger.relayed == 1)
        a.start()
        send(a, 2)
        wait_until(lambda: a.queue() or upstream.ledger.relayed == 2)
        a.kill_all()
        told = b.command("database", "check").stdout
        assert "host a.test: " in told
        server.execute(ENDED, database="mail")
        upstream.wait_until(lambda ledger: ledger.relayed == 2)
        b.wait_until_empty()
        with a:
            assert a.queue() == []
        assert a.command("fsck").returncode == 0


def test_a_halted_host_that_wakes_up_sends_no_message_that_another_took_over(
    server: Server, hosts: tuple[RelayProcess, RelayProcess], upstream: StrictSmarthost
) -> None:
    a, b = hosts
    with a:
        for number in range(3):
            send(a, number)
        wait_until(lambda: len(a.queue()) == 3)
        os.kill(a.pid, signal.SIGSTOP)
        server.execute(ENDED, database="mail")
        with b:
            upstream.wait_until(lambda ledger: ledger.relayed == 3)
            b.wait_until_empty()
            os.kill(a.pid, signal.SIGCONT)
            a.policy["upstreams"]["isp"]["port"] = upstream.port
            a.write_policy()
            a.reload()
            send(a, 3)
            a.wait_until_empty()
            b.wait_until_empty()
    assert sorted(each.recipients for each in upstream.seen()) == [(f"r{n}.0@list.test",) for n in range(4)]


@pytest.mark.parametrize(
    "failure",
    [
        "stopped at once",
        *(pytest.param(each, marks=pytest.mark.full) for each in ("read-only", "with no connection left")),
    ],
)
def test_a_relay_without_its_queue_refuses_mail_with_451_and_sends_within_30_s_after(
    tmp_path: Path, server: Server, upstream: StrictSmarthost, *, url: str, relays_url: str, failure: str
) -> None:
    fail, mend, words = FAILURES[failure]
    a = of_one_queue(tmp_path, "a", upstream.upstream() | {"port": free_port()}, relays_url)
    make_tables(a, "--as", url)
    with a:
        send(a, 1)
        wait_until(lambda: len(a.queue()) == 1)
        fail(server)
        try:
            a.policy["upstreams"]["isp"]["port"] = upstream.port
            a.write_policy()
            a.reload()
            with pytest.raises(smtplib.SMTPDataError) as refused:
                send(a, 2)
            a.wait_for_log(lambda line: "event=spool_failed" in line and "the database: " in line)
            a.wait_for_log(lambda line: words in line)
            assert upstream.ledger.relayed == 0
        finally:
            mend(server)
        assert refused.value.smtp_code == 451
        upstream.wait_until(lambda ledger: ledger.relayed == 1, within_s=30)
        send(a, 3)
        a.wait_until_empty()
    assert upstream.ledger.relayed == 2


def test_a_relay_whose_queue_is_down_at_its_start_exits_with_75(
    server: Server, hosts: tuple[RelayProcess, RelayProcess]
) -> None:
    server.stop()
    try:
        with pytest.raises(ChildProcessError, match="exited 75"):
            hosts[0].start()
    finally:
        server.start()


@pytest.mark.full
def test_verbs_on_one_host_show_and_change_messages_that_another_host_claimed(
    server: Server, hosts: tuple[RelayProcess, RelayProcess], upstream: StrictSmarthost, tmp_path: Path
) -> None:
    a, b = hosts

    def told(*words: str, code: int = os.EX_OK) -> str:
        """Return the stdout of a verb on the other host, or its stderr if it is to fail with a code."""
        ran = b.command(*words)
        assert ran.returncode == code, ran
        return ran.stderr if code else ran.stdout

    def shown(relay: RelayProcess, key: str) -> dict[str, str]:
        return {each["queue_id"]: each[key] for each in relay.queue()}

    with a:
        for number in range(4):
            send(a, number)
        wait_until(lambda: len(a.queue()) == 4)
        ids = [each["queue_id"] for each in sorted(a.queue(), key=lambda each: each["subject"])]
        with b:
            assert [*shown(b, "host").items()] == [(i, "a.test") for i in sorted(ids)]
            wait_until(lambda: b.metrics().get('relay_host_claimed_messages{host="a.test"}') == 4)
            assert "4 messages" in told("status")
            assert all("on a.test" in line for line in told("queue").splitlines()[1:-1])
            assert json.loads(told("queue", "show", "--json", ids[0]))["subject"] == "0"
            assert told("queue", "content", ids[0]).endswith("hello\r\n")
            told("export", ids[0], "--output", str(tmp_path / "export"))
            assert ids[2] in told("find", "r2.0@list.test")
            assert told("queue", "hold", ids[0]) == f"{ids[0]}: held\n"
            assert told("queue", "hold", ids[0]) == f"{ids[0]}: was held already\n"
            assert shown(a, "state")[ids[0]] == "held"
            assert "held: release it first" in told("queue", "retry", ids[0], code=1)
            assert told("queue", "bounce", ids[1]) == f"{ids[1]}: bounced\n"
            told("queue", "delete", "--sender", "mjd@*", "--state", "held", "--yes")
            wait_until(lambda: shown(a, "state").keys() >= {*ids[2:]})
            assert shown(a, "state").keys().isdisjoint(ids[:2])
            # The verb names a host that does not answer.  The next owner first holds the message, then sends.
            os.kill(a.pid, signal.SIGSTOP)
            assert (
                told("queue", "hold", ids[2], code=1) == f"{ids[2]}: requested from a.test; no answer yet\n"
            )
            server.execute(ENDED, database="mail")
            wait_until(lambda: shown(b, "host")[ids[2]] == "b.test")
            assert shown(b, "state")[ids[2]] == "held"
            upstream.wait_until(lambda ledger: ledger.relayed == 2)
            os.kill(a.pid, signal.SIGCONT)
    assert {each.recipients for each in upstream.seen()} == {("mjd@front.test",), ("r3.0@list.test",)}


@pytest.mark.full
def test_a_message_in_a_transaction_cannot_be_deleted_from_another_host(
    hosts: tuple[RelayProcess, RelayProcess],
) -> None:
    demand(missing_program("smtp-sink"))
    a, b = hosts
    with smtp_sink("-w", "2") as sink, b:
        a.policy["upstreams"]["isp"] = upstream_at(sink.port, limits=[])
        a.write_policy()
        with a:
            send(a, 1)
            found: list[Any] = []

            def is_active() -> bool:
                found[:] = a.queue()
                return [each["state"] for each in found] == ["active"]

            wait_until(is_active)
            ran = b.command("queue", "delete", found[0]["queue_id"])
            assert (ran.returncode, ran.stdout) == (1, "")
            assert "no such message" in ran.stderr
            a.wait_for_log(lambda line: "status=sent" in line)
