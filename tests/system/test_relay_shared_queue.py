"""Two real relays share a queue in a real PostgreSQL: each message is sent once, whichever host is gone."""

import json
import os
import random
import signal
import smtplib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.cut_line import CutLine
from tests.fakes.postgresql import Server
from tests.system.demand import demand, missing_program
from tests.system.feeder import Feeder, partly_refused
from tests.system.hosts import FAILURES, OF_B, make_tables, of_one_queue, send, through
from tests.system.kills import Kills, judge, told_relayed_twice
from tests.system.smtp_tools import smtp_sink
from tests.system.strict_smarthost import StrictSmarthost
from tests.system.waiting import free_port, wait_until
from tests.system.warm import WarmRelay

CONNECTIONS = 4
ENDED = "UPDATE relay.owner SET until = clock_timestamp() WHERE host = 'a.test'"


@pytest.fixture
def hosts(tmp_path: Path, url: str, upstream: StrictSmarthost) -> tuple[WarmRelay, WarmRelay]:
    """Return a relay whose upstream does not answer, and one that can send."""
    a = of_one_queue(tmp_path, "a", upstream.upstream() | {"port": free_port()}, url)
    make_tables(a)
    return a, of_one_queue(tmp_path, "b", upstream.upstream(), url)


def test_messages_that_a_lost_host_claimed_are_sent_by_another(
    server: Server, hosts: tuple[WarmRelay, WarmRelay], upstream: StrictSmarthost
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
    server: Server, hosts: tuple[WarmRelay, WarmRelay], upstream: StrictSmarthost
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
    server: Server, hosts: tuple[WarmRelay, WarmRelay]
) -> None:
    server.stop()
    try:
        with pytest.raises(ChildProcessError, match="exited 75"):
            hosts[0].start()
    finally:
        server.start()


@pytest.mark.full
def test_verbs_on_one_host_show_and_change_messages_that_another_host_claimed(
    server: Server, hosts: tuple[WarmRelay, WarmRelay], upstream: StrictSmarthost, tmp_path: Path
) -> None:
    a, b = hosts
    with a:
        for number in range(4):
            send(a, number)
        wait_until(lambda: len(a.queue()) == 4)
        ids = [each["queue_id"] for each in sorted(a.queue(), key=lambda each: each["subject"])]
        with b:
            assert [(each["queue_id"], each["host"]) for each in b.queue()] == [
                (i, "a.test") for i in sorted(ids)
            ]
            wait_until(lambda: b.metrics().get('relay_host_claimed_messages{host="a.test"}') == 4)
            assert "4 messages" in b.command("status").stdout
            assert all("on a.test" in line for line in b.command("queue").stdout.splitlines()[1:-1])
            assert json.loads(b.command("queue", "show", "--json", ids[0]).stdout)["subject"] == "0"
            assert b.command("queue", "content", ids[0]).stdout.endswith("hello\r\n")
            assert b.command("export", ids[0], "--output", str(tmp_path / "export")).returncode == 0
            assert ids[2] in b.command("find", "r2.0@list.test").stdout
            assert b.command("queue", "hold", ids[0]).stdout == f"{ids[0]}: held\n"
            assert b.command("queue", "hold", ids[0]).stdout == f"{ids[0]}: was held already\n"
            assert {each["queue_id"]: each["state"] for each in a.queue()}[ids[0]] == "held"
            assert "held: release it first" in b.command("queue", "retry", ids[0]).stderr
            assert b.command("queue", "bounce", ids[1]).stdout == f"{ids[1]}: bounced\n"
            assert (
                b.command("queue", "delete", "--sender", "mjd@*", "--state", "held", "--yes").returncode == 0
            )
            wait_until(lambda: {each["queue_id"] for each in a.queue()} >= {*ids[2:]})
            assert {ids[0], ids[1]}.isdisjoint(each["queue_id"] for each in a.queue())
            # The verb names a host that does not answer.  The next owner first holds the message, then sends.
            os.kill(a.pid, signal.SIGSTOP)
            left = b.command("queue", "hold", ids[2])
            assert (left.returncode, left.stderr) == (
                1,
                f"{ids[2]}: requested from a.test; no answer yet\n",
            )
            server.execute(ENDED, database="mail")
            wait_until(lambda: {each["queue_id"]: each["host"] for each in b.queue()}[ids[2]] == "b.test")
            assert {each["queue_id"]: each["state"] for each in b.queue()}[ids[2]] == "held"
            upstream.wait_until(lambda ledger: ledger.relayed == 2)
            os.kill(a.pid, signal.SIGCONT)
    assert {each.recipients for each in upstream.seen()} == {("mjd@front.test",), ("r3.0@list.test",)}


