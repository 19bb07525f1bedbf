"""Opening and closing connections: what can go wrong before MAIL, and that no message is blamed for it."""

import asyncio
import socket
from typing import Any

import pytest

from relay.clock import SystemClock
from relay.policy.model import Tls
from relay.smtp.extensions import Extensions
from relay.smtp.reply import Phase
from relay.upstream.connection import UpstreamServer, UpstreamUnavailable, open_connection
from relay.upstream.timeouts import Timeouts
from relay.verdicts.verdict import Verdict
from tests.fakes.smarthost import CLOSE, DEFAULT, SILENCE, Script, Smarthost, Turn
from tests.unit.upstream.sessions import SOON_S, account, connected


async def failure(opened: UpstreamServer, timeouts: Timeouts | None = None) -> tuple[Verdict, Phase, str]:
    with pytest.raises(UpstreamUnavailable) as caught:
        await open_connection(opened, SystemClock(), timeouts)
    answer = caught.value.answer
    assert str(caught.value) == answer.text
    assert answer.text.isprintable()
    return answer.verdict, answer.phase, answer.text


async def test_a_connection_knows_what_it_is() -> None:
    async with Smarthost() as host, connected(account(host)) as connection:
        assert connection.name == f"127.0.0.1[127.0.0.1]:{host.port}"
        assert connection.tls == "none"
        assert connection.is_usable
        assert connection.transactions == 0
        assert 0 < connection.opened_at_ns <= SystemClock().boottime_ns()
        assert host.commands == ["EHLO client.example"]


@pytest.fixture
def _two_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every name mean 127.0.0.9, and then 127.0.0.1."""

    def found(_host: Any, port: Any, *_others: Any) -> list[Any]:
        return [(socket.AF_INET, 1, 6, "", (address, port)) for address in ("127.0.0.9", "127.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", found)


@pytest.mark.asyncio(loop_factories=["asyncio"])  # uvloop has a resolver of its own
@pytest.mark.usefixtures("_two_addresses")
async def test_a_second_address_is_tried_when_the_first_refuses() -> None:
    async with Smarthost() as host, connected(account(host, name="two.example")) as connection:
        assert connection.name == f"two.example[127.0.0.1]:{host.port}"


@pytest.mark.asyncio(loop_factories=["asyncio"])  # uvloop has a resolver of its own
@pytest.mark.usefixtures("_two_addresses")
@pytest.mark.parametrize("tls", [Tls.IMPLICIT, Tls.STARTTLS])
async def test_one_opening_is_one_connection_by_the_upstreams_count(tls: Tls) -> None:
    seen = []

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer.get_extra_info("sockname")[0])
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as one:
        port = one.sockets[0].getsockname()[1]
        async with await asyncio.start_server(hang_up, "127.0.0.9", port):
            verdict, _, _ = await failure(UpstreamServer("two.example", port, tls, "me.example"))

    assert verdict is Verdict.PAUSE
    assert seen == ["127.0.0.9"]


async def test_no_password_leaves_this_host_in_the_clear() -> None:
    # 192.0.2.1 is TEST-NET-1: whoever tried to connect there would fail otherwise.
    opened = UpstreamServer("192.0.2.1", 25, Tls.NONE, "me.example", user="u", password="p")

    verdict, phase, text = await failure(opened)

    assert (verdict, phase) == (Verdict.PAUSE, Phase.CONNECT)
    assert "never sent without TLS" in text


@pytest.mark.parametrize(
    "turn",
    [DEFAULT, SILENCE, CLOSE, "421 4.3.2 bye", "500 what?", b"rubbish\r\n", [DEFAULT, DEFAULT]],
    ids=["221", "silence", "close", "421", "500", "rubbish", "twice"],
)
async def test_close_says_quit_and_ends_whatever_the_host_says(turn: Turn) -> None:
    async with Smarthost(Script(quit=turn)) as host:
        connection = await open_connection(account(host), SystemClock(), Timeouts(quit_s=SOON_S))
        await connection.close()
        await host.until(lambda: not host.sessions[0].is_open)

        assert host.commands[-1] == "QUIT"
        assert not connection.is_usable


@pytest.mark.parametrize(
    ("reply", "is_known"),
    [
        ("502 5.5.1 what?", False),
        ("550 5.7.1 not you", True),
        ("502 5.4.5 Daily sending quota exceeded", True),
    ],
)
async def test_helo_follows_only_where_ehlo_is_not_known(reply: str, is_known: bool) -> None:
    async with Smarthost(Script(ehlo=reply, helo=b"250-fake.example\r\n250 SMTPUTF8\r\n")) as host:
        if is_known:
            assert (await failure(account(host)))[1:] == (Phase.EHLO, reply)
            assert host.commands == ["EHLO client.example"]
            return
        async with connected(account(host)) as connection:
            # RFC 5321, 4.1.1.1: what HELO is answered by announces nothing.
            assert connection.extensions == Extensions()
            assert host.commands == ["EHLO client.example", "HELO client.example"]
