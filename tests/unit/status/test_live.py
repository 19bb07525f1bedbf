"""The stream of the page: one picture for all, few readers, and none that holds up another."""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import pytest

from relay.policy.units import HostPort
from relay.status.http import STREAMS, StatusServer
from relay.status.live import Live, event
from relay.status.snapshot import NOTHING_COMING, Snapshot
from relay.status.visitors import VisitorBounds
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics
from tests.fakes.clock import FakeClock
from tests.fakes.snapshots import AT_NS, a_snapshot

QUICK = VisitorBounds(8, part_seconds=0)


class Maker:
    """Makes as many pictures as it was allowed."""

    def __init__(self, allowed: int) -> None:
        self.made = 0
        self.faults: list[Exception] = []
        self.permits = asyncio.Semaphore(allowed)

    async def __call__(self) -> str:
        await self.permits.acquire()
        self.made += 1
        return f"picture {self.made}"


def a_live(maker: Maker, most: int = 9) -> Live:
    return Live(maker, maker.faults.append, 0, most=most)


async def test_all_readers_share_one_picture() -> None:
    stream = a_live(Maker(1))
    with stream.reading() as first, stream.reading() as second:
        seen = await asyncio.gather(anext(first), anext(second))
    stream.close()

    assert list(seen) == [event("picture 1")] * 2


async def test_a_reader_that_was_slow_gets_the_newest_picture() -> None:
    maker = Maker(1)
    stream = a_live(maker)
    with stream.reading() as slow, stream.reading() as fast:
        await asyncio.gather(anext(slow), anext(fast))
        for number in (2, 3):
            maker.permits.release()
            assert await anext(fast) == event(f"picture {number}")
        maker.permits.release()
        assert await anext(slow) == event("picture 4")
    stream.close()


class World:
    def __init__(self) -> None:
        self.shown = a_snapshot()
        self.base = ""

    def snapshot(self) -> Snapshot:
        return self.shown


async def nothing_to_foresee() -> None:
    pass


@contextlib.asynccontextmanager
async def serving(bounds: VisitorBounds = QUICK) -> AsyncIterator[World]:
    world, clock = World(), FakeClock()
    server = StatusServer(
        HostPort("127.0.0.1", 0),
        world.snapshot,
        nothing_to_foresee,
        Metrics(clock).registry,
        Events(io.StringIO(), "text", clock),
        coming=lambda: NOTHING_COMING,
        bounds=bounds,
    )
    address = await server.start()
    world.base = f"http://{address}"
    try:
        yield world
    finally:
        await server.stop()


async def test_the_stream_shows_what_changed() -> None:
    async with serving() as world, aiohttp.ClientSession() as session:
        async with session.get(world.base + "/live") as response:
            assert response.content_type == "text/event-stream"
            assert response.headers["Content-Security-Policy"]
            await response.content.readuntil(b"accepting mail")
            world.shown = replace(world.shown, refusing_because="no room", at_ns=AT_NS + 1)
            await response.content.readuntil(b"refusing mail: no room")
        async with session.head(world.base + "/live") as response:
            assert response.status == 200


async def test_streams_leave_places_for_other_requests() -> None:
    async with (
        serving() as world,
        aiohttp.ClientSession() as session,
        contextlib.AsyncExitStack() as stack,
    ):
        for _ in range(QUICK.most // STREAMS):
            response = await stack.enter_async_context(session.get(world.base + "/live"))
            await response.content.readuntil(b"\n\n")

        async with session.get(world.base + "/live") as response:
            assert response.status == 503
        async with session.get(world.base + "/status.json") as response:
            assert json.loads(await response.text())["hostname"]


@pytest.mark.full
async def test_a_stream_that_nobody_reads_is_closed() -> None:
    async with (
        serving(VisitorBounds(4, answer_seconds=0.05, part_seconds=0)) as world,
        aiohttp.ClientSession() as session,
    ):
        host, port = world.base.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=2**10)
        writer.write(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readline()
        # The stream's reader stops at its limit; the one place comes free once the server lets go.
        statuses: list[int] = []
        while 200 not in statuses:
            async with session.get(world.base + "/live") as response:
                statuses.append(response.status)
        assert set(statuses) <= {200, 503}
        writer.close()
