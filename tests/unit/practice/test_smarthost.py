"""The practice smarthost over real sockets: framing, lateness, TLS, cut-off, and its end."""

import asyncio
import hashlib
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from random import Random
from typing import Any

import pytest
import uvloop

from relay.clock import SECOND_NS
from relay.policy.units import HostPort
from relay.practice.account import Counting, PracticeBehaviour
from relay.practice.smarthost import PracticeSmarthost
from relay.practice.witness import Witnessed
from tests.fakes.certificates import Certificates, make_certificates
from tests.fakes.smarthost import PATIENCE_S
from tests.system.demand import demand, missing_program
from tests.unit.practice.tools import (
    LOOPBACK,
    MINUTE_NS,
    PASSWORD,
    PLAIN,
    USER,
    HandClock,
    bare_client,
    limit,
)


class Practice:
    """Starts smarthosts, and closes them after the test."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.started: list[PracticeSmarthost] = []

    async def start(self, count: int = 1000, unit: str = "messages", **options: Any) -> PracticeSmarthost:
        options.setdefault("counting", Counting.AT_DOT)
        ours = {name: options.pop(name) for name in ("tls", "rng") if name in options}
        behaviour = PracticeBehaviour(limit(unit, count), 10 * MINUTE_NS, **options)
        smarthost = PracticeSmarthost(LOOPBACK, USER, PASSWORD, behaviour, clock=self.clock, **ours)
        await smarthost.start()
        self.started.append(smarthost)
        return smarthost


@pytest.fixture
async def practice() -> AsyncIterator[Practice]:
    made = Practice()
    yield made
    for smarthost in made.started:
        await smarthost.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    demand(missing_program("openssl"))
    return make_certificates(tmp_path_factory.mktemp("tls"))


def server_context(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.cert, certificates.key)
    return context


async def until(condition: Any) -> None:
    """Let the event loop turn until something holds; a hang is a failure, not a wait."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - a ledger has no event to wait for
            await asyncio.sleep(0)


async def test_the_limit_is_enforced_exactly_and_the_cut_off_ends(practice: Practice) -> None:
    smarthost = await practice.start(3)
    async with bare_client(smarthost.port) as client:
        await client.log_in()
        replies = [await client.mail() for _ in range(3)]
        practice.clock.now_ns += MINUTE_NS - 1
        replies.append(await client.mail())
        practice.clock.now_ns += 10 * MINUTE_NS - 1
        replies.append(await client.mail())
        practice.clock.now_ns += MINUTE_NS
        replies.append(await client.mail())

    assert [reply[:9] for reply in replies] == ["250 2.0.0"] * 3 + ["550 5.7.1"] * 2 + ["250 2.0.0"]
    assert replies[3] == "550 5.7.1 You have exceeded your sending limit of 3 messages per 60s"
    assert (smarthost.ledger.relayed, smarthost.ledger.refused) == (4, 2)
    assert smarthost.ledger.most_in_any_window() == 4


async def test_all_connections_share_the_limit_of_the_account(practice: Practice) -> None:
    smarthost = await practice.start(20)

    async def send_two() -> list[str]:
        async with bare_client(smarthost.port) as client:
            await client.log_in()
            return [(await client.mail())[:3] for _ in range(2)]

    codes = [code for both in await asyncio.gather(*(send_two() for _ in range(20))) for code in both]

    assert (codes.count("250"), codes.count("550")) == (20, 20)
    assert smarthost.ledger.most_in_any_window() == 40


CONVERSATION = (
    b"EHLO client.example\r\nAUTH PLAIN " + PLAIN.encode() + b"\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\n"
    b"DATA\r\n..stuffed\r\n.\n.\r\n\n..\r\n.\r\nNOOP\r\n"
    b"MAIL FROM:<>\r\nRCPT TO:<c@d>\r\nDATA\r\n.\r\nQUIT\r\n"
)
CODES = ["250", "235", "250", "250", "354", "550", "250", "250", "250", "354", "250", "221"]


@pytest.mark.parametrize("step", [1, 2, 3, 7, len(CONVERSATION)])
async def test_pipelined_commands_are_answered_in_order_at_every_cut(practice: Practice, step: int) -> None:
    smarthost = await practice.start()
    async with bare_client(smarthost.port) as client:
        for start in range(0, len(CONVERSATION), step):
            client.send(CONVERSATION[start : start + step])
            await client.writer.drain()
        replies = [await client.reply() for _ in CODES]
        assert await client.reader.read() == b""

    # Neither LF.CRLF nor a dot with LF ended the content: it went on to CRLF.CRLF, and is one message.
    assert [reply[:3] for reply in replies] == CODES
    refused, empty = smarthost.ledger.entries
    assert refused.sha256 == hashlib.sha256(b".stuffed\r\n\n.\r\n\n..\r\n").hexdigest()
    assert (refused.fate, empty.fate, empty.size_bytes) == (Witnessed.REFUSED, Witnessed.RELAYED, 0)


async def test_a_connection_lost_in_a_transaction_abandons_it(practice: Practice) -> None:
    smarthost = await practice.start(counting=Counting.AT_MAIL)
    async with bare_client(smarthost.port) as client:
        await client.log_in()
        client.send(b"MAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\nhalf a li")
        for _ in range(3):
            await client.reply()

    await until(lambda: smarthost.ledger.abandoned == 1)
    assert smarthost.ledger.most_in_any_window() == 1


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_nothing_said_in_clear_behind_starttls_is_heard_under_tls(
    run: Callable[[Coroutine[Any, Any, None]], None], certificates: Certificates
) -> None:
    run(mail_under_tls(certificates))


async def mail_under_tls(certificates: Certificates) -> None:
    smarthost = await Practice().start(
        tls=server_context(certificates), longest_delay_ns=SECOND_NS // 50, rng=Random(1)
    )
    trusting = ssl.create_default_context(cafile=certificates.ca)
    async with bare_client(smarthost.port) as client:
        assert (await client.ask(f"AUTH PLAIN {PLAIN}")).startswith("530 5.7.0")
        client.send(b"EHLO x\r\nSTARTTLS\r\nNOOP\r\nFOO\r\n")
        assert "250-STARTTLS" in await client.reply()
        assert (await client.reply()).startswith("220 ")
        await client.writer.start_tls(trusting, server_hostname="localhost")
        await client.log_in()
        assert (await client.mail()).startswith("250 ")

        client.send(b"MAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\nx\r\n.\r\nVRFY a\r\n")
        assert [(await client.reply())[:3] for _ in range(5)] == ["250", "250", "354", "250", "252"]
        assert (await client.ask("QUIT")).startswith("221 ")
        assert await client.reader.read() == b""
    await smarthost.close()

    assert [entry.envelope.protocol for entry in smarthost.ledger.entries] == ["ESMTPSA"] * 2


def test_passwords_in_clear_are_taken_on_loopback_only() -> None:
    with pytest.raises(ValueError, match="loopback only"):
        PracticeSmarthost(
            HostPort("0.0.0.0", 0), USER, PASSWORD, PracticeBehaviour(limit("messages", 1), MINUTE_NS)
        )
