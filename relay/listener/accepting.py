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

    def __init__(
        self,
        bound: socket.socket,
        receive: Receive,
        on_error: Callable[[OSError], None],
        *,
        pause_s: float = PAUSE_S,
    ) -> None:
        """Accept from now on.  `on_error` is told why there is a pause."""
        bound.setblocking(False)  # noqa: FBT003 - the socket's own signature
        self._loop = asyncio.get_running_loop()
        self._bound = bound
        self._receive = receive
        self._on_error = on_error
        self._pause_s = pause_s
        self._receiving: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._go_on()

    async def close(self) -> None:
        """Accept no more; what was accepted has begun, and goes on.  Idempotent."""
        if self._pause is not None:
            self._pause.cancel()
        if self._bound.fileno() >= 0:
            self._loop.remove_reader(self._bound.fileno())
            self._bound.close()
        # A coroutine that is cancelled before its first step could not close its socket.
        await asyncio.sleep(0)

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._bound.fileno(), self._accept)

    def _accept(self) -> None:
        """Accept one: open connections have their turn before the next."""
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
        receiving = self._loop.create_task(self._receive(accepted, peer))
        self._receiving.add(receiving)
        receiving.add_done_callback(self._receiving.discard)
