"""Ends and starts of a relay at work: told to stop, started twice, robbed of a listener.  See also kills."""

import os
import signal
import smtplib
from collections.abc import Sequence
from pathlib import Path

import pytest

from relay.daemon.loops import STEPS
from tests.proofs.peers import smtp_tools
from tests.proofs.peers.demand import demand
from tests.proofs.peers.practice import Practice
from tests.proofs.peers.processes import children_of, command_of, halted, is_alive
from tests.proofs.peers.relay import RelayProcess
from tests.proofs.peers.smtp_tools import smtp_sink
from tests.proofs.peers.waiting import wait_until

pytestmark = pytest.mark.slow

FROM_TO = ("mjd@front.test", ["r@list.test"])
CONTENT = "Subject: x\r\n\r\nx\r\n"
SEED = 5


def test_sigterm_finishes_what_is_in_flight_and_leaves_the_rest(tmp_path: Path) -> None:
    limit = {"messages": 1000, "per": "1s"}
    with Practice(tmp_path, limit, seed=SEED, latest_reply_s=1) as host:
        relay = RelayProcess(tmp_path, {"isp": host.upstream(connections=3)})
        relay.start()
        with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as session:
            for _ in range(8):
                session.sendmail(*FROM_TO, CONTENT)
        # All connections are busy, so nothing else is about to begin.
        wait_until(lambda: host.unanswered == 3 and _queued(relay) + host.ledger.relayed == 8)
        assert relay.stop() == 0
        relayed = host.ledger.relayed

        assert host.unanswered == 0
        assert host.ledger.abandoned == 0
        assert relayed >= 3
        told = relay.wait_for_log(lambda line: "stopping: SIGTERM; transactions in flight: " in line)
        assert int(told.split()[-2]) > 0
        assert relay.log()[-1].endswith(f"stopped; messages queued: {8 - relayed} event=stopped")
        with relay:
            relay.wait_until_empty()
        assert (host.ledger.relayed, host.ledger.abandoned) == (8, 0)


def test_a_second_relay_on_a_spool_gives_way_and_says_to_whom(tmp_path: Path) -> None:
    demand(smtp_tools.why_missing())
    with smtp_sink() as sink:
        upstreams = {"isp": {"host": "127.0.0.1", "port": sink.port, "tls": "none"}}
        with RelayProcess(tmp_path, upstreams) as relay:
            second = relay.command("run")

            assert second.returncode == os.EX_TEMPFAIL
            assert f"held by process {relay.pid}" in second.stderr
            with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as session:
                session.sendmail(*FROM_TO, CONTENT)
            sink.wait_for(1)


def _queued(relay: RelayProcess) -> int:
    """Return how many messages it has taken into its queue."""
    metrics = relay.metrics()
    return sum(int(metrics[f'relay_queue_messages{{state="{state}"}}']) for state in ("waiting", "active"))


def _listeners(relay: RelayProcess) -> list[int]:
    return [pid for pid in children_of(relay.pid) if "relay.daemon.listener_process" in command_of(pid)]


def _session_with(relay: RelayProcess, listener: int, others: Sequence[int]) -> smtplib.SMTP:
    """Return a session that is with this one of two listener processes: the other cannot accept it."""
    (other,) = set(others) - {listener}
    with halted(other):
        return smtplib.SMTP("127.0.0.1", relay.port, timeout=60)


