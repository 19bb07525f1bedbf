"""What can be seen over HTTP: /metrics /healthz /readyz /status.json, the page at / and its stream at /live.

Read-only: GET and HEAD, and no address of a correspondent anywhere: numbers, states,
and what upstreams said with addresses removed (`snapshot.public`).  There is no login;
bind it to a loopback or an inner address.  A web page that somebody reads on this host
could reach it by a name that it points here (DNS rebinding), so a `Host` that is
neither an IP address, nor a loopback name, nor one of ours is refused.

/healthz is 200 while the loop turns, whatever else is wrong: what restarts a relay that
is full would not empty it.  /readyz is 503, with the reason, while no mail is accepted.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection
from ipaddress import ip_address
from typing import TypeVar

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from relay.policy.units import HostPort
from relay.status import page
from relay.status.live import Live
from relay.status.samples import Samples
from relay.status.snapshot import Coming, Condition, Snapshot, public, public_coming, to_json
from relay.status.visitors import BACKLOG, BOUNDS, VisitorBounds, Visitors
from relay.telemetry.events import Events

ONE_OF = 5
"""The share of the time that answers may take: mail has four times as long between two of them."""

SAMPLE_SECONDS = 10.0
"""Between two looks at the windows, for the charts: some ten milliseconds each at the worst."""
STREAMS = 4
"""One of so many connections may be a stream of the page."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_Answer = TypeVar("_Answer")

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": page.POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def _bind(address: HostPort) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    return socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)


class StatusServer:
    def __init__(
        self,
        address: HostPort,
        snapshot: Callable[[], Snapshot],
        foresee: Callable[[], Awaitable[None]],
        registry: CollectorRegistry,
        events: Events,
        *,
        coming: Callable[[], Coming],
        names: Collection[str] = (),
        bounds: VisitorBounds = BOUNDS,
    ) -> None:
        """`foresee` is awaited before a snapshot that is to tell when the queue will have drained.

        It is awaited before `coming` as well.

        `names` are host names by which it may be called, beside `localhost` and IP addresses.
        """
        self._address = address
        self._snapshot = snapshot
        self._foresee = foresee
        self._coming = coming
        self._registry = registry
        self._events = events
        self._names = {"localhost", *(name.lower().rstrip(".") for name in names)}
        self._visitors = Visitors(events, "http", bounds)
        self._turn = asyncio.Lock()
        self._samples = Samples()
        self._sampling: asyncio.TimerHandle | None = None
        self._live = Live(
            self._picture_in_turn, self._fault, bounds.part_seconds, most=max(1, bounds.most // STREAMS)
        )
        self._is_stopping = False

    async def start(self) -> HostPort:
        """Return the address with the port that the kernel gave for 0.  Raises OSError."""
        app = web.Application(middlewares=[self._guard])
        app.add_routes(
            [
                web.get("/", self._in_turn(self._page)),
                web.get("/live", self._stream),
                web.get("/metrics", self._in_turn(self._metrics)),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/status.json", self._in_turn(self._status)),
            ]
        )
        # A client that hangs up leaves the line of `_in_turn`, which would grow without end.
        bound = await self._visitors.receive(app, lambda: _bind(self._address), breaks_off=True)
        self._sample()
        host, port = bound.getsockname()[:2]
        return HostPort(host, port)

    async def stop(self) -> None:
        """Wait a moment for responses under way."""
        self._is_stopping = True
        if self._sampling is not None:
            self._sampling.cancel()
        self._live.close()
        await self._visitors.close()

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            if request.method not in ("GET", "HEAD"):
                raise web.HTTPMethodNotAllowed(request.method, ("GET", "HEAD"))
            if not self._is_ours(request.headers.get("Host", "")):
                # RFC 9110, 15.5.20: 421, this server does not speak for that host.
                raise web.HTTPMisdirectedRequest(text="This is not a name of this server.\n")
            with self._visitors.asking(request):
                response = await handler(request)
        except web.HTTPException as refusal:
            refusal.headers.update(_HEADERS)
            raise
        except Exception as error:  # noqa: BLE001 - a page that fails must be seen in the log
            self._fault(error)
            response = web.Response(status=500, text="A fault of the relay; see its log.\n")
        response.headers.update(_HEADERS)
        return response

    def _in_turn(self, handler: _Handler) -> _Handler:
        """Answer one request after another, with time for mail in between."""

        async def answer(request: web.Request) -> web.StreamResponse:
            await self._turn.acquire()
            if self._is_stopping:
                # Else aiohttp breaks off those that wait, and some of them with a traceback.
                self._turn.release()
                return web.Response(status=503, text="stopping\n")
            # Once begun it is finished, though the client hangs up: only so is its whole cost known.
            return await asyncio.shield(self._finish_and_pause(handler(request)))

        return answer

    async def _finish_and_pause(self, answer: Awaitable[_Answer]) -> _Answer:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        try:
            return await answer
        finally:
            loop.call_later((ONE_OF - 1) * (loop.time() - began_at), self._turn.release)

    def _sample(self) -> None:
        loop = asyncio.get_running_loop()
        self._sampling = loop.call_later(SAMPLE_SECONDS, self._sample)
        try:
            self._samples.note(self._snapshot(), int(loop.time() // 60))
        except Exception as error:  # noqa: BLE001 - a gap in a chart beats a page without them
            self._fault(error)

    def _fault(self, error: Exception) -> None:
        self._events.fault(where="http", error=error)

    def _is_ours(self, host_header: str) -> bool:
        """Return whether the Host header names this server: no foreign page can make a browser say that."""
        host = host_header.strip().lower()
        if host.startswith("["):
            host, is_closed, _ = host[1:].partition("]")
            if not is_closed:
                return False
        elif host.count(":") == 1:
            host = host.partition(":")[0]
        host = host.rstrip(".")
        if host in self._names or host.endswith(".localhost"):  # RFC 6761, 6.3
            return True
        try:
            ip_address(host)
        except ValueError:
            return False
        return True

    async def _page(self, _request: web.Request) -> web.Response:
        return web.Response(text=await self._drawn(page.render), content_type="text/html")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        headers = {**_HEADERS, "Content-Type": "text/event-stream"}
        if request.method == "HEAD":
            return web.Response(headers=headers)
        if self._is_stopping or self._live.is_full:
            return web.Response(status=503, text="no place for another stream\n")
        response = web.StreamResponse(headers=headers)
        with self._live.reading() as events:
            await response.prepare(request)
            async for event in events:
                # A client that does not read stops this line, and its time runs out.
                await response.write(event)
                self._visitors.renew(request)
        return response

    async def _picture_in_turn(self) -> str:
        await self._turn.acquire()
        return await self._finish_and_pause(self._drawn(page.picture))

    async def _drawn(self, draw: Callable[[Snapshot, Coming, Samples], str]) -> str:
        await self._foresee()
        return draw(public(self._snapshot()), public_coming(self._coming()), self._samples)

    async def _metrics(self, request: web.Request) -> web.Response:
        await self._foresee()
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(self._registry), headers={"Content-Type": content_type})

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        snapshot = self._snapshot()
        if snapshot.condition is not Condition.RUNNING:
            return web.Response(status=503, text=f"{snapshot.condition.value}\n")
        if snapshot.refusing_because:
            return web.Response(status=503, text=f"{public(snapshot).refusing_because}\n")
        return web.Response(text="ready\n")

    async def _status(self, _request: web.Request) -> web.Response:
        await self._foresee()
        return web.json_response(to_json(public(self._snapshot())))
