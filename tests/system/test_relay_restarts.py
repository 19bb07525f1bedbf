"""Starts, stops, deaths and edits of a relay at work and of its listener processes.  See test_relay_kills."""

import os
import signal
import smtplib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from argon2 import PasswordHasher

from tests.system.processes import halted, is_alive
from tests.system.relay import CONTENT, SENDER, RelayProcess, upstream_at
from tests.system.strict_smarthost import StrictSmarthost
from tests.system.waiting import wait_until

pytestmark = pytest.mark.full

TO = "r@list.test"
LIMIT = {"messages": 1000, "per": "1s"}
NOBODY = upstream_at(9)
QUOTA = 40
LONGEST_S = 1.5
"""How long a transaction may take in the test of a late reply."""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[StrictSmarthost]:
    with StrictSmarthost(tmp_path, LIMIT, seed=5, latest_reply_s=1) as host:
        yield host


def _session_with(relay: RelayProcess, listener: int, others: Sequence[int]) -> smtplib.SMTP:
    """Return a session with this one of two listener processes: the other is halted and cannot accept it."""
    (other,) = set(others) - {listener}
    with halted(other):
        return smtplib.SMTP("127.0.0.1", relay.port, timeout=60)


def _queued(relay: RelayProcess) -> float:
    return sum(value for name, value in relay.metrics().items() if name.startswith("relay_queue_messages"))


def test_sigterm_finishes_transactions_in_flight_and_leaves_the_rest_queued(
    tmp_path: Path, host: StrictSmarthost
) -> None:
    relay = RelayProcess(tmp_path, {"isp": host.upstream(connections=3)})
    relay.start()
    relay.send(*[TO] * 8)
    # The sender knows all mail, and all connections are busy: no other transaction is about to begin.
    wait_until(lambda: _queued(relay) + host.ledger.relayed >= 8)
    wait_until(lambda: host.unanswered == 3)
    assert relay.stop() == 0
    relayed = host.ledger.relayed

    assert (host.unanswered, host.ledger.abandoned) == (0, 0)
    assert relayed >= 3
    assert relay.log()[-1].endswith(f"stopped; messages queued: {8 - relayed} event=stopped")
    with relay:
        relay.wait_until_empty()
    assert (host.ledger.relayed, host.ledger.abandoned) == (8, 0)


def test_a_250_that_came_while_the_relay_was_halted_counts_after_its_deadline(
    tmp_path: Path, host: StrictSmarthost
) -> None:
    isp = host.upstream(connections=1, max_transaction=f"{1000 * LONGEST_S:g}ms")
    with RelayProcess(tmp_path, {"isp": isp}) as relay:
        relay.send(TO, TO)
        for _ in range(2):
            wait_until(lambda: host.unanswered)
            with halted(relay.pid):
                wait_until(lambda: not host.unanswered)
                relay.live(LONGEST_S)
        relay.wait_until_empty()
    assert host.ledger.relayed == 2


def test_verbose_logs_the_connections_to_a_listener_process(tmp_path: Path) -> None:
    relay = RelayProcess(tmp_path, {"isp": NOBODY}, listen={"processes": 1})
    relay.options = ("--verbose",)
    with relay:
        smtplib.SMTP("127.0.0.1", relay.port, timeout=60).quit()

        relay.wait_for_log(lambda line: line.endswith("event=disconnected"))


def test_a_listener_process_that_dies_is_replaced(tmp_path: Path, host: StrictSmarthost) -> None:
    with RelayProcess(tmp_path, {"isp": host.upstream()}, listen={"processes": 2}) as relay:
        wait_until(lambda: len(relay.listeners()) == 2)
        listeners = victim, survivor = relay.listeners()
        with_victim = _session_with(relay, victim, listeners)
        with_survivor = _session_with(relay, survivor, listeners)
        for session in (with_victim, with_survivor):
            session.ehlo()
            session.mail(SENDER)
            session.rcpt(TO)

        os.kill(victim, signal.SIGKILL)

        with pytest.raises(smtplib.SMTPServerDisconnected):
            with_victim.data(CONTENT.encode())
        assert with_survivor.data(CONTENT.encode())[0] == 250
        address = f"127.0.0.1:{relay.port}"
        relay.wait_for_log(lambda line: f"listener {address} died: pid {victim}, signal 9" in line)
        relay.wait_for_log(lambda line: f"listener {address} restarted: pid " in line)
        (heir,) = set(relay.listeners()) - {survivor}
        with _session_with(relay, heir, [heir, survivor]) as with_heir:
            with_heir.sendmail(SENDER, [TO], CONTENT)
        relay.wait_until_empty()
        assert host.ledger.relayed == 2
        # A stop reaches all listeners and their clients.
        os.kill(relay.pid, signal.SIGTERM)
        assert with_survivor.getreply()[0] == 421
        assert relay.wait() == 0
        with_survivor.close()
    assert not is_alive(heir)
    assert not is_alive(survivor)


