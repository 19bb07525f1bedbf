"""Connections to the status port: few, short, and the one that was idle for longest goes first."""

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from relay.policy.units import HostPort
from relay.status.http import StatusServer
from relay.status.snapshot import NOTHING_COMING
from relay.status.visitors import BOUNDS, VisitorBounds
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics
from tests.fakes.clock import FakeClock
from tests.fakes.snapshots import a_snapshot

ASK = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
METRICS = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def nothing_to_foresee() -> None:
    pass


@contextlib.asynccontextmanager
async def serving(
    foresee: Callable[[], Awaitable[None]] = nothing_to_foresee, bounds: VisitorBounds = BOUNDS
) -> AsyncIterator[HostPort]:
    clock = FakeClock()
    events = Events(io.StringIO(), "text", clock)
    metrics = Metrics(clock)
    server = StatusServer(
        HostPort("127.0.0.1", 0),
        a_snapshot,
        foresee,
        metrics.registry,
        events,
        coming=lambda: NOTHING_COMING,
        bounds=bounds,
    )
    address = await server.start()
    try:
        yield address
    finally:
        await server.stop()


async def connect(address: HostPort) -> Client:
    return await asyncio.open_connection(address.host, address.port)


async def ask(client: Client) -> bytes:
    client[1].write(ASK)
    return await client[0].readuntil(b"ok\n")


async def told_until_the_end(client: Client) -> bytes:
    """Return what came until the other side closed."""
    told = b""
    with contextlib.suppress(ConnectionError):
        told = await client[0].read()
    client[1].close()
    return told


async def test_one_too_many_costs_the_one_that_was_idle_for_longest() -> None:
    async with serving() as address:
        first = await connect(address)
        second = await connect(address)
        await ask(second)
        await ask(first)
        others = [await connect(address) for _ in range(BOUNDS.most - 1)]
        await ask(others[-1])

        assert await told_until_the_end(second) == b""
        assert (await ask(first)).startswith(b"HTTP/1.1 200 ")
        for _, writer in (first, *others):
            writer.close()


async def test_a_request_has_to_be_there_soon() -> None:
    async with serving(bounds=VisitorBounds(request_seconds=0.01)) as address:
        silent, slow = await connect(address), await connect(address)
        slow[1].write(ASK[:-2])

        assert [await told_until_the_end(client) for client in (silent, slow)] == [b"", b""]


async def test_an_answer_has_to_be_read_in_time() -> None:
    async with serving(bounds=VisitorBounds(answer_seconds=0.05)) as address:
        client = await connect(address)
        client[1].transport.pause_reading()  # type: ignore[attr-defined]  # a stream's transport reads
        with pytest.raises(ConnectionError):
            await ask_without_reading(client[1])
        client[1].close()


async def ask_without_reading(writer: asyncio.StreamWriter) -> None:
    """Go on until the other side lets go, which raises ConnectionError."""
    while True:
        writer.write(METRICS)
        await writer.drain()
        await asyncio.sleep(0)
