"""The HTTP status server: /metrics, /healthz, /readyz, /status.json, and the status page at /.

Read-only: it answers GET and HEAD.  It shows no correspondent's address, only numbers, states, and replies
of upstreams with addresses removed (`snapshot.public`).  There is no login: bind it to a loopback or an
internal address.  A web page in a browser on this host could reach the server by a name that resolves to it
(DNS rebinding).  So the server refuses a `Host` that is no IP address, no loopback name and none of its own.

/healthz is 200 while the event loop runs, whatever else is wrong: a restart would not empty a full relay.
/readyz is 503, with the reason, while the relay accepts no mail.

`ConnectionLimit`, also used by the control socket, allows MOST_CONNECTIONS connections at once.  One more
aborts the oldest, whatever that one does or waits for.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import Protocol
from urllib.parse import urlsplit

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from relay.listener.accepting import Acceptor
from relay.mail.formats import described
from relay.policy.units import HostPort
from relay.status.page import POLICY, Samples, render
from relay.status.snapshot import Snapshot, public, to_json, without_addresses
from relay.telemetry.events import Events

BACKLOG = 128
MOST_CONNECTIONS = 16
"""Of one server.  A few scrapers and browsers need the status port; each connection costs a descriptor."""
STOP_SECONDS = 1.0
"""How long a response may still take when the server stops."""
MAIL_TIME_FACTOR = 4
"""After each response, mail has this many times the time that the response took."""

AT_ONCE = ("/healthz", "/readyz")
"""Paths whose responses cost nothing and wait for no other response."""
SAMPLE_SECONDS = 10.0
"""Interval between two samples of the windows for the charts; a sample takes about 10 ms at worst."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class ConnectionLimit:
    """For one event loop."""

    def __init__(self, events: Events, where: str) -> None:
        """`where` names the server in events."""
        self._events, self._where = events, where
        self._runner: web.AppRunner | None = None
        self._acceptor: Acceptor | None = None
        self._open: list[asyncio.Transport] = []
        """The oldest first."""

    async def receive(self, app: web.Application, bound: socket.socket, *, breaks_off: bool = False) -> None:
        """Serve on a socket that is bound; with `breaks_off` cancel a response once its client hangs up."""
        bound.listen(BACKLOG)
        self._runner = runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=STOP_SECONDS,
            handler_cancellation=breaks_off,
        )
        await runner.setup()
        if (server := runner.server) is None:
            raise AssertionError("a runner that is not set up")

        async def begin(accepted: socket.socket, _peer: object) -> None:
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(server, accepted)
            self._open = [each for each in self._open if not each.is_closing()]
            if len(self._open) >= MOST_CONNECTIONS:
                self._open.pop(0).abort()
            self._open.append(transport)

        self._acceptor = Acceptor(
            bound, begin, lambda error: self._events.shortage(where=self._where, error=described(error))
        )

    async def close(self) -> None:
        """Wait up to STOP_SECONDS for running responses."""
        if self._acceptor is not None:
            await self._acceptor.close()
        if self._runner is not None:
            await self._runner.cleanup()


class Source(Protocol):
    def snapshot(self) -> Snapshot: ...

    def why_not_ready(self) -> str: ...


class StatusServer:
    def __init__(
        self,
        address: HostPort,
        source: Source,
        registry: CollectorRegistry,
        events: Events,
        hostname: str | None = None,
    ) -> None:
        """`hostname` is the server's name, beside `localhost` and IP addresses."""
        self._address, self._source = address, source
        self._registry, self._events = registry, events
        self._names = {"localhost", (hostname or "localhost").lower().rstrip(".")}
        self._connections = ConnectionLimit(events, "http")
        self._turn = asyncio.Lock()
        self._samples = Samples()
        self._sampling: asyncio.TimerHandle | None = None

    async def start(self) -> HostPort:
        """Return the bound address, with the port that the kernel chose for 0.  Raises OSError."""
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/", self._page)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/status.json", self._status)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        host, port = self._address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        bound = socket.create_server((host, port), family=family)
        # Cancel on hang-up: else requests that wait in `_in_turn` would grow without bound.
        await self._connections.receive(app, bound, breaks_off=True)
        self._sample()
        return HostPort(*bound.getsockname()[:2])

    async def stop(self) -> None:
        """Wait up to STOP_SECONDS for running responses; then cut off what still waits for its turn."""
        if self._sampling is not None:
            self._sampling.cancel()
        await self._connections.close()

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            if not self._is_ours(request.headers.get("Host", "")):
                # RFC 9110, 15.5.20: 421, this server does not speak for that host.
                raise web.HTTPMisdirectedRequest(text="Use an IP address, localhost or the `hostname`.\n")
            response = await (
                handler(request) if request.path in AT_ONCE else self._in_turn(handler, request)
            )
        except web.HTTPException as refusal:
            refusal.headers.update(_HEADERS)
            refusal.force_close()
            raise
        except Exception as error:  # noqa: BLE001 - a page that fails must be seen in the log
            self._events.fault(where="http", error=error)
            response = web.Response(status=500, text="A fault of the relay; see its log.\n")
        response.headers.update(_HEADERS)
        response.force_close()
        return response

    async def _in_turn(self, handler: _Handler, request: web.Request) -> web.StreamResponse:
        """Serve one request at a time, with time for mail between two."""
        async with self._turn:
            loop = asyncio.get_running_loop()
            began_at = loop.time()
            try:
                return await handler(request)
            finally:
                # Also after a hang-up: the request took that time from mail.
                await asyncio.sleep(MAIL_TIME_FACTOR * (loop.time() - began_at))

    def _sample(self) -> None:
        loop = asyncio.get_running_loop()
        self._sampling = loop.call_later(SAMPLE_SECONDS, self._sample)
        try:
            self._samples.note(self._source.snapshot(), int(loop.time() // 60))
        except Exception as error:  # noqa: BLE001 - a gap in a chart beats a page without them
            self._events.fault(where="http", error=error)

    def _is_ours(self, host_header: str) -> bool:
        """Return whether Host names this server: no foreign page can make a browser send such a Host."""
        try:
            parts = urlsplit(f"//{host_header}")
            host, _ = (parts.hostname or "").rstrip("."), parts.port
            if host in self._names or host.endswith(".localhost"):  # RFC 6761, 6.3
                return True
            ip_address(host)
        except ValueError:
            return False
        return True

    async def _page(self, _request: web.Request) -> web.Response:
        shown = render(self._source.snapshot(), self._samples)
        return web.Response(text=shown, content_type="text/html")

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(self._registry), headers={"Content-Type": content_type})

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        if why := self._source.why_not_ready():
            return web.Response(status=503, text=f"{without_addresses(why)}\n")
        return web.Response(text="ready\n")

    async def _status(self, _request: web.Request) -> web.Response:
        return web.json_response(to_json(public(self._source.snapshot())))