def name_users(path: Path, *names: str) -> None:
    """Write a file of users whose passwords are their names; the hashes are cheap."""
    cheap = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    written = path.with_suffix(".new")
    written.write_text("".join(f"{name}:{cheap.hash(name)}\n" for name in names))
    written.chmod(0o600)
    written.replace(path)


def test_an_edit_logs_the_keys_that_need_a_restart_and_the_other_keys_take_effect(
    tmp_path: Path, host: StrictSmarthost
) -> None:
    (tmp_path / "elsewhere").mkdir()
    with (
        StrictSmarthost(tmp_path / "elsewhere", {"messages": 9, "per": "1s"}, seed=2) as other,
        RelayProcess(tmp_path, {"isp": host.upstream()}) as relay,
    ):
        relay.policy |= {"hostname": "other.test", "spool": "./other", "upstreams": {"isp": other.upstream()}}
        relay.policy["upstreams"]["isp"]["limits"] = []
        relay.write_policy()
        relay.wait_for_log(lambda line: "needs a restart to take effect: spool, hostname event=" in line)

        with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as session:
            assert session.ehlo()[1].startswith(b"relay.test\n")
        relay.send(TO)
        other.wait_until(lambda ledger: ledger.relayed == 1)
        assert not (relay.folder / "other").exists()
        relay.policy["spool"] = "./spool"


def test_a_user_over_its_quota_gets_452_others_go_on_and_a_removed_user_cannot_log_in(tmp_path: Path) -> None:
    """The relay has two listener processes, and its upstream does not answer, so all mail stays queued."""
    name_users(tmp_path / "users", "app", "boss")
    listen = {
        "users_file": "users",
        "users": {"app": {"senders": "@app.example", "max_queued": QUOTA}, "boss": {}},
        "max_queued_per_client": QUOTA,
        "processes": 2,
    }
    relay = RelayProcess(tmp_path, {"isp": NOBODY}, listen=listen)

    def offer(session: smtplib.SMTP, sender: str) -> int:
        """Offer one message; return the code of the first reply that is not 250, or of the last."""
        for command in (f"MAIL FROM:<{sender}>", "RCPT TO:<r@list.test>"):
            code, _ = session.docmd(command)
            if code != 250:
                return code
        return session.data(CONTENT.encode())[0]

    def is_full() -> bool:
        while (code := offer(app, "news@app.example")) == 250:
            pass
        assert code == 452
        return len(relay.command("queue", "--json", "--user", "app").stdout.splitlines()) >= QUOTA

    with relay, smtplib.SMTP("127.0.0.1", relay.port) as app, smtplib.SMTP("127.0.0.1", relay.port) as boss:
        app.login("app", "app")
        boss.login("boss", "boss")
        assert offer(app, "boss@office.example") == 550
        wait_until(is_full)
        assert offer(boss, "boss@office.example") == 250
        assert relay.command("queue", "delete", "--user", "app", "--yes").returncode == 0
        wait_until(lambda: offer(app, "news@app.example") == 250)
        refused = [line for line in relay.log() if "452 4.3.1 You have too many messages queued" in line]
        assert refused
        assert all("app" in line for line in refused)

        name_users(tmp_path / "users", "boss")
        # One line at the start, and now one from each listener.
        relay.wait_for_log(
            lambda _: sum("event=listener_files_loaded" in line for line in relay.log()) == 1 + 2
        )
        with (
            smtplib.SMTP("127.0.0.1", relay.port) as again,
            pytest.raises(smtplib.SMTPAuthenticationError, match="535"),
        ):
            again.login("app", "app")
        assert app.docmd("MAIL FROM:<news@app.example>")[0] == 421
