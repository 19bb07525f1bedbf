"""The header by which a load balancer tells whose connection it passes on; aiosmtpd reads it.

PROXY protocol, versions 1 and 2 (haproxy.org, doc/proxy-protocol.txt).  Guarantees: it is read to its
last octet and no further, within HEADER_S.
Assumes: who sends it is believed, so the caller reads it of named networks only.
"""

import asyncio
import socket

from aiosmtpd import proxy_protocol
from aiosmtpd.proxy_protocol import AF, PROTO, V2_CMD, get_proxy

HEADER_S = 5.0
"""From a balancer's connection to the end of its header, which comes with the first octets."""
MOST_LINE_BYTES = 107
"""Of a header of version 1."""
_KINDS = frozenset({(AF.INET, PROTO.STREAM), (AF.INET6, PROTO.STREAM)})

# aiosmtpd logs each bad header, past our own log.
proxy_protocol.log.disabled = True


async def client_behind(accepted: socket.socket) -> str | None:
    """Return the client's address; None for a connection of the balancer itself, as a health check.

    Raises OSError, also for what is no such header.
    """
    try:
        async with asyncio.timeout(HEADER_S):
            header = await get_proxy(_Octets(accepted))
    except TimeoutError:
        raise ConnectionError(f"no PROXY header within {HEADER_S:g} s") from None
    if not header.valid:
        raise ConnectionError(header.error or "no PROXY header")
    if header.command == V2_CMD.LOCAL and header.version == 2:
        return None
    if (header.family, header.protocol) not in _KINDS:
        raise ConnectionError(f"family {header.family} and protocol {header.protocol}, not of TCP")
    return str(header.src_addr)


class _Octets:
    """aiosmtpd's `AsyncReader` of a socket: no octet more than asked for, what follows is the client's."""

    def __init__(self, accepted: socket.socket) -> None:
        self._accepted = accepted

    async def readexactly(self, n: int = 1) -> bytes:
        octets = b""
        while len(octets) < n:
            more = await asyncio.get_running_loop().sock_recv(self._accepted, n - len(octets))
            if not more:
                raise ConnectionError("it ended within its PROXY header")
            octets += more
        return octets

    read = readexactly

    async def readuntil(self, separator: bytes = b"\n") -> bytes:
        line = b""
        # aiosmtpd refuses a longer one, once it has it.
        while not line.endswith(separator) and len(line) <= MOST_LINE_BYTES:
            line += await self.readexactly()
        return line
