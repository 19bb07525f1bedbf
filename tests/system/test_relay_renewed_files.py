"""A file of users that is replaced under a running relay: each of its listener processes goes by it."""

import contextlib
import smtplib
from pathlib import Path

import pytest
from argon2 import PasswordHasher

from tests.system.warm import WarmRelay

pytestmark = pytest.mark.full

PASSWORD = "correct horse"
HASH = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1).hash(PASSWORD)
PROCESSES = 2


def name_users(path: Path, *names: str) -> None:
    written = path.with_suffix(".new")
    written.write_text("".join(f"{name}:{HASH}\n" for name in names))
    written.chmod(0o600)
    written.replace(path)


def log_in(relay: WarmRelay, name: str) -> int:
    with smtplib.SMTP("127.0.0.1", relay.port) as client:
        try:
            return client.login(name, PASSWORD)[0]
        except smtplib.SMTPAuthenticationError as refused:
            return refused.smtp_code


def test_a_user_that_was_removed_is_let_in_no_more(tmp_path: Path) -> None:
    users = tmp_path / "users"
    name_users(users, "mjd", "zed")
    relay = WarmRelay(tmp_path, {"isp": {"host": "127.0.0.1", "port": 9, "tls": "none"}})
    relay.policy["listen"][0] |= {"clients": [], "processes": PROCESSES, "users_file": str(users)}
    relay.write_policy()
    with relay, contextlib.closing(smtplib.SMTP("127.0.0.1", relay.port)) as open_session:
        assert open_session.login("mjd", PASSWORD)[0] == 235
        assert open_session.mail("a@x.example")[0] == 250

        name_users(users, "zed")
        # Once at the start, and once each now.
        relay.wait_for_log(
            lambda _: sum("event=listener_files_loaded" in line for line in relay.log()) == 1 + PROCESSES
        )
        assert log_in(relay, "mjd") == 535
        assert log_in(relay, "zed") == 235
        # What it began it may finish, and that is all.
        assert open_session.rset()[0] == 250
        assert open_session.mail("a@x.example")[0] == 421
