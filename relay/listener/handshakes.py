"""Connections of a listener with implicit TLS: counted first, and only then shaken hands with.

`loop.create_server(ssl=…)` shows nobody a connection before its handshake is over, so
that silent clients could hold any number of them open.  Here a connection has its slot
from the moment it is accepted, and a session from the moment it is under TLS.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

from relay.listener import replies
from relay.listener.access import Client, ClientPlace
from relay.listener.reception import Reception
from relay.listener.wire import HANDSHAKE_S, ClientConnection


class Handshakes:
    """Makes sessions under TLS.  `open_session` makes the session of a connection that has its place."""

    def __init__(
        self,
        context: ssl.SSLContext,
        reception: Reception,
        open_session: Callable[[ClientPlace], ClientConnection],
    ) -> None:
        self._context = context
        self._reception = reception
        self._open_session = open_session

    async def shake_hands(self, accepted: socket.socket, peer: Any) -> None:
        """Begin a session under TLS, or close; a `Receive` of a `Door`."""
        room = self._reception
        client = Client.of_peer(peer[0])
        loop, handshake = asyncio.get_running_loop(), asyncio.current_task()

        def give_way() -> None:
            if session.has_begun:
                # Not before its coroutine has run: cancelled earlier, it would clean up nothing.
                loop.call_soon(session.send_away, replies.GIVES_WAY)
            elif handshake is not None:
                room.observer.refused(room.name, str(client), "connect", replies.GIVES_WAY)
                handshake.cancel()

        place = room.place_for(client, give_way)
        refusal = room.enter(place, accepted.fileno())
        if refusal is not None:
            # No reply: before its handshake the client could not read it.
            accepted.close()
            room.observer.refused(room.name, str(client), "connect", refusal)
            return
        session = self._open_session(place)
        try:
            await loop.connect_accepted_socket(
                lambda: session,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_S,
            )
        except BaseException as error:
            if not session.has_begun:  # else it gives its place back itself
                accepted.close()
                room.admission.leave(place)
            if not isinstance(error, OSError):  # ssl.SSLError is one, and a handshake that took too long
                raise
