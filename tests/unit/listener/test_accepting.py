"""Accepting connections where there is no descriptor for one: told once, waited for, gone on with."""

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import AsyncIterator
from typing import cast

from relay.listener.accepting import Door, into_protocol


class Greeting(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)  # uvloop's are none by inheritance
        stream.write(b"hello")
        stream.close()


class Listening(socket.socket):
    """A listening socket that gives out no connection for a while."""

    lacks = 0
    asked = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.asked += 1
        if self.lacks:
            self.lacks -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


@contextlib.asynccontextmanager
async def listening(lacks: int = 0) -> AsyncIterator[tuple[Listening, list[OSError]]]:
    bound = Listening()
    bound.bind(("127.0.0.1", 0))
    bound.listen()
    bound.lacks = lacks
    errors: list[OSError] = []
    receive = into_protocol(lambda _peer: Greeting())
    entrance = Door(bound, receive, errors.append, waits_for_client=False, pause_s=0.001)
    try:
        yield bound, errors
    finally:
        entrance.close()


async def greeted(bound: socket.socket) -> bytes:
    reader, writer = await asyncio.open_connection(*bound.getsockname())
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_who_came_meanwhile_is_let_in_after_the_pauses() -> None:
    async with listening(lacks=3) as (bound, errors):
        assert await greeted(bound) == b"hello"

        # One question a pause, and one that found nobody more.
        assert len(errors) == 3
        assert bound.asked == 5
