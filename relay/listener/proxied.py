"""Connections that a load balancer passes on: read first whose they are.

Guarantees: a header is read of named networks only, to its last octet and no further; who comes from
there without one is closed, and told of; nobody waits for one longer than HEADER_S.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from relay.listener.accepting import Receive
from relay.listener.access import Client, ClientNetworks
from relay.listener.proxy_header import FIXED_BYTES, BadProxyHeader, client_of, length_of

HEADER_S = 5.0
"""From a balancer's connection to the end of its header, which comes with the first octets."""


class Proxied:
    """Reads the PROXY header of connections from load balancers; a `Receive` around another."""

    def __init__(
        self, receive: Receive, networks: ClientNetworks, most: int, refused: Callable[[str, str], None]
    ) -> None:
        """Let at most `most` connections be without their header; `refused` gets a host and a reason."""
        self._receive = receive
        self._networks = networks
        self._most = most
        self._refused = refused
        self._without_header = 0

    async def receive(self, accepted: socket.socket, peer: Any) -> None:
        if (peer := await self._peer_behind(accepted, peer)) is not None:
            await self._receive(accepted, peer)

    async def receive_whole(self, accepted: socket.socket, peer: Any) -> None:
        """Go on to the end where making a connection is quick, though cancelled in it, as `Door` does."""
        if (peer := await self._peer_behind(accepted, peer)) is not None:
            receiving = asyncio.ensure_future(self._receive(accepted, peer))
            try:
                await asyncio.shield(receiving)
            except asyncio.CancelledError:
                await receiving
                raise

    async def _peer_behind(self, accepted: socket.socket, peer: Any) -> Any:
        """Return whose connection it is; None where it was closed for want of a header."""
        host = peer[0]
        balancer = Client.of_peer(host)
        if self._networks.has(balancer):
            try:
                told = await self._told(accepted)
            except (BadProxyHeader, OSError) as error:
                # No reply: who speaks something else would not read it, and a balancer has nobody to tell.
                accepted.close()
                self._refused(host, f"{error}")
                return None
            except BaseException:
                accepted.close()
                raise
            if told is None or (Client.of_peer(told).is_loopback and not balancer.is_loopback):
                # A program on the balancer's host is on no loopback of ours.
                return peer
            return told, 0
        return peer

    async def _told(self, accepted: socket.socket) -> str | None:
        """Return the client, None for the balancer itself.  Raises BadProxyHeader, OSError."""
        if self._without_header >= self._most:
            raise BadProxyHeader("too many connections without their PROXY header")
        self._without_header += 1
        try:
            async with asyncio.timeout(HEADER_S):
                fixed = await _exactly(accepted, FIXED_BYTES)
                return client_of(fixed, await _exactly(accepted, length_of(fixed)))
        except TimeoutError:
            raise BadProxyHeader(f"no PROXY header within {HEADER_S:g} s") from None
        finally:
            self._without_header -= 1


async def _exactly(accepted: socket.socket, count: int) -> bytes:
    """Read no octet more: what follows is the client's."""
    read = b""
    while len(read) < count:
        more = await asyncio.get_running_loop().sock_recv(accepted, count - len(read))
        if not more:
            raise BadProxyHeader(
                "it ended within its PROXY header" if read else "it ended before its PROXY header"
            )
        read += more
    return read
