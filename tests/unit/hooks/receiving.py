"""A receiver of notices on loopback, and a relay's hooks towards it."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web

from relay.clock import Clock
from relay.hooks.hooks import MOST_NOTICES, Hooks
from relay.policy.model import Policy
from relay.policy.source import parse_policy
from relay.spool.disk.durable import Disk, RealDisk
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
    """The hooks of one run of a relay, and what it says of them."""

    def __init__(
        self, policy: Policy, clock: Clock | None = None, disk: Disk | None = None, most: int = MOST_NOTICES
    ) -> None:
        self.log = io.StringIO()
        self.clock = clock or FakeClock()
        self.events = Events(self.log, "text", self.clock)
        self.metrics = Metrics(self.clock)
        telemetry = Telemetry(self.events, self.metrics, self.clock)
        self.hooks = Hooks(policy, "relay.test", disk or RealDisk(), telemetry, most)
        self.folder = Path(f"{policy.spool}.notices")

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait for something that this loop, or a program, brings about."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not condition():
                    self.events.flush()
                    await asyncio.sleep(0.002)
        except TimeoutError:
            raise AssertionError(f"it never happened; the log:\n{self.said}") from None

    @property
    def said(self) -> str:
        self.events.flush()
        return self.log.getvalue()

    def count(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)

    def kept(self) -> list[str]:
        """Return the names of the files that wait."""
        return sorted(path.name for path in self.folder.iterdir()) if self.folder.exists() else []

    def resume(self, upstream: str = "isp") -> None:
        self.events.upstream_resumed(upstream=upstream)
