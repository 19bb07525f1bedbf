"""A program that runs away: it fills its own part of the queue, and nobody else's."""

import json
import smtplib
from pathlib import Path

import pytest
from argon2 import PasswordHasher

from tests.proofs.peers.relay import RelayProcess
from tests.proofs.peers.waiting import free_port, wait_until

pytestmark = pytest.mark.slow
QUOTA = 40
CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


def password_of(user: str) -> str:
    return f"{user}'s password"


def send(session: smtplib.SMTP, sender: str) -> int:
    """Hand over one message; return the code of the reply that decided."""
    for command in (f"MAIL FROM:<{sender}>", "RCPT TO:<r@list.test>"):
        code, _ = session.docmd(command)
        if code != 250:
            return code
    return session.data("Subject: x\r\n\r\nx\r\n")[0]


def logged_in(relay: RelayProcess, user: str) -> smtplib.SMTP:
    session = smtplib.SMTP("127.0.0.1", relay.port, timeout=60)
    session.login(user, password_of(user))
    return session


@pytest.mark.parametrize("processes", [0, 2])
def test_a_runaway_fills_its_quota_and_others_go_on(tmp_path: Path, processes: int) -> None:
    users = tmp_path / "users"
    users.write_text("".join(f"{user}:{CHEAP.hash(password_of(user))}\n" for user in ("app", "boss")))
    users.chmod(0o600)
    relay = RelayProcess(
        tmp_path,
        # Nobody is there: all of it stays queued.
        {"isp": {"host": "127.0.0.1", "port": free_port(), "tls": "none"}},
    )
    (listen,) = relay.policy["listen"]
    quotas = {
        "users_file": "users",
        "users": {"app": {"senders": "@app.example", "max_queued": QUOTA}, "boss": {}},
        "max_queued_per_client": QUOTA,
        "processes": processes,
    }
    relay.policy["listen"] = [listen | quotas]
    relay.write_policy()

    with relay, logged_in(relay, "app") as app, logged_in(relay, "boss") as boss:
        assert send(app, "boss@office.example") == 550
        taken = 0
        while (code := send(app, "news@app.example")) == 250:
            taken += 1
            assert taken < 100 * QUOTA
        assert code == 452
        # What it may add before the sender tells its number for the first time is half of it.
        assert taken >= QUOTA // 2

        def is_full() -> bool:
            while send(app, "news@app.example") == 250:
                pass
            return len(relay_queue(relay, "--user", "app")) >= QUOTA

        wait_until(is_full, within_s=60)
        assert send(boss, "boss@office.example") == 250
        with smtplib.SMTP("127.0.0.1", relay.port, timeout=60) as cron:
            cron.ehlo()
            assert send(cron, "cron@app.example") == 250

        done = relay.command("queue", "delete", "--user", "app", "--yes")
        assert done.returncode == 0, done.stderr
        wait_until(lambda: send(app, "news@app.example") == 250, within_s=60)
        refused = [line for line in relay.log() if "452 4.3.1 Too much mail of yours is queued" in line]
        assert refused
        assert all("app" in line for line in refused)


def relay_queue(relay: RelayProcess, *filters: str) -> list[dict[str, object]]:
    done = relay.command("queue", "--json", *filters)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
