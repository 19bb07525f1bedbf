"""A listener: its socket, its sessions, and how it ends.

Guarantees: at most `max_connections` sessions; after `close` nothing of it runs.
Assumes: one event loop, asyncio's or uvloop's.
"""

import asyncio
import contextlib
import socket
from typing import Any

from relay.clock import Clock, SystemClock
from relay.listener.accepting import Door
from relay.listener.access import Client, ClientNetworks
from relay.listener.listener_files import ListenerFiles
from relay.listener.ports import IntakePort, Observer
from relay.listener.proxied import BadProxyHeader, client_behind
from relay.listener.quotas import Quotas
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
        self._proxies = ClientNetworks(listen.proxies)
        self._without_header = 0
        self._opening: set[asyncio.Task[None]] = set()
        """Connections without a session, or in a handshake before it."""
        self._door: Door | None = None
        self._address = listen.address

    @property
    def address(self) -> HostPort:
        """The port is the kernel's choice for port 0."""
        return self._address

    @property
    def open_connections(self) -> int:
        return self._reception.admission.total

    @property
    def quotas(self) -> Quotas:
        return self._reception.quotas

    def use(self, files: ListenerFiles) -> None:
        """Go by other users and another certificate; who is logged in as another user than now has to go."""
        self._reception.use(files)

    async def start(self, bound: socket.socket | None = None) -> None:
        """Accept connections, on a socket of `bind` or a new one.  Raises OSError."""
        bound = bound or bind(self._reception.listen)
        host, port = bound.getsockname()[:2]
        self._address = HostPort(host, port)
        room = self._reception
        self._door = Door(
            bound, self._receive, lambda error: room.observer.fault(room.name, "unknown", error)
        )

    async def close(self, deadline_seconds: float) -> None:
        """Accept no more, let content in flight finish, and drop what is left at the deadline.

        Sessions that wait for a command get 421, and so does the next MAIL of others; EHLO and QUIT are
        answered as ever.  A message that is cut off here was not replied to, and the client keeps it.
        """
        sessions = self._reception.sessions
        for session in sessions:
            session.shut_down()
        if self._door is not None:
            await self._door.close()
        for opening in self._opening:
            opening.cancel()
        if self._opening:
            await asyncio.wait(self._opening)
        for session in sessions:  # some may have begun meanwhile
            session.shut_down()
        if sessions:
            await asyncio.wait([session.task for session in sessions], timeout=deadline_seconds)
        for session in (cut_off := list(sessions)):
            session.abort()
        await asyncio.gather(*(session.task for session in cut_off), return_exceptions=True)
        if self._reception.users is not None:
            self._reception.users.close()

    async def _receive(self, accepted: socket.socket, peer: Any) -> None:
        """Make a session of a connection, or close it; a `Receive` of a `Door`."""
        opening = asyncio.current_task()
        if opening is None:
            raise AssertionError("outside of a task")
        self._opening.add(opening)
        session: ClientSession | None = None
        try:
            client = await self._client_of(accepted, Client.of_peer(peer[0]))
            if client is not None:
                session = self._admitted(accepted, client, opening)
            if (made := session) is not None:
                # From here on it has its place, also while it shakes hands: silent clients hold no others.
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: made, accepted, **self._handshake
                )
        except OSError:  # gone before it began, a handshake that failed or took too long
            pass
        finally:
            self._opening.discard(opening)
            if session is None or not session.has_begun:
                accepted.close()
                if session is not None:
                    self._reception.admission.leave(session.place)

    async def _client_of(self, accepted: socket.socket, peer: Client) -> Client | None:
        """Return whose connection it is; None where a load balancer does not tell it."""
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
            room.observer.refused(
                room.name, str(peer), "connect", f"{replies.NO_PROXY_HEADER}: {error}", None
            )
            return None
        finally:
            self._without_header -= 1
        client = peer if told is None else Client.of_peer(told)
        # A program on the balancer's host is on no loopback of ours.
        return peer if client.is_loopback and not peer.is_loopback else client

    def _admitted(
        self, accepted: socket.socket, client: Client, opening: "asyncio.Task[None]"
    ) -> ClientSession | None:
        """Return the session of a client that has a place, or refuse it."""
        room = self._reception

        def give_way() -> None:
            if session.has_begun:
                # Not before its coroutine has run: cancelled earlier, it would tell nobody.
                loop.call_soon(session.send_away, replies.GIVES_WAY)
            else:
                opening.cancel()
                room.observer.refused(room.name, str(client), "connect", replies.GIVES_WAY, None)

        place = room.place_for(client)
        refusal = room.admission.enter(place)
        if refusal is not None:
            room.observer.refused(room.name, str(client), "connect", refusal, None)
            if not room.is_implicit_tls:  # before its handshake the client could not read it
                with contextlib.suppress(OSError):
                    accepted.send(refusal.encode("ascii") + b"\r\n")
            return None
        loop, session = asyncio.get_running_loop(), ClientSession(room, place)
        place.give_way = give_way
        return session

    @property
    def _handshake(self) -> dict[str, Any]:
        room = self._reception
        return {"ssl": room.tls, "ssl_handshake_timeout": HANDSHAKE_S} if room.is_implicit_tls else {}
