"""Access tokens that Dovecot checks for a Postfix.  Under load: test_relay_three_accounts."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fakes.token_server import USER, TokenServer
from tests.system import accounts, dovecot, postfix
from tests.system.accounts import LIFE_SECONDS, owned
from tests.system.demand import demand
from tests.system.postfix import Postfix
from tests.system.waiting import wait_until
from tests.system.warm import WarmRelay

pytestmark = pytest.mark.full

SENDER = "me@news.test"


@pytest.fixture
def upstream() -> Iterator[tuple[Postfix, TokenServer]]:
    """Return a smarthost, and the server of its tokens, which live for 5 s."""
    demand(postfix.why_missing(), dovecot.why_missing())
    with ExitStack() as ends:
        server = ends.enter_context(TokenServer(life_seconds=LIFE_SECONDS))
        checker = ends.enter_context(dovecot.tokens(server.introspection_url))
        settings = owned(USER, "news.test") | checker.settings
        yield ends.enter_context(postfix.smarthost(**settings)), server


@pytest.mark.parametrize("mechanism", ["xoauth2", "oauthbearer"])
def test_revoked_tokens_are_replaced_and_a_refused_new_token_stops_the_upstream_until_resume(
    tmp_path: Path, upstream: tuple[Postfix, TokenServer], mechanism: str
) -> None:
    def open_connections() -> float:
        metrics = relay.metrics().items()
        return sum(value for name, value in metrics if name.startswith("relay_upstream_connections{"))

    host, server = upstream
    isp = accounts.by_token(host, server, tmp_path, mechanism) | {"connections": 2, "idle": "100ms"}
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
