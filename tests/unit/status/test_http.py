"""The status pages over a real socket: read-only, escaped, only for this server's names; their content."""

import asyncio
import base64
import contextlib
import hashlib
import io
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.policy.units import HostPort
from relay.status import page
from relay.status.collector import SnapshotCollector
from relay.status.http import MOST_CONNECTIONS, StatusServer
from relay.status.page import GAP, MINUTES, Samples
from relay.status.snapshot import (
    PolicyStatus,
    Snapshot,
    UpstreamState,
    to_json,
)
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics
from tests.fakes.clock import FakeClock
from tests.fakes.snapshots import AT_NS, a_limit, a_snapshot, an_upstream
from tests.system.demand import demand, missing_program

PATHS = ["/", "/metrics", "/healthz", "/readyz", "/status.json"]
BROWSER = "chromium-headless-shell"
EVIL = '<script>alert("x")</script>'


class World:
    def __init__(self) -> None:
        self.shown: Snapshot | Exception = a_snapshot()
        self.then: Snapshot | Exception | None = None
        """The snapshot after the first page."""
        self.refuses = ""
        self.takes_seconds = 0.0
        self.spans: list[tuple[float, float]] = []
        """When each snapshot was made: begin and end, in the loop's time."""
        self.log = io.StringIO()
        self.base = ""
        self.session: aiohttp.ClientSession

    def snapshot(self) -> Snapshot:
        time = asyncio.get_running_loop().time
        began_at = time()
        while time() < began_at + self.takes_seconds:
            pass
        self.spans.append((began_at, time()))
        shown, self.shown = self.shown, self.then or self.shown
        if isinstance(shown, Exception):
            raise shown
        return shown

    def why_not_ready(self) -> str:
        return self.refuses

    async def get(
        self, path: str, *, method: str = "GET", headers: dict[str, str] | None = None
    ) -> tuple[int, str, dict[str, str]]:
        async with self.session.request(method, self.base + path, headers=headers) as response:
            return response.status, await response.text(), dict(response.headers)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world, clock = World(), FakeClock()
    events = Events(world.log, "text", clock)
    metrics = Metrics()
    collector = SnapshotCollector(metrics, world.snapshot, events)
    metrics.registry.register(collector)
    address = HostPort("127.0.0.1", 0)
    server = StatusServer(address, world, metrics.registry, events, "Relay.Example.Org")
    world.base = f"http://{await server.start()}"
    try:
        async with aiohttp.ClientSession() as world.session:
            yield world
    finally:
        await server.stop()


async def test_every_path_answers_only_get_and_head_and_forbids_caches_and_scripts(world: World) -> None:
    for path in PATHS:
        status, _, headers = await world.get(path)
        assert status == 200, path
        assert headers["Content-Security-Policy"] == page.POLICY
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert (await world.get(path, method="HEAD"))[:2] == (200, "")
        for method in ("POST", "OPTIONS", "TRACE"):
            status, _, headers = await world.get(path, method=method)
            assert (status, set(headers["Allow"].split(","))) == (405, {"GET", "HEAD"}), path
    status, text, headers = await world.get("/etc/passwd")
    assert (status, text) == (404, "404: Not Found")
    assert headers["Content-Security-Policy"] == page.POLICY


async def test_only_requests_that_name_this_server_are_answered(world: World) -> None:
    """Otherwise any web page that is read on this host could read this one (DNS rebinding)."""
    ours = "localhost:9725 app.localhost 127.0.0.1:9725 192.0.2.7 [::1]:9725 [::1] RELAY.example.org.:80"
    foreign = "evil.example:9725 localhost.evil.example notlocalhost 127.0.0.1.evil.example [::1 [evil]"
    for host in ours.split():
        assert (await world.get("/status.json", headers={"Host": host}))[0] == 200, host
    for host in ("", "127.0.0.1:1:2", "relay.example.org.evil", *foreign.split()):
        for path in PATHS:
            status, text, _ = await world.get(path, headers={"Host": host})
            assert (status, "example.net" in text) == (421, False), host


