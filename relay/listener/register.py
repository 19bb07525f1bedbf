"""The open connections of a listener, and one timer for the deadlines of them all.

A timer per wait would cost more than the waits do: each connection only writes down
when it will have waited too long, and one call per tick looks at them.  A deadline is
therefore kept a little late, by at most a quarter of the shortest timeout or a second.
Nothing runs while no connection is open.
"""

import asyncio
from collections.abc import Iterator

from relay.listener.wire import ClientConnection

LONGEST_TICK_S = 1.0
SHORTEST_TICK_S = 0.01


class Register:
    """Who is connected.  Used from one event loop."""

    def __init__(self, shortest_timeout_s: float) -> None:
        self._tick_s = min(LONGEST_TICK_S, max(SHORTEST_TICK_S, shortest_timeout_s / 4))
        self._open: set[ClientConnection] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[ClientConnection]:
        return iter(tuple(self._open))

    def add(self, connection: ClientConnection) -> None:
        """Watch over the deadline of a connection."""
        self._open.add(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def remove(self, connection: ClientConnection) -> None:
        """Forget a connection that has ended."""
        self._open.discard(connection)

    def stop(self) -> None:
        """Let go of the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        if not self._open:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in tuple(self._open):
            if connection.deadline <= now:
                connection.expire()
        self._timer = loop.call_later(self._tick_s, self._tick)
