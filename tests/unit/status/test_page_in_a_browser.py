"""The status page in Chromium: on a phone and a desk, live."""

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from relay.policy.units import HostPort
from relay.status.http import StatusServer
from relay.status.snapshot import LaneStatus, MessageView, QueueState, Snapshot, UpstreamState
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics
from tests.fakes.clock import FakeClock
from tests.fakes.snapshots import AT_NS, a_limit, a_message, a_snapshot, an_upstream, routes
from tests.system.demand import demand, missing_program
from tests.unit.status.browser import PROGRAM, Browser, browsing

pytestmark = pytest.mark.full

LONG = "454 4.7.0 https://support.example.net/" + "a-long-word-without-a-blank" * 8
SETTLED = """new Promise(done => {
  const look = () => document.body.innerText.includes(%r) ? done(true) : setTimeout(look, 20);
  look();
})"""

# The head of a table that is stacked is there for screen readers alone.
TOO_WIDE = """[...document.querySelectorAll('body *:not(thead *)')]
  .filter(each => each.getBoundingClientRect().right > %d + 1).map(each => each.outerHTML)"""


def a_full_page() -> Snapshot:
    paused = an_upstream(state=UpstreamState.PAUSED, because=LONG, paused_until_ns=AT_NS + 10**9)
    limits = (a_limit(), a_limit(used=7, count=10_000, opens_in_s=None))
    stopped = an_upstream(state=UpstreamState.STOPPED, because=LONG)
    upstreams = (an_upstream(limits=limits), replace(paused, name="ses"), replace(stopped, name="m365"))
    lanes = (LaneStatus("resets", 70.0, 50, 3), LaneStatus("lists", 30.0, None, 397))
    return replace(a_snapshot(), upstreams=upstreams, lanes=lanes, routes=routes())


class World:
    def __init__(self) -> None:
        self.shown = a_full_page()
        waiting, deferred = a_message(), a_message(state=QueueState.DEFERRED, reason=LONG)
        waiting = replace(waiting, upstream="ses", upstream_because="failover: isp is down")
        self.comes: list[MessageView] | None = [waiting, deferred]
        self.browser: Browser
        self.url = ""

    def snapshot(self) -> Snapshot:
        return self.shown

    def coming(self) -> list[MessageView]:
        if self.comes is None:
            raise RuntimeError("the next page fails")
        return self.comes

    def why_not_ready(self) -> str:
        return ""


@asynccontextmanager
async def looking(folder: Path) -> AsyncIterator[World]:
    demand(missing_program(PROGRAM))
    world, clock = World(), FakeClock()

    events = Events(io.StringIO(), "text", clock)
    server = StatusServer(HostPort("127.0.0.1", 0), world, Metrics(clock).registry, events)
    address = await server.start()
    try:
        async with browsing(folder) as world.browser:
            world.url = f"http://{address}/"
            await world.browser.look_like(width=1280)
            await world.browser.open(world.url)
            yield world
    finally:
        await server.stop()


async def test_a_phone_and_a_desk_show_all_of_it(tmp_path: Path) -> None:
    async with looking(tmp_path) as world:
        for width in 390, 1280:
            await world.browser.look_like(width=width)
            await world.browser.open(world.url)
            assert await world.browser.ask("document.documentElement.scrollWidth") <= width
            assert await world.browser.ask(TOO_WIDE % width) == []
        assert world.browser.complaints == []


async def test_what_changes_appears_in_its_place(tmp_path: Path) -> None:
    async with looking(tmp_path) as world:
        browser = world.browser
        await browser.ask("window.first = document.querySelector('h1'); window.first.id = 'kept'; 0")

        world.shown = replace(world.shown, refusing_because="no room on the disk", at_ns=AT_NS + 10**9)

        assert await browser.ask(SETTLED % "refusing mail: no room on the disk")
        assert await browser.ask("document.querySelector('h1') === window.first"), "it is not made anew"
        assert await browser.ask("document.getElementById('lost').hidden")
        assert browser.complaints == []

        world.comes = None

        assert await browser.ask(SETTLED % "these numbers are old")
