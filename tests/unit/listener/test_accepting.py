"""Accepting connections where there is no descriptor for one: told once, waited for, gone on with."""

import asyncio
import errno
import os
import socket

import pytest

from relay.listener.accepting import Door


class Listening(socket.socket):
    """A listening socket that gives out no connection for a while."""

    lacks = 3

    def accept(self) -> tuple[socket.socket, object]:
        if self.lacks:
            self.lacks -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


async def greet(accepted: socket.socket, _peer: object) -> None:
    await asyncio.get_running_loop().sock_sendall(accepted, b"hello")
    accepted.close()


async def test_who_came_meanwhile_is_let_in_after_the_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.listener.accepting.PAUSE_S", 0.001)
    bound = Listening()
    bound.bind(("127.0.0.1", 0))
    bound.listen()
    errors: list[OSError] = []
    door = Door(bound, greet, errors.append)
    reader, writer = await asyncio.open_connection(*bound.getsockname())

    assert await reader.read() == b"hello"
    assert len(errors) == 3
    writer.close()
    await door.close()
