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
        self._tasks = {asyncio.get_running_loop().create_task(self._accept())}

    async def close(self) -> None:
        """Stop accepting, and close sockets that no protocol has yet.  Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._bound.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(self._bound)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._on_error(error)
                await asyncio.sleep(PAUSE_S)
                continue
            opening = loop.create_task(self._receive(accepted, peer))
            self._tasks.add(opening)
            opening.add_done_callback(functools.partial(self._opened, accepted))
            # Let open connections run between two accepts.
            await asyncio.sleep(0)

    def _opened(self, accepted: socket.socket, opening: "asyncio.Task[None]") -> None:
        self._tasks.discard(opening)
        # Not in the coroutine: a task that is cancelled before its first step runs no `finally`.
        error = None if opening.cancelled() else opening.exception()
        if opening.cancelled() or error is not None:
            accepted.close()
        if error is not None and not isinstance(error, OSError):
            asyncio.get_running_loop().call_exception_handler({"message": "accepting", "exception": error})
