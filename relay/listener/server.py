"""A listener: its socket, its sessions, and how it ends.

Guarantees: at most `max_connections` sessions; after `close` nothing of it runs.
Assumes: one event loop, asyncio's or uvloop's.
"""

import asyncio
import socket
from typing import Any

from relay.clock import Clock, SystemClock
from relay.listener.accepting import Door
from relay.listener.access import Client, ClientNetworks
from relay.listener.listener_files import ListenerFiles
from relay.listener.ports import IntakePort, Observer
from relay.listener.proxied import BadProxyHeader, client_behind
from relay.listener.session import ClientSession
from relay.listener.shared import Reception
from relay.listener.wire import HANDSHAKE_S
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


class Listener:
    """Raises as `Reception` does for what the policy names."""

    def __init__(
        self,
        listen: Listen,
        hostname: str,
        intake: IntakePort,
        observer: Observer,
        *,
        clock: Clock | None = None,
        files: ListenerFiles | None = None,
    ) -> None:
        """`files` None: read them."""
        self._reception = Reception(listen, hostname, intake, observer, clock or SystemClock(), files=files)
        self.quotas, self.use = self._reception.quotas, self._reception.use
        self._proxies = ClientNetworks(listen.proxies)
        self._without_header = 0
        self._door: Door | None = None
        self.address = listen.address
        """Once started, with the port that the kernel chose for port 0."""

    @property
    def open_connections(self) -> int:
        return self._reception.admission.total

    async def start(self, bound: socket.socket | None = None) -> None:
        """Accept connections, on a socket of `bind` or a new one.  Raises OSError."""
        room = self._reception
        bound = bound or bind(room.listen)
        self.address = HostPort(*bound.getsockname()[:2])
        self._door = Door(
            bound, self._receive, lambda error: room.observer.fault(room.name, "unknown", error)
        )

    async def close(self, deadline_seconds: float) -> None:
        """Accept no more, let content in flight finish, and drop what is left at the deadline.

        Sessions that wait for a command get 421, and so does the next MAIL of others; EHLO and QUIT are
        answered as ever.  A message that is cut off here was not replied to, and the client keeps it.
        """
        room = self._reception
        if self._door is not None:
            await self._door.close()
        for session in room.sessions:
            session.shut_down()
        if room.sessions:
            await asyncio.wait([session.task for session in room.sessions], timeout=deadline_seconds)
        for session in (cut_off := list(room.sessions)):
            session.end("shutdown")
        if cut_off:
            await asyncio.wait([session.task for session in cut_off])
        if room.users is not None:
            room.users.close()

    async def _receive(self, accepted: socket.socket, peer: Any) -> None:
        """Make a session of a connection; a `Receive` of a `Door`."""
        room = self._reception
        client = await self._client_of(accepted, Client.of_peer(peer[0]))
        place = room.place_for(client)
        if (refusal := room.admission.enter(place)) is not None:
            room.observer.refused(room.name, str(client), "connect", refusal, None)
            if not room.is_implicit_tls:  # before its handshake the client could not read it
                accepted.send(refusal.encode("ascii") + b"\r\n")
            raise ConnectionRefusedError
        session = ClientSession(room, place, asyncio.current_task())
        tls, handshake_s = (room.tls, HANDSHAKE_S) if room.is_implicit_tls else (None, None)
        try:
            # It has its place while it shakes hands: silent clients hold no others.
            await session.loop.connect_accepted_socket(
                lambda: session, accepted, ssl=tls, ssl_handshake_timeout=handshake_s
            )
        except BaseException:
            room.admission.leave(place)
            raise

    async def _client_of(self, accepted: socket.socket, peer: Client) -> Client:
        """Raise ConnectionRefusedError where a load balancer does not tell whose connection it is."""
        if not self._proxies.has(peer):
            return peer
        room = self._reception
        self._without_header += 1
        try:
            if self._without_header > room.listen.max_connections:
                raise BadProxyHeader("too many connections without their PROXY header")
            told = await client_behind(accepted)
        except (BadProxyHeader, OSError) as error:
            # No reply: who speaks something else would not read it, and a balancer has nobody to tell.
            reply = f"{replies.NO_PROXY_HEADER}: {error}"
            room.observer.refused(room.name, str(peer), "connect", reply, None)
            raise ConnectionRefusedError from error
        finally:
            self._without_header -= 1
        client = peer if told is None else Client.of_peer(told)
        # A program on the balancer's host is on no loopback of ours.
        return peer if client.is_loopback and not peer.is_loopback else client
