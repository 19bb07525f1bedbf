"""The wire by itself: one reply for one command, in time, and nothing between."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from relay.smtp.reply import Phase
from relay.upstream.protocol import (
    Late,
    StrictProtocol,
)
from tests.fakes.clock import FakeClock
from tests.fakes.smarthost import (
    DEAF,
    DEFAULT,
    During,
    Script,
    Smarthost,
    Until,
)
from tests.fakes.virtual_time import VirtualTimeLoop
from tests.unit.upstream.sessions import SOON_S

LONG_S = 60.0


@asynccontextmanager
async def speaking(host: Smarthost) -> AsyncIterator[StrictProtocol]:
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", host.port))
    _, protocol = await loop.create_connection(lambda: StrictProtocol(loop), sock=sock)
    try:
        yield protocol
    finally:
        protocol.abort()


@pytest.mark.parametrize("line", [b"MAIL FROM:<a>\r\nRCPT TO:<b>", b"NOOP\n", b"NOOP\r", b"NO\0OP"])
async def test_a_line_that_would_be_two_is_not_sent_and_not_shown(line: bytes) -> None:
    async with Smarthost() as host, speaking(host) as protocol:
        await protocol.reply(LONG_S)
        with pytest.raises(ValueError, match="control character") as caught:
            await protocol.command(line, Phase.MAIL, LONG_S)

        assert "a>" not in str(caught.value)
        assert (await protocol.command(b"RSET", Phase.RSET, LONG_S)).code == 250
        assert host.commands == ["RSET"]


def test_a_long_timeout_after_a_short_one_is_not_cut() -> None:
    async def act() -> int:
        ring = asyncio.Event()
        async with Smarthost() as host, speaking(host) as protocol:
            await protocol.reply(LONG_S)
            await protocol.command(b"RSET", Phase.RSET, SOON_S)
            asyncio.get_running_loop().call_later(2 * SOON_S, ring.set)
            host.script = Script(rset=[Until(ring), DEFAULT])
            return (await protocol.command(b"RSET", Phase.RSET, LONG_S)).code

    # By a clock of its own: the first is answered in time however slow this machine is.
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(FakeClock())) as runner:
        assert runner.run(act()) == 250


async def test_content_that_does_not_move_is_given_up_in_time() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 70 + b"\r\n"

    async with Smarthost(Script(content=During(1, [DEAF]))) as host, speaking(host) as protocol:
        await protocol.reply(LONG_S)
        for line in (b"MAIL FROM:<a@b.example>", b"RCPT TO:<c@d.example>", b"DATA"):
            await protocol.command(line, Phase.DATA, LONG_S)
        loop = asyncio.get_running_loop()

        def drip(octets: bytes) -> None:
            host.say(octets)
            if protocol.is_connected:
                loop.call_later(SOON_S / 2, drip, b"x")

        drip(b"250-")
        with pytest.raises(Late, match="nothing could be sent for"):
            await protocol.send_content(endless(), SOON_S, loop.time() + LONG_S, list[bytes]().append)
