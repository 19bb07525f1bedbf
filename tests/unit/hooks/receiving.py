"""A receiver of notices on loopback, and a relay's hooks towards it."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web

from relay.clock import SECOND_NS
from relay.hooks.hooks import Hooks
from relay.policy.model import Policy
from relay.policy.source import parse_policy
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics
from relay.telemetry.telemetry import Telemetry
from tests.fakes.clock import FakeClock

PATIENCE_SECONDS = 120.0
SECRET_PATH = "/T0PSECRET/relay"


class Post(NamedTuple):
    path: str
    headers: dict[str, str]
    content: bytes

    @property
    def told(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.content)
        return value


class HttpReceiver:
    """Keeps what is posted to it, and answers as `answers` says, the last one for ever."""

    def __init__(self) -> None:
        self.posts: list[Post] = []
        self.answers: list[int] = [204]
        self.never: asyncio.Event | None = None
        """While it is set to an event, no request is answered until that is set."""
        self.port = 0

    async def _take(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.posts.append(Post(request.path, headers, await request.read()))
        if self.never is not None:
            await self.never.wait()
        status = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        headers = {"Location": "/elsewhere"} if status // 100 == 3 else {}
        return web.Response(status=status, headers=headers, text="T0PSECRET answer")

    @asynccontextmanager
    async def listening(self, port: int = 0) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._take)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port, reuse_address=True)
        await site.start()
        self.port = runner.addresses[0][1]
        try:
            yield
        finally:
            if self.never is not None:
                self.never.set()
            await runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{SECRET_PATH}"


def policy_with(folder: Path, *hooks: dict[str, Any]) -> Policy:
    policy = {
        "spool": "./spool",
        "listen": [{"address": "127.0.0.1:0", "clients": ["127.0.0.0/8"]}],
        "upstreams": {"isp": {"host": "smtp.example.net", "limits": []}},
        "notify": list(hooks),
    }
    return parse_policy(json.dumps(policy).encode(), folder / "policy.yaml")


class Telling:
    """The hooks of one run of a relay, and what it says of them; a sleep only moves its clock."""

    def __init__(self, policy: Policy) -> None:
        self.log = io.StringIO()
        self.clock = FakeClock()
        self.events = Events(self.log, "text", self.clock)
        self.metrics = Metrics(self.clock)
        telemetry = Telemetry(self.events, self.metrics, self.clock)
        self.hooks = Hooks(policy, "relay.test", telemetry, self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.clock.advance(int(seconds * SECOND_NS))
        await asyncio.sleep(0)

    async def until(self, result: str, count: int) -> None:
        """Wait until so many notices were sent or dropped."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.count(result) != count:  # noqa: ASYNC110 - the receiver is outside
                await asyncio.sleep(0.002)

    @property
    def said(self) -> str:
        self.events.flush()
        return self.log.getvalue()

    def count(self, result: str) -> float | None:
        return self.metrics.registry.get_sample_value("relay_notices_total", {"result": result})

    def resume(self, upstream: str = "isp") -> None:
        self.events.tell("upstream_resumed", upstream=upstream)
