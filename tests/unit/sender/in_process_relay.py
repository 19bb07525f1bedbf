"""A relay in this process: a sender with a real spool, a real history and real sockets.

It runs in the virtual time of its loop, if the loop has one (`tests.fakes.virtual_time`).
"""

import asyncio
import contextlib
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from relay.clock import Clock, SystemClock
from relay.control.operator import Operator
from relay.mail.dsn import NOTHING_ASKED, DsnRequest
from relay.mail.envelope import Envelope, QueueId
from relay.policy.model import Policy
from relay.policy.source import parse_policy
from relay.queue.queued import Queued
from relay.queue.upstream_queue import UpstreamQueue
from relay.sender.account import Account
from relay.sender.host import CallThread, Host, Result, Workers
from relay.sender.reports import LateMail
from relay.sender.sender import Sender
from relay.spool.disk.durable import Disk
from relay.spool.maildir.engine import MaildirSpool
from relay.spool.maildir.intake import MaildirIntake
from relay.spool.root.trigger import Trigger
from relay.status.filters import EVERYTHING, Filters
from relay.status.snapshot import MessageView, PolicyStatus
from relay.status.status_view import StatusView
from relay.telemetry.events import Events, LogStyle
from relay.telemetry.metrics import Metrics, Telemetry
from tests.fakes.clock import FakeClock
from tests.fakes.unsynced import Unsynced
from tests.fakes.virtual_time import InTurn, VirtualTimeLoop

PATIENCE_SECONDS = 120.0
"""A wait of this length counts as hung.  No result depends on how long anything takes."""
VIRTUAL_PATIENCE_SECONDS = 2 * 86_400.0

CONTENT = b"From: a@here.example\r\nSubject: hello\r\n\r\nhello\r\n.dotted\r\n"


def policy_of(
    folder: Path, ports: int | Mapping[str, int], upstream: str = "", rest: str = "", connections: int = 2
) -> Policy:
    """Return a policy whose upstream `isp`, or those named in `ports`, is on this port.

    `upstream` and `rest` are more YAML; NAME in `upstream` is the upstream's name.
    """
    upstream += "" if "limits:" in upstream else ", limits: []"
    upstream += "" if "tls:" in upstream else ", tls: none"
    upstreams = "".join(
        f"  {name}: {{host: 127.0.0.1, port: {port}, connections: {connections}"
        f"{upstream.replace('NAME', name)}}}\n"
        for name, port in ({"isp": ports} if isinstance(ports, int) else ports).items()
    )
    text = f"""
spool: ./spool
hostname: relay.test
listen: [{{address: "127.0.0.1:0", clients: [127.0.0.0/8]}}]
upstreams:
{upstreams}
{rest or "retry: {min: 50ms, max: 100ms, lifetime: 1d}"}
"""
    return parse_policy(text.encode(), folder / "policy.yaml")


def virtual_loop() -> VirtualTimeLoop | None:
    """Return the running loop if its time is virtual."""
    with contextlib.suppress(RuntimeError):
        if isinstance(loop := asyncio.get_running_loop(), VirtualTimeLoop):
            return loop
    return None


def virtual_clock() -> FakeClock:
    """Return the clock of the running loop.  A test may advance it, as a suspend does."""
    loop = virtual_loop()
    assert loop is not None
    return loop.clock


def hurry(seconds: int) -> None:
    """Let virtual time pass in steps of at least `seconds`: days go by in an instant."""
    loop = virtual_loop()
    assert loop is not None
    loop.hurry(seconds)


class AwaitedThread(CallThread):
    """A thread for whose calls virtual time waits."""

    def call(self, function: Callable[[], Result]) -> "asyncio.Future[Result]":
        done = super().call(function)
        if (loop := virtual_loop()) is not None:
            loop.wait_for(done)
        return done


async def turns_of_the_loop(count: int = 50) -> None:
    """Give everything that is ready to run its turn, threads included."""
    for _ in range(count):
        await asyncio.to_thread(lambda: None)


class Relay:
    """`async with Relay(policy) as relay` recovers and relays; the relay stops at the end."""

    def __init__(
        self,
        policy: Policy,
        disk: Disk | None = None,
        clock: Clock | None = None,
        *,
        style: LogStyle = "text",
        workers: Workers | None = None,
    ) -> None:
        """Call the disk by `workers`; without any, in virtual time in the thread of the loop."""
        loop = virtual_loop()
        self.policy = policy
        self.disk = disk or Unsynced()
        self.clock = clock or (SystemClock() if loop is None else loop.clock)
        self.log = io.StringIO()
        self.faults: list[BaseException] = []
        self.told: list[str] = []
        self.events = Events(self.log, style, self.clock)
        self.metrics = metrics = Metrics()
        metrics.know("upstream", policy.upstreams)
        root = str(policy.spool)
        self.spool = MaildirSpool(root, self.disk, self.clock, lambda _name, why: self.told.append(why))
        self.intake = MaildirIntake(root, Unsynced(), self.clock)
        self.trigger = Trigger(root, Unsynced())
        host = Host(self.clock, self.disk, workers or (CallThread if loop is None else InTurn))
        self.sender = Sender(
            self.spool,
            host,
            policy=policy,
            hostname="relay.test",
            telemetry=Telemetry(self.events, metrics, self.clock),
            on_fault=self.faults.append,
        )
        self.status_view = StatusView(self.sender, policy, "relay.test", self.clock, PolicyStatus("", 0))
        self.late = LateMail(self.sender.settling, host)
        self.operator = Operator(self.sender, self.status_view, self.events)

    @property
    def account(self) -> Account:
        return self.sender.accounts["isp"]

    @property
    def line(self) -> UpstreamQueue:
        return self.sender.queue.line("isp")

    def accept(
        self,
        *recipients: str,
        sender: str = "a@here.example",
        content: bytes = CONTENT,
        dsn: DsnRequest = NOTHING_ASKED,
    ) -> QueueId:
        """Accept a message as a listener does."""
        draft = self.intake.draft()
        draft.append(content)
        envelope = Envelope(
            sender,
            recipients or ("b@there.example",),
            self.clock.wall_ns(),
            "unknown[127.0.0.1]",
            "here",
            "ESMTP",
            dsn=dsn,
        )
        assert self.intake.accept([(draft, envelope)]) == [None]
        self.trigger.pull()
        return draft.queue_id

    async def listed(self, filters: Filters = EVERYTHING) -> list[MessageView]:
        return [view async for some in self.operator.rows(filters) for view in some]

    def logged(self) -> str:
        return self.log.getvalue()

    def queued(self, queue_id: QueueId) -> Queued | None:
        return next(iter(self.sender.queue.parts(queue_id)), None)

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until the condition holds; fail on a fault of the relay or after the patience."""
        loop = virtual_loop()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS if loop is None else VIRTUAL_PATIENCE_SECONDS):
                while not condition():
                    assert not self.faults, self.faults
                    await (asyncio.sleep(0.002) if loop is None else loop.quiet())
        except TimeoutError:
            raise AssertionError(f"it never happened; the log:\n{self.logged()}") from None

    async def until_empty(self) -> None:
        """Wait until the queue and the spool are empty."""
        root = Path(self.policy.spool)
        await self.until(
            lambda: (
                len(self.sender.queue) == 0
                and not any((root / "new").iterdir())
                and not any((root / "cur").glob("*/*"))
            )
        )
        await self.sender.look()

    async def __aenter__(self) -> Self:
        await self.sender.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.sender.stop()
        self.trigger.close()
