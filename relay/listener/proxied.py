"""Reads the header in which a load balancer names the client of a connection; aiosmtpd parses it.

PROXY protocol, versions 1 and 2 (haproxy.org, doc/proxy-protocol.txt).  Guarantees: reads to the last octet
of the header and no further, within HEADER_S.
Assumes: the peer is trusted, so the caller reads headers from the networks in `proxies` only.
"""

import asyncio
import socket

from aiosmtpd import proxy_protocol
from aiosmtpd.proxy_protocol import AF, PROTO, V2_CMD, get_proxy

HEADER_S = 5.0
"""Seconds from accept to the end of the header, which balancers send first."""
MOST_LINE_BYTES = 107
"""The longest header of version 1."""
_KINDS = frozenset({(AF.INET, PROTO.STREAM), (AF.INET6, PROTO.STREAM)})

# aiosmtpd would log each bad header by the module logging, outside our log.
proxy_protocol.log.disabled = True


async def client_behind(accepted: socket.socket) -> str | None:
    """Return the client's address; None if the balancer itself connects, for a health check (`LOCAL`).

    Raises OSError, also for an invalid, late or missing header.
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
        raise ConnectionError("expected TCP over IPv4 or IPv6")
    return str(header.src_addr)


class _Octets:
    """aiosmtpd's `AsyncReader` on a socket.  It reads no octet beyond the header: those are the client's."""

    def __init__(self, accepted: socket.socket) -> None:
        self._accepted = accepted

    async def readexactly(self, n: int = 1) -> bytes:
        octets = b""
        while len(octets) < n:
            more = await asyncio.get_running_loop().sock_recv(self._accepted, n - len(octets))
            if not more:
                raise ConnectionError("the connection ended inside the PROXY header")
            octets += more
        return octets

    read = readexactly

    async def readuntil(self, separator: bytes = b"\n") -> bytes:
        line = b""
        # aiosmtpd itself refuses a longer line.
        while not line.endswith(separator) and len(line) <= MOST_LINE_BYTES:
            line += await self.readexactly()
        return line
