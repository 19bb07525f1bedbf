"""The door of a listener with implicit TLS: accepts, counts, and only then shakes hands.

`loop.create_server(ssl=…)` shows nobody a connection before its handshake is over, so
that silent clients could hold any number of them open.  Here a connection has its slot
from the moment it is accepted, and a session from the moment it is under TLS.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable

from relay.listener.access import Client
from relay.listener.connection import HANDSHAKE_S, Connection
from relay.listener.reception import Reception

_PAUSE_S = 1.0
"""After accept failed, as asyncio's own servers wait: no descriptor is free."""


class TlsDoor:
    """Takes connections on one socket.  `open_session` makes the session of a client that is counted."""

    def __init__(
        self,
        bound: socket.socket,
        context: ssl.SSLContext,
        reception: Reception,
        open_session: Callable[[Client], Connection],
    ) -> None:
        bound.setblocking(False)  # noqa: FBT003 - the socket's own signature
        self._bound = bound
        self._context = context
        self._reception = reception
        self._open_session = open_session
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    async def close(self) -> None:
        """Accept no more; handshakes that are under way are broken off, for no session has begun."""
        waited_for = {self._accepting, *self._handshakes}
        for task in waited_for:
            task.cancel()
        await asyncio.gather(*waited_for, return_exceptions=True)
        self._bound.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(self._bound)
            except OSError as error:
                self._reception.observer.fault(self._reception.name, "unknown", error)
                await asyncio.sleep(_PAUSE_S)
                continue
            task = loop.create_task(self._shake_hands(accepted, peer[0]))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, accepted: socket.socket, host: str) -> None:
        """Begin a session under TLS, or close."""
        room = self._reception
        client = Client.of_peer(host)
        refusal = room.admission.enter(client)
        if refusal is not None:
            # No reply: before its handshake the client could not read it.
            accepted.close()
            room.observer.refused(room.name, str(client), "connect", refusal)
            return
        session = self._open_session(client)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: session,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_S,
            )
        except BaseException as error:
            if not session.has_begun:  # else it gives its slot back itself
                accepted.close()
                room.admission.leave(client)
            if not isinstance(error, OSError):  # ssl.SSLError is one, and a handshake that took too long
                raise
