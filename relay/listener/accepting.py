"""Accepting connections on one socket, also where there is no descriptor for one.

`loop.create_server` will not do: without a descriptor, asyncio logs a traceback for each of a
backlog's tries, and uvloop asks the kernel again and again, at the cost of a whole processor.
Here that is told once, and tried again after PAUSE_S; clients wait in the kernel meanwhile.
"""

import asyncio
import functools
import socket
from collections.abc import Callable, Coroutine
from typing import Any

PAUSE_S = 1.0
"""After accept failed, as asyncio's own servers wait."""

Receive = Callable[[socket.socket, Any], Coroutine[None, None, None]]
"""Gives an accepted socket, with its peer's address, to a protocol.  If it raises, the socket is closed."""


class Door:
    """Takes connections on a listening socket, which it closes in the end."""

    def __init__(self, bound: socket.socket, receive: Receive, on_error: Callable[[OSError], None]) -> None:
        """Accept from now on.  `on_error` is told why there is a pause."""
        bound.setblocking(False)  # noqa: FBT003 - the socket's own signature
        self._bound, self._receive, self._on_error = bound, receive, on_error
        self._tasks = {asyncio.get_running_loop().create_task(self._accept())}

    async def close(self) -> None:
        """Accept no more, and drop what no protocol has yet.  Idempotent."""
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
            # Open connections have their turn in between.
            await asyncio.sleep(0)

    def _opened(self, accepted: socket.socket, opening: "asyncio.Task[None]") -> None:
        self._tasks.discard(opening)
        # Not in the coroutine: cancelled before its first step, it would not close the socket.
        error = None if opening.cancelled() else opening.exception()
        if opening.cancelled() or error is not None:
            accepted.close()
        if error is not None and not isinstance(error, OSError):
            asyncio.get_running_loop().call_exception_handler({"message": "accepting", "exception": error})
