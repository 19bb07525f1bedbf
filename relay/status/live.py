"""Server-sent events: each new picture of the page, for browsers that stay (HTML, 9.2).

Guarantees: a picture is made once for all readers, every `seconds` and only while somebody
reads; at most `most` readers.  A slow reader gets the newest picture when it has read the last
one, and nothing is kept for it meanwhile.  Does not: know HTTP connections (`visitors`).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

RETRY_MS = 2_000
"""After which a browser that lost the stream asks again."""


class Live:
    """For one event loop."""

    def __init__(
        self,
        make: Callable[[], Awaitable[str]],
        on_fault: Callable[[Exception], None],
        seconds: float,
        *,
        most: int,
    ) -> None:
        """`make` returns a picture; where it fails the streams end, and the browsers ask again."""
        self._make = make
        self._on_fault = on_fault
        self._seconds, self._most = seconds, most
        self._readers = 0
        self._next: asyncio.Future[str] | None = None
        self._maker: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        return self._readers >= self._most

    @contextlib.contextmanager
    def reading(self) -> Iterator[AsyncIterator[bytes]]:
        """Take a place, and yield each picture from the next one on as an event, until `close` or a fault."""
        self._readers += 1
        try:
            yield self._events()
        finally:
            self._readers -= 1

    async def _events(self) -> AsyncIterator[bytes]:
        if self._maker is None:
            self._next = asyncio.get_running_loop().create_future()
            self._maker = asyncio.create_task(self._keep_making())
        while self._next is not None:
            # Shielded: a reader that leaves must not cancel what the others wait for.
            if not (picture := await asyncio.shield(self._next)):
                return
            yield event(picture)

    def close(self) -> None:
        """End all streams."""
        if self._maker is not None:
            self._maker.cancel()
            self._end()

    async def _keep_making(self) -> None:
        while self._readers:
            try:
                picture = await self._make()
            except Exception as error:  # noqa: BLE001 - a page that fails must be seen in the log
                self._on_fault(error)
                break
            self._publish(picture)
            await asyncio.sleep(self._seconds)
        self._end()

    def _publish(self, picture: str) -> None:
        waited_for, self._next = self._next, asyncio.get_running_loop().create_future()
        if waited_for is not None:
            waited_for.set_result(picture)

    def _end(self) -> None:
        waited_for, self._next, self._maker = self._next, None, None
        if waited_for is not None:
            waited_for.set_result("")


def event(text: str) -> bytes:
    lines = "".join(f"data: {line}\n" for line in text.splitlines())
    return f"retry: {RETRY_MS}\n{lines}\n".encode()
