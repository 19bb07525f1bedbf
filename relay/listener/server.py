"""A listener: its socket, its sessions, and how it ends.

Guarantees: at most `max_connections` sessions; after `close` nothing of it runs.
Assumes: one event loop, asyncio's or uvloop's.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from relay.clock import Clock, SystemClock
from relay.listener.accepting import Door, into_protocol
from relay.listener.access import ClientNetworks, ClientPlace
from relay.listener.listener_files import ListenerFiles
from relay.listener.ports import IntakePort, Observer
from relay.listener.proxied import Proxied
from relay.listener.quotas import Quotas
from relay.listener.session import ClientSession
from relay.listener.shared import Reception
from relay.listener.wire import HANDSHAKE_S, ClientConnection
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


class Handshakes:
    """Connections of a listener with implicit TLS: counted first, and only then shaken hands with.

    `loop.create_server(ssl=…)` shows nobody a connection before its handshake is over, so
    that silent clients could hold any number of them open.  Here a connection has its slot
    from the moment it is accepted, and a session, which `open_session` makes, from the moment
    it is under TLS.
    """

    def __init__(
        self,
        reception: Reception,
        open_session: Callable[[ClientPlace], ClientConnection],
    ) -> None:
        self._reception = reception
        self._admission = reception.admission
        self._observer = reception.observer
        self._open_session = open_session

    async def shake_hands(self, accepted: socket.socket, peer: Any) -> None:
        """Begin a session under TLS, or close; a `Receive` of a `Door`."""
        room = self._reception
        loop, handshake = asyncio.get_running_loop(), asyncio.current_task()

        def give_way() -> None:
            if session.has_begun:
                # Not before its coroutine has run: cancelled earlier, it would clean up nothing.
                loop.call_soon(session.send_away, replies.GIVES_WAY)
            elif handshake is not None:
                self._observer.refused(room.name, str(place.client), "connect", replies.GIVES_WAY, None)
                handshake.cancel()

        place = room.place_for(peer[0], give_way)
        refusal = room.enter(place, accepted.fileno())
        if refusal is not None:
            # No reply: before its handshake the client could not read it.
            accepted.close()
            self._observer.refused(room.name, str(place.client), "connect", refusal, None)
            return
        session = self._open_session(place)
        try:
            await loop.connect_accepted_socket(
                lambda: session,
                accepted,
                ssl=room.tls,
                ssl_handshake_timeout=HANDSHAKE_S,
            )
        except BaseException as error:
            if not session.has_begun:  # else it gives its place back itself
                accepted.close()
                self._admission.leave(place)
            if not isinstance(error, OSError):  # ssl.SSLError is one, and a handshake that took too long
                raise


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
        ceiling: int | None = None,
        files: ListenerFiles | None = None,
    ) -> None:
        """Refuse a client whose socket is `ceiling` or above: those descriptors are kept for the disk.

        `files` None: read them.
        """
        self._reception = Reception(
            listen, hostname, intake, observer, clock or SystemClock(), ceiling=ceiling, files=files
        )
        self._door: Door | None = None
        self._address = listen.address

    @property
    def address(self) -> HostPort:
        """The port is the kernel's choice for port 0."""
        return self._address

    @property
    def open_connections(self) -> int:
        return self._reception.admission.total

    def use(self, files: ListenerFiles) -> None:
        """Go by other users and another certificate; who is logged in as another user than now has to go."""
        self._reception.use(files)

    @property
    def quotas(self) -> Quotas:
        return self._reception.quotas

    async def start(self, bound: socket.socket | None = None) -> None:
        """Accept connections, on a socket of `bind` or a new one.  Raises OSError."""
        bound = bound or bind(self._reception.listen)
        host, port = bound.getsockname()[:2]
        self._address = HostPort(host, port)
        room = self._reception
        receive = into_protocol(lambda peer: ClientSession(room, peer[0]))
        shakes_hands = room.tls is not None and room.is_implicit_tls
        if shakes_hands:
            receive = Handshakes(
                room, lambda place: ClientSession(room, place.client.address, place)
            ).shake_hands
        if networks := room.listen.proxies:
            proxied = Proxied(
                receive, ClientNetworks(networks), room.listen.max_connections, room.tell_bad_header
            )
            receive = proxied.receive if shakes_hands else proxied.receive_whole
        self._door = Door(
            bound,
            receive,
            lambda error: room.observer.fault(room.name, "unknown", error),
            waits_for_client=shakes_hands or bool(networks),
        )

    async def close(self, deadline_seconds: float) -> None:
        """Accept no more, let content in flight finish, and drop what is left at the deadline.

        Sessions that wait for a command get 421, and so does the next MAIL of others; EHLO and QUIT are
        answered as ever.
        A message that is cut off here was not replied to, and the client keeps it.
        """
        self._reception.is_closing = True
        if self._door is not None:
            await self._door.break_off()
        register = self._reception.register
        for session in register:
            session.shut_down()
        loop = asyncio.get_running_loop()
        until = loop.time() + deadline_seconds
        while len(register) and (left_s := until - loop.time()) > 0:
            await asyncio.wait([session.task for session in register], timeout=left_s)
        for session in (cut_off := list(register)):
            session.abort()
        await asyncio.gather(*(session.task for session in cut_off), return_exceptions=True)
        register.stop()
        if self._reception.users is not None:
            self._reception.users.close()
