"""Access tokens that Dovecot checks for a Postfix; they live for 5 s."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fakes.token_server import CLIENT, SECRET, USER, TokenServer
from tests.system import dovecot, postfix
from tests.system.demand import demand
from tests.system.postfix import Postfix
from tests.system.waiting import wait_until
from tests.system.warm import WarmRelay

pytestmark = pytest.mark.full

SENDER = "me@news.test"
OWN_SENDERS = {
    "smtpd_sender_login_maps": f"regexp:{{ {{/@news\\.test$$/ {USER}}} {{/./ nobody}} }}",
    "smtpd_sender_restrictions": "reject_sender_login_mismatch",
}
"""Postfix takes only the senders of the login."""


@pytest.fixture
def upstream() -> Iterator[tuple[Postfix, TokenServer]]:
    """Return a smarthost, and the server of its tokens."""
    demand(postfix.why_missing(), dovecot.why_missing())
    with ExitStack() as ends:
        server = ends.enter_context(TokenServer(life_seconds=5))
        checker = ends.enter_context(dovecot.tokens(server.introspection_url))
        yield ends.enter_context(postfix.smarthost(**OWN_SENDERS, **checker.settings)), server


@pytest.mark.parametrize("mechanism", ["xoauth2", "oauthbearer"])
def test_revoked_tokens_are_replaced_and_a_refused_new_token_stops_the_upstream_until_resume(
    tmp_path: Path, upstream: tuple[Postfix, TokenServer], mechanism: str
) -> None:
    def open_connections() -> float:
        metrics = relay.metrics().items()
        return sum(value for name, value in metrics if name.startswith("relay_upstream_connections{"))

    host, server = upstream
    for name, text in (("secret", SECRET), ("refresh", server.refresh_token())):
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_text(text + "\n")
    oauth2 = {
        "grant": "refresh_token",
        "client_id": CLIENT,
        "client_secret_file": "secret",
        "refresh_token_file": "refresh",
        "token_url": f"{server.url}/token",
        "scope": "smtp",
        "mechanism": mechanism,
    }
    isp = {
        "host": "localhost",
        "port": host.port,
        "tls": "starttls",
        "ca_file": str(host.certificate),
        "auth": {"user": USER, "oauth2": oauth2},
        "connections": 2,
        "idle": "100ms",
    }
    with WarmRelay(tmp_path, {"isp": isp}) as relay:
        # The first token, and two more: each is revoked before the next login, as if it had expired.
        for count in (1, 2, 3):
            relay.send(f"r{count}@list.test", sender=SENDER)
            host.mailbox.wait_for(count)
            relay.wait_until_empty()
            wait_until(lambda: open_connections() == 0)
            server.revoke_access()
        assert len(server.requests) >= 3
        assert not any("stopped" in line for line in relay.log())

        server.is_taken = False
        relay.send("r4@list.test", sender=SENDER)
        assert "535 5.7.8" in relay.wait_for_log(lambda line: "upstream isp stopped" in line)
        server.is_taken = True
        assert relay.command("resume", "isp").returncode == 0
        host.mailbox.wait_for(4)
    assert sorted(each.recipient for each in host.mailbox.arrived()) == [
        f"r{n}@list.test" for n in (1, 2, 3, 4)
    ]
