"""A transport in memory: octets come when a target says so, and time is counted in turns of the loop."""

import asyncio
from collections.abc import Callable, Sequence

TURNS_A_PIECE = 60
"""Turns of the loop after which a session has answered all that one piece can ask for, and waits again."""


class MemoryTransport(asyncio.Transport):
    """Keeps what a protocol writes, and tells the protocol of its close."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__({"peername": ("127.0.0.1", 40000)})
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._has_closed = False
        self.sent = bytearray()
        self.wants_more = True
        """False while the protocol pauses reading."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._has_closed:
            self.sent += data

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del high, low

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def pause_reading(self) -> None:
        self.wants_more = False

    def resume_reading(self) -> None:
        self.wants_more = True

    def is_closing(self) -> bool:
        return self._has_closed

    def close(self) -> None:
        if not self._has_closed:
            self._has_closed = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until(is_over: Callable[[], bool], most: int) -> None:
    """Let other tasks run until `is_over`.  Raises AssertionError after `most` turns: something hangs."""
    for _ in range(most):
        if is_over():
            return
        await asyncio.sleep(0)
    raise AssertionError(f"still not over after {most} turns of the loop")


async def deliver(
    transport: MemoryTransport, protocol: asyncio.Protocol, pieces: Sequence[bytes], pauses: Sequence[int]
) -> None:
    for piece, pause in zip(pieces, pauses, strict=True):
        await until(lambda: transport.wants_more or transport.is_closing(), TURNS_A_PIECE)
        if transport.is_closing():
            return
        if piece:
            protocol.data_received(piece)
        await turns(pause)
    if not transport.is_closing() and not protocol.eof_received():
        transport.close()
