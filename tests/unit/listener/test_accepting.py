"""Accepting connections where there is no descriptor for one: told once, waited for, gone on with."""

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import AsyncIterator
from typing import cast

import pytest

from relay.listener import accepting
from relay.listener.accepting import AT_ONCE, Door, into_protocol


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
    entrance = Door(bound, into_protocol(lambda _peer: Greeting()), errors.append, waits_for_client=False)
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


async def test_who_came_meanwhile_is_let_in_after_the_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "PAUSE_S", 0.001)
    async with listening(lacks=3) as (bound, errors):
        assert await greeted(bound) == b"hello"

        # One question a pause, and one that found nobody more.
        assert len(errors) == 3
        assert bound.asked == 5


async def test_without_a_descriptor_the_kernel_is_asked_once_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "PAUSE_S", 3600.0)
    async with listening(lacks=1000) as (bound, errors):
        _, writer = await asyncio.open_connection(*bound.getsockname())
        for _ in range(50):
            await asyncio.sleep(0)

        assert (bound.asked, len(errors)) == (1, 1)
        writer.close()


async def test_those_inside_get_a_turn_between_many_who_come() -> None:
    async with listening() as (bound, _):
        accepted = [await asyncio.open_connection(*bound.getsockname()) for _ in range(AT_ONCE)]
        assert await asyncio.gather(*(greeted(bound) for _ in range(3 * AT_ONCE))) == [b"hello"] * 3 * AT_ONCE
        for _, writer in accepted:
            writer.close()


async def test_a_closed_door_accepts_nobody_and_may_be_closed_again() -> None:
    async with listening() as (bound, _):
        address = bound.getsockname()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_connection_being_made_ends_when_the_door_is_left(has_begun: bool) -> None:
    begun = asyncio.Event()

    async def never(accepted: socket.socket, _peer: object) -> None:
        with accepted:
            begun.set()
            await asyncio.get_running_loop().create_future()

    bound = socket.create_server(("127.0.0.1", 0))
    entrance = Door(bound, never, lambda _: None, waits_for_client=True)
    reader, writer = await asyncio.open_connection(*bound.getsockname())
    if has_begun:
        await begun.wait()
    else:
        entrance._accept()
    await entrance.break_off()

    assert await reader.read() == b""
    assert not entrance._opening
    writer.close()


async def test_a_connection_made_as_the_door_is_left_is_whole() -> None:
    """Cancelled in its making it would be closed behind its protocol, which waits for that to be told."""
    made: list[asyncio.Transport] = []

    class Silent(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(cast(asyncio.Transport, transport))

    bound = socket.create_server(("127.0.0.1", 0))
    entrance = Door(bound, into_protocol(lambda _peer: Silent()), lambda _: None, waits_for_client=False)
    with socket.create_connection(bound.getsockname()) as client:
        entrance._accept()
        # In a task, as at a stop: one turn of the loop later.
        await asyncio.create_task(entrance.break_off())

        made[0].write(b"sorry")
        made[0].close()
        client.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(client, 100) == b"sorry"