async def test_metrics_come_in_the_format_that_was_asked_for(world: World) -> None:
    _, text, headers = await world.get("/metrics")
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert 'relay_queue_messages{state="waiting"} 400.0' in text
    _, text, _ = await world.get(
        "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    assert text.endswith("# EOF\n")


async def test_readyz_tells_whether_mail_is_accepted_and_healthz_that_the_loop_runs(world: World) -> None:
    assert (await world.get("/readyz"))[:2] == (200, "ready\n")

    world.refuses = "no room on the disk for <bob@example.com>"
    world.shown = RuntimeError("no snapshot")

    assert (await world.get("/readyz"))[:2] == (503, "no room on the disk for <address>\n")
    assert (await world.get("/healthz"))[:2] == (200, "ok\n")


async def test_pages_take_at_most_a_fifth_of_the_loops_time(world: World) -> None:
    world.takes_seconds, world.spans = 0.01, []
    await asyncio.gather(*(world.get("/") for _ in range(4)))

    assert len(world.spans) == 4
    for (began_at, ended_at), (next_at, _) in pairwise(world.spans):
        assert next_at - ended_at >= 4 * (ended_at - began_at)


async def test_a_page_that_fails_is_500_and_a_line_in_the_log(world: World) -> None:
    world.shown = RuntimeError("secret detail")

    status, text, headers = await world.get("/status.json")

    assert (status, text) == (500, "A fault of the relay; see its log.\n")
    assert headers["Content-Security-Policy"] == page.POLICY
    assert "fault in http: RuntimeError: secret detail" in world.log.getvalue()


async def test_no_page_shows_an_address_or_the_key_of_a_limit(world: World) -> None:
    for address in ("bob@example.com", '"bob,"@example.com', "<bob+x@[192.0.2.1]>", "bob@例.jp"):
        because = f"450 4.4.5 {address}: over quota"
        paused = an_upstream(state=UpstreamState.PAUSED, because=because)
        limit = replace(a_limit(), for_each="user", key="bob")
        proving = replace(paused, held_by=because, proving_after=because, limits=(limit,))
        parked = replace(paused, paused_because="", held_by="limit 2 per sender (<ann@example.net>)")
        world.shown = replace(a_snapshot(refusing_because=because), upstreams=(proving, parked))

        shown = {path: (await world.get(path))[1] for path in PATHS}
        for path, text in shown.items():
            assert not re.search("bob|ann@|list@", text), path
        assert "@" not in shown["/status.json"]
        told = json.loads(shown["/status.json"])["upstreams"][0]["paused_because"]
        assert told == "450 4.4.5 <address>: over quota"
        assert "450 4.4.5 &lt;address&gt;: over quota" in shown["/"]
        assert "waits for limit 2 per sender (&lt;address&gt;)" in shown["/"]


def test_the_page_shows_windows_and_their_past() -> None:
    limits = (a_limit(), a_limit(used=7, count=10_000, opens_in_s=None))
    snapshot = a_snapshot(upstream=an_upstream(limits=limits))
    samples = Samples()
    samples.note(snapshot, 7)

    html = page.render(snapshot, samples)

    for shown in (
        *("last hour: at most 400 waiting", "last day: at most 8 used", "smtp.example.net:587"),
        *("8/8, next slot in 20s", "7/10000, room now", "limit 8 messages per 1m"),
    ):
        assert shown in html


def test_the_page_loads_nothing_and_reloads_itself_without_script() -> None:
    html = page.render(a_snapshot())

    assert not re.search(r"<(?:img|iframe|object|form)|<[^>]* (?:style|src)=", html)
    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in html
    assert "unsafe" not in page.POLICY
    for tag in ("style", "script"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        allowed = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{allowed}'" in page.POLICY


def test_everything_on_the_page_is_escaped() -> None:
    upstream = an_upstream(
        state=UpstreamState.PAUSED, because=EVIL, paused_until_ns=AT_NS, limits=(a_limit(used=9),)
    )
    policy = PolicyStatus(EVIL, AT_NS, last_reload_ok=False, last_error=EVIL, refused_file=EVIL)

    html = page.render(a_snapshot(upstream=upstream, refusing_because=EVIL, policy=policy))

    assert html.count("<script") == 1, "our own"
    assert html.count("&lt;script&gt;alert(") == 4


@pytest.mark.full
@pytest.mark.parametrize(
    ("then", "words"),
    [
        (a_snapshot(refusing_because="no room on the disk"), "refusing mail: no room on the disk"),
        (RuntimeError("the next page fails"), '<p id="lost" role="status">'),
    ],
)
async def test_a_browser_shows_changes_and_a_lost_connection(
    world: World, tmp_path: Path, then: Snapshot | Exception, words: str
) -> None:
    demand(missing_program(BROWSER))
    world.then = then

    browser = await asyncio.create_subprocess_exec(
        *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"),
        *("--virtual-time-budget=12000", "--dump-dom", world.base),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    shown, _ = await browser.communicate()

    assert words in shown.decode()
    assert world.spans


async def test_a_connection_above_the_limit_closes_the_oldest(world: World) -> None:
    address = urlsplit(world.base)
    numbers = range(MOST_CONNECTIONS + 1)
    clients = [await asyncio.open_connection(address.hostname, address.port) for _ in numbers]
    told = dict.fromkeys(numbers, b"")
    for number, (reader, writer) in enumerate(clients):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            told[number] = await reader.read()
        writer.close()

    answered = [number for number, each in told.items() if each.startswith(b"HTTP/1.1 200 ")]
    assert answered == [*numbers[1:]]


KEY = ("isp", "8 messages per 1m")


@given(st.lists(st.tuples(st.integers(0, 3 * MINUTES), st.integers(0, 9)), min_size=1, max_size=30))
def test_the_chart_of_the_day_has_the_highest_number_of_each_minute(looks: list[tuple[int, int]]) -> None:
    samples, highest = Samples(), dict[int, int]()

    for minute, used in sorted(looks, key=lambda look: look[0]):
        samples.note(a_snapshot(upstream=an_upstream(limits=(a_limit(used=used),))), minute)
        highest[minute] = max(used, highest.get(minute, 0))

    last = max(highest)
    expected = [highest.get(minute, GAP) for minute in range(last - MINUTES + 1, last + 1)]
    assert samples.day(KEY) == expected


def test_status_json_has_rfc_3339_instants_and_seconds() -> None:
    shown = json.loads(json.dumps(to_json(a_snapshot())))

    assert shown["at"] == "2025-10-09T08:53:20.000Z"
    assert shown["queue"]["waiting"]["oldest_age_seconds"] == 90.0
    (upstream,) = shown["upstreams"]
    assert upstream["drained_at"] == "2025-10-09T09:43:20.000Z"
    (limit,) = upstream["limits"]
    assert (limit["opens_at"], limit["period_seconds"]) == ("2025-10-09T08:53:40.000Z", 60.0)
