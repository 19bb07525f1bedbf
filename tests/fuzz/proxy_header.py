"""What a load balancer's connection begins with, of any bytes: a client's address, or ConnectionError."""

import asyncio
import socket
from ipaddress import ip_address

from aiosmtpd.proxy_protocol import V2_SIGNATURE

from relay.listener.proxied import client_behind
from tests.fuzz.choices import Choices
from tests.fuzz.work import must_be_shown

TOKENS = [V2_SIGNATURE, b"\x20\0\0\0", b"\x21\x11\0\x0c", b"\x21\x21\0\x24", b"\0\xff", b"PROXY TCP4 "]
BEGINNINGS = [b"", V2_SIGNATURE, b"PROXY TCP4 192.0.2.1 ", b"PROXY TCP6 ::1 "]


async def _read(octets: bytes) -> tuple[str | None, bytes]:
    theirs, accepted = socket.socketpair()
    with theirs, accepted:
        accepted.setblocking(False)
        theirs.sendall(octets)
        theirs.shutdown(socket.SHUT_WR)
        told = await client_behind(accepted)
        return told, accepted.recv(len(octets) + 1)


def target(raw: bytes) -> None:
    choices = Choices(raw)
    octets = choices.pick(BEGINNINGS) + choices.rest()
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        try:
            told, rest = runner.run(_read(octets))
        except ConnectionError as error:
            must_be_shown(error)
            return
    assert octets.endswith(rest)
    assert told is None or str(ip_address(told)) == told


SEEDS = [
    b"\1\x21\x11\0\x0c" + bytes(12) + b"EHLO x\r\n",
    b"\1\x21\x21\0\x24" + bytes(36),
    b"\1\x20\0\0\0",
    b"\2" + b"192.0.2.9 40000 25\r\nEHLO x\r\n",
]
