"""Relays whose PostgreSQL is full, slow or replaced: no limit exceeded, no mail lost."""

import contextlib
import shutil
import smtplib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes.cut_line import CutLine
from tests.fakes.postgresql import USER, Server
from tests.system import small_disk
from tests.system.demand import demand
from tests.system.feeder import Feeder
from tests.system.hosts import OF_B, host, make_tables, of_one_queue, send, through
from tests.system.kills import Kills, judge
from tests.system.small_disk import MEGABYTE, tmpfs
from tests.system.strict_smarthost import StrictSmarthost
from tests.system.waiting import free_port, wait_until

pytestmark = pytest.mark.full

RELOAD = "SELECT pg_reload_conf()"


@pytest.fixture
def standby(server: Server, url: str) -> Iterator[tuple[Server, str]]:
    """Return a standby of the server, and the URL of the one that takes writes; then mend the server."""
    with server.standby() as copy:
        both = url.replace(f":{server.port}/", f":{server.port},127.0.0.1:{copy.port}/")
        yield copy, both
        with contextlib.suppress(FileNotFoundError):
            server.kill()
        server.start()
        server.execute("ALTER SYSTEM RESET ALL", RELOAD)


def caught_up(server: Server, copy: Server) -> bool:
    at = server.run(*["psql", "-At", "-h"], str(server.folder), "-p", str(server.port), "-c", LSN).decode()
    return copy.is_so(f"WHERE pg_last_wal_replay_lsn() >= '{at.strip()}'", database="postgres")


LSN = "SELECT pg_current_wal_lsn()"


def test_a_failover_to_a_synchronous_standby_loses_no_mail_and_exceeds_no_limit(
    tmp_path: Path, server: Server, standby: tuple[Server, str], tell: Callable[[str], None]
) -> None:
    copy, url = standby
    server.execute("ALTER SYSTEM SET synchronous_standby_names = '*'", RELOAD)
    limit, unreadable = {"messages": 30, "per": "1s"}, Kills()
    with StrictSmarthost(tmp_path, limit, seed=3, latest_reply_s=0.02) as upstream:
        isp = upstream.upstream(connections=4, limits=[limit], max_transaction="1500ms", shield=None)
        relays = [of_one_queue(tmp_path, name, isp | {"history": url}, url) for name in "ab"]
        make_tables(relays[0])
        for relay in relays:
            relay.start()
        with Feeder(relays[0].port, ahead=0) as one, Feeder(relays[1].port, ahead=0, first=OF_B) as other:
            for feeder in (one, other):
                feeder.allow(80)
            upstream.wait_until(lambda ledger: len(ledger.seen) >= 60)
            with unreadable.one():
                server.kill()
                copy.control("promote")
                upstream.catch_up()
            wait_until(lambda: len(one.acknowledged | other.acknowledged) >= 160)
        for relay in relays:
            relay.wait_until_empty()
        wait_until(lambda: upstream.unanswered == 0)
        age = 'relay_host_history_age_seconds{host="b.test",upstream="isp"}'
        wait_until(lambda: relays[0].metrics().get(age) is not None)
        for relay in relays:
            assert relay.stop() == 0
    acknowledged, attempted = one.acknowledged | other.acknowledged, one.attempted | other.attempted
    verdict = judge(upstream.seen(), upstream.tried, Kills(), acknowledged, attempted, unreadable=unreadable)
    tell(f"a failover: {len(upstream.seen())} transactions, {verdict.duplicates} twice")
    verdict.assert_good(connections=8)
    assert upstream.ledger.refused == 0
    assert upstream.ledger.most_in_any_window() <= 30


def test_a_standby_that_lost_commits_stops_the_sending_and_the_log_tells_the_way_out(
    tmp_path: Path, server: Server, standby: tuple[Server, str], upstream: StrictSmarthost
) -> None:
    copy, url = standby
    relay = host(tmp_path, "a", upstream.upstream(), url)
    make_tables(relay)
    with relay:
        send(relay, 1)
        relay.wait_until_empty()
        wait_until(lambda: caught_up(server, copy))
        copy.stop()
        send(relay, 2)
        relay.wait_until_empty()
        server.kill()
        copy.start()
        copy.control("promote")
        send(relay, 3)
        told = relay.wait_for_log(lambda line: "it lost " in line and "remove each host's .mark" in line)
        assert "nothing is sent" in told
        assert "it lost " in relay.command("status").stdout
        assert upstream.ledger.relayed == 2
    for mark in relay.folder.glob("history/*.mark"):
        mark.unlink()
    with relay:
        relay.wait_until_empty()
    assert upstream.ledger.relayed == 3


def test_a_full_server_refuses_mail_with_452_and_repeats_no_relayed_message(
    tmp_path: Path, server: Server, url: str, upstream: StrictSmarthost
) -> None:
    demand(small_disk.why_missing())
    a = of_one_queue(tmp_path, "a", upstream.upstream() | {"port": free_port()}, url)
    make_tables(a)
    with tmpfs(server.folder / "small", size_bytes=16 * MEGABYTE) as disk:
        shutil.chown(disk.path, USER)
        server.execute(f"CREATE TABLESPACE small LOCATION '{disk.path}'")
        for table in ("message", "chunk"):
            server.execute(f"ALTER TABLE relay.{table} SET TABLESPACE small", database="mail")
        with a:
            send(a, 1)
            wait_until(lambda: len(a.queue()) == 1)
            disk.fill_to(0)
            with (
                pytest.raises(smtplib.SMTPDataError) as refused,
                smtplib.SMTP("127.0.0.1", a.port) as session,
            ):
                session.sendmail("mjd@front.test", ["r9.0@list.test"], "Subject: 9\r\n\r\n" + "x" * 70 * 1000)
            assert refused.value.smtp_code == 452
            a.policy["upstreams"]["isp"]["port"] = upstream.port
            a.write_policy()
            a.reload()
            upstream.wait_until(lambda ledger: ledger.relayed == 1)
            disk.empty()
            send(a, 2)
            a.wait_until_empty()
        assert upstream.ledger.relayed == 2
        server.execute("DROP SCHEMA relay CASCADE", database="mail")
        server.execute("DROP TABLESPACE small")


def test_a_server_that_answers_two_seconds_late_is_waited_for(
    tmp_path: Path, server: Server, url: str, upstream: StrictSmarthost
) -> None:
    """One relay has its history there, the other one its queue."""
    with CutLine(server.port) as line:
        isp = upstream.upstream(limits=[{"messages": 1, "per": "1h"}])
        a, b = (
            each(tmp_path, name, isp, through(line, url)) for name, each in (("a", host), ("b", of_one_queue))
        )
        make_tables(a)
        with a, b:
            line.delay_s = 2.0
            for number, relay in enumerate((a, a, b)):
                send(relay, number)
            upstream.wait_until(lambda ledger: ledger.relayed == 2)
            a.wait_for_log(lambda each: "event=waiting" in each)
            line.delay_s = 0.0
    assert upstream.ledger.relayed == 2
    told = [*a.log(), *b.log()]
    assert not [each for each in told if "event=spool_failed" in each or "event=history_failed" in each]
