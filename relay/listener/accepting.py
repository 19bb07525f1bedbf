"""Accepting connections on one socket, also where there is no descriptor for one.

`loop.create_server` will not do: without a descriptor, asyncio logs a traceback for each of a
backlog's tries, and uvloop asks the kernel again and again, at the cost of a whole processor.
`Door` tells of it once and tries again after PAUSE_S; clients wait in the kernel meanwhile.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

PAUSE_S = 1.0
"""After accept failed, as asyncio's own servers wait."""
AT_ONCE = 8
"""Connections accepted in a turn of the loop, so that open ones get their turn."""


Receive = Callable[[socket.socket, Any], Coroutine[None, None, None]]
"""Owns an accepted socket, given its peer's address: makes a connection of it, or closes it."""


def into_protocol(open_protocol: Callable[[Any], asyncio.Protocol]) -> Receive:
    """`open_protocol` is given the peer's address."""

    async def receive(accepted: socket.socket, peer: Any) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: open_protocol(peer), accepted)
        except OSError:
            accepted.close()  # gone before it began

    return receive


class Door:
    """Takes connections on a listening socket, which it closes in the end."""

    def __init__(
        self,
        bound: socket.socket,
        receive: Receive,
        on_error: Callable[[OSError], None],
        *,
        waits_for_client: bool,
        pause_s: float = PAUSE_S,
    ) -> None:
        """Accept from now on.  `on_error` is told why there is a pause.

        `waits_for_client`: making a connection takes as long as the client likes (a TLS handshake).
        """
        bound.setblocking(False)  # noqa: FBT003 - the socket's own signature
        self._loop = asyncio.get_running_loop()
        self._bound = bound
        self._receive = receive
        self._on_error = on_error
        self._waits_for_client = waits_for_client
        self._pause_s = pause_s
        self._opening: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._go_on()

    def close(self) -> None:
        """Accept no more; what was accepted goes on.  Idempotent."""
        if self._pause is not None:
            self._pause.cancel()
        if self._bound.fileno() >= 0:
            self._loop.remove_reader(self._bound.fileno())
            self._bound.close()

    async def break_off(self) -> None:
        """Accept no more, and let go of handshakes; other connections that are being made begin."""
        self.close()
        # A coroutine that is cancelled before its first step could not close its socket.
        await asyncio.sleep(0)
        opening = tuple(self._opening)
        # Only a handshake: uvloop, cancelled between `connection_made` and the end of
        # `connect_accepted_socket`, closes the transport and never tells its protocol, whose session
        # then waits for that in vain.
        if self._waits_for_client:
            for each in opening:
                each.cancel()
        await asyncio.gather(*opening, return_exceptions=True)

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._bound.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                accepted, peer = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._loop.remove_reader(self._bound.fileno())
                self._pause = self._loop.call_later(self._pause_s, self._go_on)
                self._on_error(error)
                return
            accepted.setblocking(False)  # noqa: FBT003 - the socket's own signature
            opening = self._loop.create_task(self._receive(accepted, peer))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)