def test_a_listener_process_that_dies_is_replaced(tmp_path: Path) -> None:
    demand(smtp_tools.why_missing())
    with smtp_sink() as sink:
        upstreams = {"isp": {"host": "127.0.0.1", "port": sink.port, "tls": "none"}}
        relay = RelayProcess(tmp_path, upstreams)
        relay.policy["listen"][0]["processes"] = 2
        relay.write_policy()
        with relay:
            wait_until(lambda: len(_listeners(relay)) == 2)
            listeners = victim, survivor = _listeners(relay)
            with_victim = _session_with(relay, victim, listeners)
            with_survivor = _session_with(relay, survivor, listeners)
            for session in (with_victim, with_survivor):
                session.ehlo()
                session.mail(FROM_TO[0])
                session.rcpt(FROM_TO[1][0])

            os.kill(victim, signal.SIGKILL)

            with pytest.raises(smtplib.SMTPServerDisconnected):
                with_victim.data(CONTENT.encode())
            assert with_survivor.data(CONTENT.encode())[0] == 250
            for _ in range(20):
                with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as session:
                    session.sendmail(*FROM_TO, CONTENT)
            address = f"127.0.0.1:{relay.port}"
            relay.wait_for_log(lambda line: f"listener {address} died: pid {victim}, signal 9" in line)
            relay.wait_for_log(lambda line: f"listener {address} restarted: pid " in line)
            (heir,) = set(_listeners(relay)) - {survivor}
            with _session_with(relay, heir, [heir, survivor]) as with_heir:
                with_heir.sendmail(*FROM_TO, CONTENT)
            with_survivor.quit()
            sink.wait_for(22)
            assert all(" relay.test relay[" in line for line in relay.log()), "each process knows its name"
        assert not is_alive(heir)
        assert not is_alive(survivor)


def test_the_sender_gives_way_to_old_and_new_listener_processes(tmp_path: Path) -> None:
    relay = RelayProcess(tmp_path, {"isp": {"host": "127.0.0.1", "port": 9, "tls": "none"}})
    relay.policy["listen"][0]["processes"] = 1
    relay.write_policy()
    with relay:
        wait_until(lambda: len(_listeners(relay)) == 1)
        (first,) = _listeners(relay)
        ours = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, relay.pid) == min(ours + STEPS, 19)
        assert os.getpriority(os.PRIO_PROCESS, first) == ours

        os.kill(first, signal.SIGKILL)
        relay.wait_for_log(lambda line: " restarted: pid " in line)

        (heir,) = _listeners(relay)
        assert os.getpriority(os.PRIO_PROCESS, heir) == ours


def test_a_stop_reaches_listener_processes_and_their_clients(tmp_path: Path) -> None:
    relay = RelayProcess(tmp_path, {"isp": {"host": "127.0.0.1", "port": 9, "tls": "none"}})
    relay.policy["listen"][0]["processes"] = 1
    relay.write_policy()
    with relay, smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as idle:
        idle.ehlo()

        os.kill(relay.pid, signal.SIGTERM)

        assert idle.getreply()[0] == 421
        assert relay.wait() == 0


def test_a_relay_with_listener_processes_starts_after_a_kill(tmp_path: Path) -> None:
    demand(smtp_tools.why_missing())
    with smtp_sink() as sink:
        upstreams = {"isp": {"host": "127.0.0.1", "port": sink.port, "tls": "none"}}
        relay = RelayProcess(tmp_path, upstreams)
        relay.policy["listen"][0]["processes"] = 2
        relay.write_policy()
        relay.start()
        wait_until(lambda: len(_listeners(relay)) == 2)
        orphans = _listeners(relay)
        with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as idle:
            idle.sendmail(*FROM_TO, CONTENT)
            relay.kill()
            with relay:
                with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as session:
                    session.sendmail(*FROM_TO, CONTENT)
                sink.wait_for(2)
                assert idle.noop()[0] == 421
                idle.close()
                wait_until(lambda: not any(is_alive(pid) for pid in orphans))


def test_a_relay_starts_while_an_orphan_listener_has_the_address(tmp_path: Path) -> None:
    demand(smtp_tools.why_missing())
    with smtp_sink() as sink:
        upstreams = {"isp": {"host": "127.0.0.1", "port": sink.port, "tls": "none"}}
        relay = RelayProcess(tmp_path, upstreams)
        relay.policy["listen"][0]["processes"] = 1
        relay.write_policy()
        relay.start()
        wait_until(lambda: len(_listeners(relay)) == 1)
        (orphan,) = _listeners(relay)
        killed = relay.pid
        with halted(orphan):
            relay.kill()
            relay.spawn()
            relay.wait_for_log(lambda line: " started: " in line and f"relay[{killed}]" not in line)
        wait_until(lambda: not is_alive(orphan))
        relay.wait_for_log(lambda line: " listening on " in line and f"relay[{relay.pid}]" in line)
        with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as session:
            session.sendmail(*FROM_TO, CONTENT)
        sink.wait_for(1)
        assert relay.stop() == 0
