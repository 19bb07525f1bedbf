"""A listener: its socket, its sessions, and how it ends.

Guarantees: at most `max_connections` sessions; after `close` nothing of it runs.
Assumes: one event loop, asyncio's or uvloop's.
"""

import asyncio
import socket
from typing import Any

from relay.listener.accepting import Door
from relay.listener.access import Client
from relay.listener.proxied import client_behind
from relay.listener.session import ClientSession
from relay.listener.shared import Reception
from relay.policy.model import Listen
from relay.policy.units import HostPort
from relay.smtp import replies

_BACKLOG = 1024


def bind(listen: Listen) -> socket.socket:
    """Bind before a fork, so that processes can share the socket.

    `[::]` takes IPv4 too.  Raises OSError.
    """
    host, port = listen.address.host, listen.address.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    dual_stack = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=dual_stack)


class Listener(Reception):
    """With a socket of its own."""

    address: HostPort
    """Once started, with the port that the kernel chose for port 0."""
    _door: Door | None = None

    async def start(self, bound: socket.socket | None = None) -> None:
        """Accept connections, on a socket of `bind` or a new one.  Raises OSError."""
        bound = bound or bind(self.listen)
        self.address = HostPort(*bound.getsockname()[:2])
        self._door = Door(
            bound, self._receive, lambda error: self.observer.fault(self.name, "unknown", error)
        )

    async def close(self, deadline_seconds: float) -> None:
        """Accept no more, let content in flight finish, and drop what is left at the deadline.

        Sessions that wait for a command get 421, and so does the next MAIL of others; EHLO and QUIT are
        answered as ever.  A message that is cut off here was not replied to, and the client keeps it.
        """
        if self._door is not None:
            await self._door.close()
        sessions = list(self.sessions)
        for session in sessions:
            session.shut_down()
        if sessions:
            _, cut_off = await asyncio.wait([each.task for each in sessions], timeout=deadline_seconds)
            for task in cut_off:
                task.cancel()
            await asyncio.gather(*cut_off, return_exceptions=True)
        self.users.close()

    async def _receive(self, accepted: socket.socket, peer: Any) -> None:
        """Make a session of a connection; a `Receive` of a `Door`."""
        client = await self._client_of(accepted, Client.of_peer(peer[0]))
        place = self.place_for(client)
        if (refusal := self.admission.enter(place)) is not None:
            self.observer.refused(self.name, str(client), "connect", refusal, None)
            if not self.is_implicit_tls:  # before its handshake the client could not read it
                accepted.send(refusal.encode("ascii") + b"\r\n")
            raise ConnectionRefusedError
        tls = self.tls if self.is_implicit_tls else None
        try:
            # It has its place while it shakes hands: silent clients hold no others.
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: ClientSession(self, place), accepted, ssl=tls
            )
        except BaseException:
            self.admission.leave(place)
            raise

    async def _client_of(self, accepted: socket.socket, peer: Client) -> Client:
        """Raise ConnectionRefusedError where a load balancer does not tell whose connection it is."""
        if not peer.is_in(self.listen.proxies):
            return peer
        try:
            told = await client_behind(accepted)
        except OSError as error:
            # No reply: who speaks something else would not read it, and a balancer has nobody to tell.
            reply = f"{replies.NO_PROXY_HEADER}: {error}"
            self.observer.refused(self.name, str(peer), "connect", reply, None)
            raise ConnectionRefusedError from error
        client = peer if told is None else Client.of_peer(told)
        # A program on the balancer's host is on no loopback of ours.
        return peer if client.is_loopback and not peer.is_loopback else client
