"""Accepts connections on one socket, also when the process has no free file descriptor.

`loop.create_server` cannot be used.  Without a free descriptor asyncio logs a traceback for each try of
the backlog, and uvloop calls accept in a loop that takes a whole processor.  `Acceptor` reports the error,
and tries again after PAUSE_S; clients wait in the kernel's backlog meanwhile.
"""

import asyncio
import functools
import socket
from collections.abc import Callable, Coroutine
from typing import Any

AT_ONCE = 8
PAUSE_S = 1.0
"""The wait after a failed accept, as in asyncio's own servers."""

Receive = Callable[[socket.socket, Any], Coroutine[None, None, None]]
"""Hands an accepted socket and its peer's address to a protocol.  If it raises, the socket is closed."""


class Acceptor:
    """Owns a listening socket: accepts its connections, and closes it at the end."""

    def __init__(self, bound: socket.socket, receive: Receive, on_error: Callable[[OSError], None]) -> None:
        """Begin to accept.  `on_error` gets the error of a failed accept, before the pause."""
        bound.setblocking(False)  # noqa: FBT003 - the socket's own signature
        self._bound, self._receive, self._on_error = bound, receive, on_error
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._go_on()

    async def close(self) -> None:
        """Stop accepting, and close sockets that no protocol has yet.  Idempotent."""
        if self._pause is not None:
            self._pause.cancel()
        if self._bound.fileno() >= 0:
            self._loop.remove_reader(self._bound)
        for opening in self._opening:
            opening.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        self._bound.close()

    def _go_on(self) -> None:
        # Not loop.sock_accept, which registers the socket with the kernel anew for each connection.
        self._loop.add_reader(self._bound, self._accept)

    def _accept(self) -> None:
        """Accept the connections that wait, but only some, so that open ones have their turn."""
        for _ in range(AT_ONCE):
            try:
                accepted, peer = self._bound.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return  # none is left, or another process was first, or the client is gone
            except OSError as error:
                self._loop.remove_reader(self._bound)
                self._pause = self._loop.call_later(PAUSE_S, self._go_on)
                self._on_error(error)
                return
            accepted.setblocking(False)  # noqa: FBT003 - as above
            opening = self._loop.create_task(self._receive(accepted, peer))
            self._opening.add(opening)
            opening.add_done_callback(functools.partial(self._opened, accepted))

    def _opened(self, accepted: socket.socket, opening: "asyncio.Task[None]") -> None:
        self._opening.discard(opening)
        # Not in the coroutine: a task that is cancelled before its first step runs no `finally`.
        error = None if opening.cancelled() else opening.exception()
        if opening.cancelled() or error is not None:
            accepted.close()
        if error is not None and not isinstance(error, OSError):
            self._loop.call_exception_handler({"message": "accepting", "exception": error})
