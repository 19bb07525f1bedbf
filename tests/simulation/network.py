"""Connections in memory: octets arrive in order, in drawn pieces and after drawn delays, or not at all.

The guarantees are TCP's. No octet is changed, lost in the middle or overtaken. An orderly close arrives
after all octets; a reset may overtake them. A side that does not read makes the other side wait
(`pause_writing`). `cut` loses a connection: both sides learn of it late, or never.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.loop import Life, SimulatedLoop

DELAYS_S = (0.0, 0.0, 0.0002, 0.002, 0.04)
WINDOW_BYTES = 64 * 1024
"""More unread octets than this make the sender wait."""
Serve = Callable[[], asyncio.Protocol]


class Network:
    def __init__(self, loop: "SimulatedLoop") -> None:
        self._loop = loop
        self._servers: dict[int, tuple[Serve, contextvars.Context]] = {}
        self._reaching: dict[int, int] = {}
        self._open: list[Transport] = []

    def serve(self, port: int, serve: Serve) -> None:
        """Give each connection to this port a protocol made by `serve`, in the current context."""
        self._servers[port] = serve, contextvars.copy_context()

    def stop_serving(self, port: int) -> None:
        self._servers.pop(port, None)

    async def reach(self, fd: int, port: int) -> None:
        """Connect as connect(2) does. Raises ConnectionRefusedError if no process serves the port."""
        await asyncio.sleep(self._loop.rng.choice(DELAYS_S))
        if port not in self._servers:
            raise ConnectionRefusedError(111, "Connection refused")
        self._reaching[fd] = port

    def reached(self, fd: int) -> int:
        return self._reaching.pop(fd)

    def connect(self, port: int, protocol: asyncio.BaseProtocol) -> "Transport | None":
        """Connect a protocol, in the current context, to the server of this port; None if there is none."""
        server = self._servers.get(port)
        if server is None:
            return None
        serve, context = server
        other = context.copy().run(serve)
        ours = Transport(self._loop, protocol, contextvars.copy_context())
        theirs = Transport(self._loop, other, context.copy())
        ours.peer, theirs.peer = theirs, ours
        self._open = [each for each in self._open if not each.is_lost] + [ours, theirs]
        for each in (ours, theirs):
            each.begin()
        return ours

    def lose(self, life: "Life") -> None:
        """Close the connections and listening ports of a dead process, as the kernel does."""
        self._servers = {
            port: (serve, context)
            for port, (serve, context) in self._servers.items()
            if not _is_of(life, context)
        }
        for each in self._open:
            if _is_of(life, each.context):
                each.die()

    def cut(self, *, is_silent: bool) -> None:
        for each in self._open:
            each.cut(is_silent=is_silent)


def _is_of(life: "Life", context: contextvars.Context) -> bool:
    return any(value is life for value in context.values())


class Transport(asyncio.Transport):
    """One end of a connection."""

    peer: "Transport"

    def __init__(
        self, loop: "SimulatedLoop", protocol: asyncio.BaseProtocol, context: contextvars.Context
    ) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self._loop = loop
        self._rng = loop.rng
        self._protocol: Any = protocol
        self.context = context
        self._arrives_at = 0.0
        """The time at which the last piece sent by this end arrives."""
        self._under_way: deque[bytes | None] = deque()
        """Pieces sent by this end that have not arrived; None is the end."""
        self._unread = 0
        """Octets sent by this end that the other end has not read."""
        self._arrived: deque[bytes | None] = deque()
        """Pieces that this end has not read; None is the end."""
        self._is_reading = True
        self._is_paused = False
        self._is_closing = False
        self._has_sent_end = False
        self.is_cut = False
        """Nothing arrives any more."""
        self.is_lost = False
        """`connection_lost` was called, or will never be called."""

    def begin(self) -> None:
        self._call(self._protocol.connection_made, self)

    # asyncio.Transport.

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._call(self._take)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0 if self._unread <= WINDOW_BYTES else self._unread - WINDOW_BYTES

    def write(self, data: Any) -> None:
        octets = bytes(data)
        if not octets or self._is_over() or self._has_sent_end:
            return
        if self.peer.is_lost:
            # The kernel answers octets for a closed socket by a reset.
            self._later(self._reset)
            return
        self._unread += len(octets)
        for piece in self._pieces(octets):
            self._send(piece)
        if self._unread > WINDOW_BYTES and not self._is_paused:
            self._is_paused = True
            self._call(self._protocol.pause_writing)

    def write_eof(self) -> None:
        if not self._has_sent_end and not self._is_over():
            self._has_sent_end = True
            self._send(None)

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        if not self._has_sent_end and not self.is_lost:
            self._has_sent_end = True
            self._send(None)
        self._call(self._lose, None)

    def abort(self) -> None:
        if self.is_lost:
            return
        self._is_closing = True
        self._has_sent_end = True
        self.peer._later(self.peer._reset)
        self._call(self._lose, None)

    # Calls by the other side and by the simulation.

    def die(self) -> None:
        """Close as the kernel does for a killed process."""
        if self.is_lost:
            return
        self.is_lost = self._is_closing = True
        if self._arrived:
            # Unread octets cause a reset instead of an orderly end (RFC 2525, 2.17).
            self.peer._later(self.peer._reset)
        elif not self._has_sent_end:
            self._has_sent_end = True
            self._send(None)

    def cut(self, *, is_silent: bool) -> None:
        self.is_cut = True
        if not is_silent:
            self._later(self._reset)

    # Internals.

    def _is_over(self) -> bool:
        return self.is_lost or self.is_cut or (self._is_closing and self._has_sent_end)

    def _pieces(self, octets: bytes) -> list[bytes]:
        if len(octets) < 2 or self._rng.random() < 0.7:
            return [octets]
        cuts = sorted(self._rng.randrange(1, len(octets)) for _ in range(self._rng.choice((1, 2))))
        return [octets[start:end] for start, end in zip([0, *cuts], [*cuts, len(octets)], strict=True)]

    def _send(self, piece: bytes | None) -> None:
        self._arrives_at = max(self._arrives_at, self._loop.time()) + self._rng.choice(DELAYS_S)
        self._under_way.append(piece)
        # Pieces keep their order even at one instant, and arrive even after the sender has died.
        self._at(self._arrives_at, self._arrive)

    def _arrive(self) -> None:
        piece, peer = self._under_way.popleft(), self.peer
        if not peer.is_lost and not peer.is_cut:
            peer._arrived.append(piece)
            # A killed process takes no step, so the piece stays unread.
            peer._call(peer._take)

    def _at(self, when: float, function: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_at(when, function, context=contextvars.Context())

    def _take(self) -> None:
        while self._arrived and self._is_reading and not self.is_lost and not self._is_closing:
            piece = self._arrived.popleft()
            if piece is None:
                if not self._protocol.eof_received():
                    self.close()
                return
            self._protocol.data_received(piece)
            self.peer._taken(len(piece))
        if self._is_closing:
            self._arrived.clear()

    def _taken(self, count: int) -> None:
        self._unread -= count
        if self._is_paused and self._unread <= WINDOW_BYTES // 2 and not self.is_lost:
            self._is_paused = False
            self._call(self._protocol.resume_writing)

    def _later(self, function: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_later(self._rng.choice(DELAYS_S), function, context=self.context)

    def _reset(self) -> None:
        self._is_closing = True
        self._lose(ConnectionResetError(104, "Connection reset by peer"))

    def _lose(self, error: Exception | None) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._protocol.connection_lost(error)

    def _call(self, function: Callable[..., object], *args: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon(function, *args, context=self.context)