@pytest.mark.full
def test_a_message_in_a_transaction_cannot_be_deleted_from_another_host(
    hosts: tuple[WarmRelay, WarmRelay],
) -> None:
    demand(missing_program("smtp-sink"))
    a, b = hosts
    with smtp_sink("-w", "2") as sink, b:
        a.policy["upstreams"]["isp"] = {"host": "127.0.0.1", "port": sink.port, "tls": "none", "limits": []}
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


def fed(
    relays: Sequence[WarmRelay], upstream: StrictSmarthost, mishaps: int, happen: Callable[[int], None]
) -> tuple[set[int], set[int]]:
    """Feed both relays while faults happen; return which letters were acknowledged, and which attempted."""
    with (
        Feeder(relays[0].port, ahead=0, letter=partly_refused) as one,
        Feeder(relays[1].port, ahead=0, first=OF_B, letter=partly_refused) as other,
    ):
        for number in range(mishaps):
            seen = len(upstream.ledger.seen)
            for feeder in (one, other):
                feeder.allow(12)
            upstream.wait_until(lambda ledger, seen=seen: len(ledger.seen) >= seen + 12)  # type: ignore[misc]  # bound now
            happen(number)
    return one.acknowledged | other.acknowledged, one.attempted | other.attempted


def undergo(folder: Path, server: Server, url: str, *, seed: int, mishaps: int) -> str:
    """Kill a relay or the server, or cut a line, also after a COMMIT, so often; return the figures."""
    dice, limit, kills, unreadable = random.Random(seed), {"messages": 60, "per": "1s"}, Kills(), Kills()
    with (
        StrictSmarthost(folder, limit, seed=seed, latest_reply_s=0.02) as upstream,
        CutLine(server.port) as line,
    ):
        isp = upstream.upstream(
            connections=CONNECTIONS, limits=[limit], max_transaction="1500ms", shield=None
        )
        relays = [
            of_one_queue(folder, name, isp | {"history": by}, by)
            for name, by in (("a", through(line, url)), ("b", url))
        ]
        make_tables(relays[1])
        for relay in relays:
            relay.start()

        def kill_server() -> None:
            server.kill()
            server.start()

        def cut_a_commit() -> None:
            cuts = line.cuts
            line.cut(b"COMMIT")
            wait_until(lambda: line.cuts > cuts)

        def happen(number: int) -> None:
            if number % 4 == 0:
                relay = dice.choice(relays)
                with kills.one():
                    relay.kill_all()
                    upstream.catch_up()
                relay.start()
                return
            with unreadable.one():
                (cut_a_commit, kill_server, line.cut_all)[number % 4 - 1]()
                upstream.catch_up()

        acknowledged, attempted = fed(relays, upstream, mishaps, happen)
        for relay in relays:
            relay.wait_until_empty()
        wait_until(lambda: upstream.unanswered == 0)
        audits = [relay.command("audit") for relay in relays]
        for relay in relays:
            assert relay.stop() == 0
            assert told_relayed_twice(relay.log()) == []
        left = relays[0].command("database", "check").stdout
    assert [(each.returncode, each.stderr) for each in audits] == [(0, ""), (0, "")]
    assert "unclaimed: 0 messages; set aside: 0 messages" in left
    assert left.count(": 0 messages") == 4
    verdict = judge(
        upstream.seen(),
        upstream.tried,
        kills,
        acknowledged,
        attempted,
        letter=partly_refused,
        unreadable=unreadable,
    )
    verdict.assert_good(connections=2 * CONNECTIONS)
    most = upstream.ledger.most_in_any_window()
    assert (upstream.ledger.refused, most <= 60, line.cuts > 0) == (0, True, True), most
    return (
        f"seed {seed}: {len(upstream.seen())} transactions from one queue: at most {most} of 60 in any 1 s, "
        f"{verdict.duplicates} twice, {line.cuts} cuts"
    )


@pytest.fixture
def ordeal(tmp_path: Path, server: Server, url: str) -> Callable[..., str]:
    return partial(undergo, tmp_path, server, url)


@pytest.mark.full
def test_nothing_is_lost_twice_or_over_whatever_is_killed(
    ordeal: Callable[..., str], tell: Callable[[str], None]
) -> None:
    """Both hosts share one queue and one history."""
    tell(ordeal(seed=7, mishaps=12))


@pytest.mark.crash(least_s=100)
def test_nothing_is_lost_twice_or_over_in_a_long_run(
    ordeal: Callable[..., str], tell: Callable[[str], None], crash_seed: int, crash_budget_s: float
) -> None:
    tell(ordeal(seed=crash_seed, mishaps=int(crash_budget_s / 3)))
