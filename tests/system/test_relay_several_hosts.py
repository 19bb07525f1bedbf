"""Two real relays, one account, one real PostgreSQL: never over, nothing lost, and told what is wrong."""

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.cut_line import CutLine
from tests.fakes.postgresql import Server
from tests.system.feeder import Feeder
from tests.system.hosts import DISCONNECT, FAILURES, OF_B, host, make_tables, send, through
from tests.system.kills import Kills, judge, told_relayed_twice
from tests.system.strict_smarthost import StrictSmarthost
from tests.system.waiting import wait_until

CONNECTIONS = 6


@pytest.mark.full
def test_two_hosts_together_never_exceed_whatever_is_killed(
    tmp_path: Path, server: Server, url: str, tell: Callable[[str], None]
) -> None:
    """A relay, the server or a line dies about each half second, a line also behind a COMMIT."""
    dice, limit, kills = random.Random(5), {"messages": 40, "per": "1s"}, Kills()
    with (
        StrictSmarthost(tmp_path, limit, seed=5, latest_reply_s=0.05) as upstream,
        CutLine(server.port) as line,
    ):
        isp = upstream.upstream(connections=CONNECTIONS, limits=[limit], max_transaction="1500ms")
        relays = [host(tmp_path, "a", isp, through(line, url)), host(tmp_path, "b", isp, url)]
        make_tables(relays[1])
        for relay in relays:
            relay.start()

        def kill_relay() -> None:
            relay = dice.choice(relays)
            with kills.one():
                relay.kill_all()
                upstream.catch_up()
            relay.start()

        def kill_server() -> None:
            server.kill()
            server.start()

        acts = [kill_relay, line.cut_all, lambda: line.cut(b"COMMIT"), kill_server]
        happened: Counter[int] = Counter()
        with Feeder(relays[0].port, ahead=0) as one, Feeder(relays[1].port, ahead=0, first=OF_B) as other:
            for number in range(16):
                seen = len(upstream.ledger.seen)
                for feeder in (one, other):
                    feeder.allow(12)
                upstream.wait_until(lambda ledger, seen=seen: len(ledger.seen) >= seen + 12)  # type: ignore[misc]  # bound now
                happened[number % len(acts)] += 1
                acts[number % len(acts)]()
        for relay in relays:
            relay.wait_until_empty()
        wait_until(lambda: upstream.unanswered == 0)
        audits = [relay.command("audit") for relay in relays]
        for relay in relays:
            assert relay.stop() == 0
            assert told_relayed_twice(relay.log()) == []
    assert [(each.returncode, each.stderr) for each in audits] == [(0, ""), (0, "")]
    verdict = judge(
        upstream.seen(),
        upstream.tried,
        kills,
        one.acknowledged | other.acknowledged,
        one.attempted | other.attempted,
    )
    verdict.assert_good(connections=CONNECTIONS)
    most = upstream.ledger.most_in_any_window()
    tell(
        f"{len(upstream.seen())} transactions of two hosts: at most {most} of 40 in any 1 s, {line.cuts} cuts"
    )
    assert upstream.ledger.refused == 0
    assert 30 < most <= 40
    assert line.cuts > 0


@pytest.mark.parametrize(
    "failure",
    ["killed", *(pytest.param(each, marks=pytest.mark.full) for each in FAILURES if each != "killed")],
)
def test_while_its_history_is_away_a_relay_takes_mail_and_sends_nothing(
    tmp_path: Path, server: Server, url: str, upstream: StrictSmarthost, failure: str
) -> None:
    fail, mend, words = FAILURES[failure]
    server.execute("DROP ROLE IF EXISTS relay", "CREATE ROLE relay LOGIN")
    relay = host(tmp_path, "a", upstream.upstream(), url.replace("postgres@", "relay@"))
    assert relay.command("database", "init", "--as", url).returncode == 0
    with relay:
        send(relay, 1)
        upstream.wait_until(lambda ledger: ledger.relayed == 1)
        fail(server)
        try:
            send(relay, 2)
            relay.wait_for_log(lambda line: "event=history_failed" in line and "nothing is sent" in line)
            relay.wait_for_log(lambda line: words in line)
            assert [each["state"] for each in relay.queue()] == ["waiting"]
            assert "in the database" in relay.command("status").stdout
            assert upstream.ledger.relayed == 1
        finally:
            mend(server)
        relay.wait_until_empty()
    assert upstream.ledger.relayed == 2
    server.execute("DROP OWNED BY relay", "DROP ROLE relay", database="mail")


def test_an_operator_pauses_an_account_for_all_hosts_and_wakes_all(
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
    # So does a relay that is down.
    assert one.command("pause", "isp").returncode == 0
    with other:
        assert "paused" in other.command("status").stdout
        assert one.command("resume", "isp").returncode == 0
        other.wait_for_log(lambda line: "event=operator_pause_ended" in line)


def test_no_host_knocks_where_another_one_was_refused(tmp_path: Path, url: str) -> None:
    with StrictSmarthost(tmp_path, {"messages": 2, "per": "1h"}, seed=1) as upstream:
        one, other = (host(tmp_path, name, upstream.upstream(), url) for name in "ab")
        make_tables(one)
        with one, other:
            for number in range(3):
                send(one, number)
            other.wait_for_log(lambda line: "event=upstream_paused" in line)
            send(other, OF_B)
            assert [each["state"] for each in other.queue()] == ["waiting"]
        # A start knows it too.
        with other:
            assert [each["state"] for each in other.queue()] == ["waiting"]
        assert (upstream.ledger.relayed, upstream.ledger.refused) == (2, 1)


DEAF = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"


@pytest.mark.parametrize("is_connected", [True, False])
def test_a_host_that_did_not_hear_of_a_refusal_sends_nothing_either(
    tmp_path: Path, server: Server, url: str, is_connected: bool
) -> None:
    """What it reserves behind the refusal it gives back, and it opens no connection."""
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


def test_a_database_that_lost_commits_is_recognised_and_nothing_is_sent(
    tmp_path: Path, server: Server, url: str, upstream: StrictSmarthost
) -> None:
    """As after a failover to a standby that was behind."""
    relay = host(tmp_path, "a", upstream.upstream(), url)
    make_tables(relay)
    with relay:
        send(relay, 1)
        relay.wait_until_empty()
    server.execute(
        "UPDATE relay.account SET position = position - 1",
        "DELETE FROM relay.history WHERE position > (SELECT position FROM relay.account)",
        database="mail",
    )
    with relay:
        send(relay, 2)
        told = relay.wait_for_log(lambda line: "it lost 1 commits" in line)
        assert "remove the .mark of each host" in told
        assert upstream.ledger.relayed == 1
    (mark,) = relay.folder.glob("history/*.mark")
    mark.unlink()
    with relay:
        relay.wait_until_empty()
    server.execute("DELETE FROM relay.history", "DELETE FROM relay.account", database="mail")
    with relay:
        send(relay, 3)
        relay.wait_for_log(lambda line: "it is another one" in line)
    assert upstream.ledger.relayed == 2


def test_a_host_whose_connection_to_its_history_is_lost_goes_on_soon(
    tmp_path: Path, server: Server, url: str, upstream: StrictSmarthost
) -> None:
    """While that to hear of others by is not: nobody tells it then that the database answers."""
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
