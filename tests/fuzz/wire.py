"""The foreign side of a connection, in virtual time: it sends pieces, and reads all that comes back."""

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from typing import TypeVar

from tests.fakes.virtual_time import pass_time

PAUSE_S = 0.001
"""In this time a session answers all that one piece can ask for, and waits again."""
Protocol = TypeVar("Protocol", bound=asyncio.Protocol)


async def connected(protocol: Protocol) -> tuple[Protocol, socket.socket]:
    """Connect a protocol; return it and the foreign end."""
    ours, theirs = socket.socketpair()
    await asyncio.get_running_loop().create_connection(lambda: protocol, sock=ours)
    return protocol, theirs


async def exchanged(end: socket.socket, pieces: Sequence[bytes], pauses: Sequence[bool]) -> bytes:
    """Send each piece, with or without a pause behind it, and the end; return all that came back."""
    reader, writer = await asyncio.open_connection(sock=end)
    received = bytearray()

    async def receive() -> None:
        while chunk := await reader.read(65536):
            received.extend(chunk)

    receiving = asyncio.create_task(receive())
    for piece, is_late in zip(pieces, pauses, strict=True):
        writer.write(piece)
        if is_late:
            await pass_time(PAUSE_S)
    writer.write_eof()
    with contextlib.suppress(ConnectionError):  # the session may have closed first
        await receiving
    writer.close()
    return bytes(received)
