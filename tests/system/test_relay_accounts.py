"""Accounts of real Postfixes: logins that Dovecot checks, certificates, and whose sender is whose."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.token_server import USER, TokenServer
from tests.system import accounts, dovecot, postfix
from tests.system.accounts import LIFE_SECONDS, NAME, PASSWORD, owned
from tests.system.demand import demand
from tests.system.postfix import Postfix
from tests.system.waiting import wait_until
from tests.system.warm import WarmRelay

pytestmark = pytest.mark.full

SENDERS = {NAME: "front.test", USER: "news.test"}
OWN = "me@front.test"
WRITTEN = b"From: Ann <ann@home.lan>\r\nSubject: hello\r\nDKIM-Signature: v=1; b=abc\r\n\r\n.first\r\n=20\r\n"


@dataclass
class Accounts:
    """Two smarthosts, one that asks for a password and one for tokens of 5 s."""

    by_password: Postfix
    by_token: Postfix
    server: TokenServer
    folder: Path

    def password(self, **auth: str) -> dict[str, Any]:
        return accounts.by_password(self.by_password, self.folder, **auth) | {"connections": 2}

    def token(self, mechanism: str = "auto") -> dict[str, Any]:
        section = accounts.by_token(self.by_token, self.server, self.folder, mechanism)
        return section | {"connections": 2, "idle": "100ms"}

    def wait_for(self, upstream: Postfix, *recipients: str) -> None:
        """Return once these have mail, and nobody else has."""
        arrived = upstream.mailbox.wait_for(len(recipients))
        assert sorted(each.recipient for each in arrived) == sorted(recipients)


@pytest.fixture(scope="module")
def _running() -> Iterator[Accounts]:
    demand(postfix.why_missing(), dovecot.why_missing())
    with ExitStack() as ends:
        server = ends.enter_context(TokenServer(life_seconds=LIFE_SECONDS))
        checkers = (
            ends.enter_context(dovecot.passwords({NAME: PASSWORD})),
            ends.enter_context(dovecot.tokens(server.introspection_url)),
        )
        by_password, by_token = (
            ends.enter_context(postfix.smarthost(**checker.settings, **owned(login, domain)))
            for checker, (login, domain) in zip(checkers, SENDERS.items(), strict=True)
        )
        yield Accounts(by_password, by_token, server, Path())


@pytest.fixture
def house(_running: Accounts, tmp_path: Path) -> Accounts:
    _running.folder = tmp_path
    _running.server.is_taken = _running.server.is_introspecting = True
    for upstream in (_running.by_password, _running.by_token):
        for path in (upstream.mailbox.folder / "new").iterdir():
            path.unlink()
    return _running


def test_dovecot_takes_a_password(house: Accounts) -> None:
    """By PLAIN, and tokens by OAUTHBEARER: test_relay_three_accounts."""
    with WarmRelay(house.folder, {"isp": house.password(mechanism="login")}) as relay:
        relay.send("ann@list.test", sender=OWN)
        house.wait_for(house.by_password, "ann@list.test")


def test_dovecot_takes_tokens_that_live_for_seconds(house: Accounts) -> None:
    def open_connections() -> float:
        metrics = relay.metrics().items()
        return sum(value for name, value in metrics if name.startswith("relay_upstream_connections{"))

    with WarmRelay(house.folder, {"isp": house.token("xoauth2")}) as relay:
        before = len(house.server.requests)
        relay.send("ann@list.test", sender="me@news.test")
        house.wait_for(house.by_token, "ann@list.test")
        # As if it was long ago, and another time as Dovecot says it, which the relay cannot know ahead.
        for number, recipient in enumerate(["bob@list.test", "eve@list.test"], 1):
            relay.wait_until_empty()
            wait_until(lambda: open_connections() == 0)
            house.server.revoke_access()
            relay.send(recipient, sender="me@news.test")
            house.by_token.mailbox.wait_for(1 + number)
        assert len(house.server.requests) - before >= 3
        assert not any("stopped" in line for line in relay.log())


@pytest.mark.parametrize("lacks", ["is_taken", "is_introspecting"])
def test_a_token_that_dovecot_refuses_stops_until_resumed(house: Accounts, lacks: str) -> None:
    """It says 535 where its token server is gone too: nobody can tell that from a token that is no good."""
    with WarmRelay(house.folder, {"isp": house.token()}) as relay:
        setattr(house.server, lacks, False)
        relay.send("ann@list.test", sender="me@news.test")
        assert "535 5.7.8" in relay.wait_for_log(lambda line: "upstream isp stopped" in line)
        status = relay.command("status").stdout

        setattr(house.server, lacks, True)
        assert relay.command("resume", "isp").returncode == 0
        house.wait_for(house.by_token, "ann@list.test")
        shown = "\n".join(relay.log()) + status
    granted = [each.fields for each in house.server.granted]
    secrets = [
        fields[key] for fields in granted for key in ("access_token", "refresh_token") if key in fields
    ]
    assert [each for each in secrets if each in shown] == []


def test_each_sender_goes_by_the_account_that_owns_it(house: Accounts) -> None:
    with WarmRelay(house.folder, {"isp": house.password(), "news": house.token()}) as relay:
        relay.send("ann@list.test", sender="me@news.test")
        told = relay.wait_for_log(lambda line: "mail from <me@news.test> paused until" in line)
        assert "553 5.7.1 <me@news.test>: Sender address rejected: not owned by user mjd" in told
        relay.send("bob@list.test", sender=OWN)
        house.wait_for(house.by_password, "bob@list.test")

        relay.policy["routes"] = [{"sender": "@news.test", "upstreams": ["news"]}, {"upstreams": ["isp"]}]
        relay.write_policy()
        house.wait_for(house.by_token, "ann@list.test")
        relay.wait_until_empty()
        house.wait_for(house.by_password, "bob@list.test")


def test_a_login_that_may_send_as_itself_alone_takes_rewritten_mail(house: Accounts) -> None:
    routes = [{"upstreams": ["isp"], "rewrite": OWN}]
    with WarmRelay(house.folder, {"isp": house.password()}, routes=routes) as relay:
        relay.send("bob@far.example", sender="ann@home.lan", content=WRITTEN)
        (arrived,) = house.by_password.mailbox.wait_for(1)

    assert arrived.reverse_path == OWN
    original = b"Ann <ann@home.lan>"
    _, rest = WRITTEN.split(b"Subject", 1)
    assert arrived.without_received() == (
        b"From: Ann <" + OWN.encode() + b">\r\nX-Original-From: " + original
        + b"\r\nReply-To: " + original + b"\r\nSubject" + rest
    )  # fmt: skip
