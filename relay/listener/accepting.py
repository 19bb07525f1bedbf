"""Accepting connections on one socket, also where there is no descriptor for one.

`loop.create_server` will not do: without a descriptor, asyncio logs a traceback for each of a
backlog's tries, and uvloop asks the kernel again and again, at the cost of a whole processor.
Here that is told once, and tried again after PAUSE_S; clients wait in the kernel meanwhile.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

PAUSE_S = 1.0
"""After accept failed, as asyncio's own servers wait."""

Receive = Callable[[socket.socket, Any], Coroutine[None, None, None]]
"""Owns an accepted socket, given its peer's address, to its end."""


class Door:
    """Takes connections on a listening socket, which it closes in the end."""

    def __init__(self, bound: socket.socket, receive: Receive, on_error: Callable[[OSError], None]) -> None:
        """Accept from now on.  `on_error` is told why there is a pause."""
        bound.setblocking(False)  # noqa: FBT003 - the socket's own signature
        self._bound = bound
        self._receive = receive
        self._on_error = on_error
        self._receiving: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(self._accept())

    async def close(self) -> None:
        """Accept no more; what was accepted has begun, and goes on.  Idempotent."""
        self._accepting.cancel()
        await asyncio.wait([self._accepting])
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
            receiving = loop.create_task(self._receive(accepted, peer))
            self._receiving.add(receiving)
            receiving.add_done_callback(self._receiving.discard)
            # Open connections get their turn, and this one begins: cancelled earlier, it would close nothing.
            await asyncio.sleep(0)
