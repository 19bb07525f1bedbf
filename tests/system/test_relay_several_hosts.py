"""Two real relays share an account in a real PostgreSQL: what one learns counts for both; faults are logged.

For kills, and a shared queue, see test_relay_shared_queue.
"""

import json
from pathlib import Path

import pytest

from tests.fakes.postgresql import Server
from tests.system.hosts import DISCONNECT, FAILURES, OF_B, host, make_tables, send
from tests.system.strict_smarthost import StrictSmarthost
from tests.system.waiting import wait_until


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


DEAF = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"


@pytest.mark.full
@pytest.mark.parametrize("is_connected", [True, False])
def test_a_host_that_missed_the_notification_of_a_refusal_sends_nothing(
    tmp_path: Path, server: Server, url: str, is_connected: bool
) -> None:
    """It gives back the slot that it reserves after the refusal, and opens no connection."""
    with StrictSmarthost(tmp_path, {"messages": 1, "per": "1h"}, seed=1) as upstream:
        one, other = (host(tmp_path, name, upstream.upstream(), url) for name in "ab")
        make_tables(one)
        with one, other:
            first = other if is_connected else one
            send(first)
            first.wait_until_empty()
            server.execute(DEAF)
            send(one, 1)
            wait_until(lambda: server.is_so("FROM relay.account WHERE state_version > 0", database="mail"))
            send(other, OF_B)
            other.wait_for_log(lambda line: "event=upstream_paused" in line)
            connects = 'relay_upstream_connects_total{result="ready",upstream="isp"}'
            assert other.metrics().get(connects, 0) == is_connected
        assert (upstream.ledger.relayed, upstream.ledger.refused) == (1, 1)


def test_a_database_that_lost_commits_stops_the_sending_until_an_operator_acts(
    tmp_path: Path, server: Server, url: str, upstream: StrictSmarthost
) -> None:
    """As after a failover to a standby that was behind."""
    relay = host(tmp_path, "a", upstream.upstream(), url)
    make_tables(relay)
    with relay:
        send(relay, 1)
        relay.wait_until_empty()
    server.execute(
        "UPDATE relay.account SET last_position = last_position - 1",
        "DELETE FROM relay.history WHERE position > (SELECT last_position FROM relay.account)",
        database="mail",
    )
    with relay:
        send(relay, 2)
        told = relay.wait_for_log(lambda line: "it lost 1 commits" in line)
        assert "remove each host's .mark" in told
        assert upstream.ledger.relayed == 1
    (mark,) = relay.folder.glob("history/*.mark")
    mark.unlink()
    with relay:
        relay.wait_until_empty()
    assert upstream.ledger.relayed == 2


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
