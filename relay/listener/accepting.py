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
MOST_AT_ONCE = 16
"""In one turn of the loop: open connections have their turn in between."""

Receive = Callable[[socket.socket, Any], Coroutine[None, None, None]]
"""Gives an accepted socket, with its peer's address, to a protocol.  If it raises, the socket is closed."""


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
        self._bound, self._receive, self._on_error, self._pause_s = bound, receive, on_error, pause_s
        self._opening: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._go_on()

    async def close(self) -> None:
        """Accept no more, and drop what no protocol has yet.  Idempotent."""
        if self._pause is not None:
            self._pause.cancel()
        if self._bound.fileno() >= 0:
            self._loop.remove_reader(self._bound.fileno())
            self._bound.close()
        for opening in self._opening:
            opening.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._bound.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            for _ in range(MOST_AT_ONCE):
                accepted, peer = self._bound.accept()
                accepted.setblocking(False)  # noqa: FBT003 - the socket's own signature
                opening = self._loop.create_task(self._receive(accepted, peer))
                self._opening.add(opening)
                opening.add_done_callback(functools.partial(self._opened, accepted))
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            self._loop.remove_reader(self._bound.fileno())
            self._pause = self._loop.call_later(self._pause_s, self._go_on)
            self._on_error(error)

    def _opened(self, accepted: socket.socket, opening: "asyncio.Task[None]") -> None:
        self._opening.discard(opening)
        # Not in the coroutine: cancelled before its first step, it would not close the socket.
        error = None if opening.cancelled() else opening.exception()
        if opening.cancelled() or error is not None:
            accepted.close()
        if error is not None and not isinstance(error, OSError):
            self._loop.call_exception_handler({"message": "accepting", "exception": error})
