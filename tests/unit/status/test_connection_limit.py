"""Connections to the status port are few, and the oldest goes first."""

import asyncio
import contextlib
import io
import socket
from collections.abc import AsyncIterator

from aiohttp import web

from relay.policy.units import HostPort
from relay.status.http import ConnectionLimit
from relay.telemetry.events import Events
from tests.fakes.clock import FakeClock

ASK = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def answer(_request: web.Request) -> web.Response:
    return web.Response(body=bytes(10_000_000))


@contextlib.asynccontextmanager
async def serving(most: int) -> AsyncIterator[HostPort]:
    limit = ConnectionLimit(Events(io.StringIO(), "text", FakeClock()), "http", most=most)
    app = web.Application()
    app.add_routes([web.get("/", answer)])
    bound = await limit.receive(app, lambda: socket.create_server(("127.0.0.1", 0)))
    try:
        yield HostPort(*bound.getsockname())
    finally:
        await limit.close()


async def told_until_the_end(client: Client) -> bytes:
    told = b""
    with contextlib.suppress(ConnectionError):
        told = await client[0].read()
    client[1].close()
    return told


async def test_one_too_many_costs_the_oldest() -> None:
    async with serving(most=2) as address:
        first, second, third = [await asyncio.open_connection(address.host, address.port) for _ in range(3)]
        third[1].write(ASK)
        second[1].write(ASK)

        assert await told_until_the_end(first) == b""
        for client in (second, third):
            assert (await told_until_the_end(client)).startswith(b"HTTP/1.1 200 ")
