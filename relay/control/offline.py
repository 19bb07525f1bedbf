"""The `Session` with a relay that is down: an operator works on its spool.

The session holds the spool's lock until it is closed, so no sender can start meanwhile.  It reads as a start
reads, and answers as a running relay answers, but sends nothing.  Reports that a verb causes are queued, and
go when the relay runs again.
Does not: read histories and pauses.  So it knows no window, and cannot pause an upstream or plan an edit.
"""

import asyncio
import errno
import os
import socket
import sys
from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from relay.clock import SystemClock
from relay.control.operations import Session
from relay.control.operator import Operator, values
from relay.mail.envelope import QueueId
from relay.policy.model import Policy
from relay.sender.host import Host
from relay.sender.sender import Sender
from relay.spool.disk.durable import RealDisk
from relay.spool.engines import open_spool
from relay.status.snapshot import Condition, PolicyStatus, Snapshot
from relay.status.status_view import StatusView
from relay.telemetry.events import Events, Level
from relay.telemetry.metrics import Metrics, Telemetry
from relay.telemetry.outcomes import OutcomeStore


@contextmanager
def offline(policy: Policy) -> Iterator[Session]:
    """Raise SpoolBusy, OSError (PermissionError: another user's spool), WrongSpool."""
    refuse_strangers(policy.spool)
    with asyncio.Runner() as runner:
        session = _Offline(policy, runner)
        try:
            yield session
        finally:
            runner.run(session.close())


class _Offline(Session):
    def __init__(self, policy: Policy, runner: asyncio.Runner) -> None:
        clock, disk, hostname = SystemClock(), RealDisk(), policy.hostname or socket.getfqdn()
        events = Events(sys.stderr, "text", clock, hostname=hostname, level=Level.WARNING)
        telemetry = Telemetry(events, Metrics(), clock)
        self._outcomes = OutcomeStore(str(policy.spool), policy.recent, disk, telemetry)
        spool = open_spool(
            policy, disk, clock, lambda name, why: events.tell("corrupt", queue_id=name, reason=why)
        )
        self._sender = Sender(
            spool,
            Host(clock, disk),
            policy=policy,
            hostname=hostname,
            telemetry=telemetry,
            on_fault=lambda error: events.fault(where="control", error=error),
        )
        status = PolicyStatus("", clock.wall_ns())
        self._status_view = StatusView(self._sender, policy, hostname, clock, status)
        self._status_view.condition, self._status_view.refusing_because = Condition.DOWN, "the relay is down"
        self._operator, self._runner = Operator(self._sender, self._status_view, events), runner
        # With the first call: it needs a loop that runs.
        runner.get_loop().call_soon(self._outcomes.start)

    def ask(self, kind: Any, name: str, **arguments: Any) -> Iterator[Any]:
        self._runner.run(self._load(kind, **arguments))
        answer = values(getattr(self._operator, name)(**arguments))
        while (value := self._runner.run(_next(answer))) is not None:
            yield value

    async def close(self) -> None:
        await self._outcomes.close()
        await self._sender.stop()

    async def _load(
        self, kind: Any, *, queue_id: QueueId | None = None, queue_ids: Collection[QueueId] = (), **_: object
    ) -> None:
        """Load the messages that the call names, else the whole queue, as a running relay has it."""
        # At most IDS_AT_ONCE messages are named in one call.
        named = queue_ids if queue_id is None else [queue_id]
        if self._sender.is_reading and not (named and await self._sender.read_only(named)):
            await self._sender.read()
        if kind is Snapshot:
            await self._status_view.look_at_hosts()


async def _next(answer: AsyncGenerator[Any, None]) -> Any:
    return await anext(answer, None)


def refuse_strangers(spool: Path) -> None:
    """Raise PermissionError in another user's spool: files of root there would stop the relay's start."""
    if spool.exists() and (owner := spool.stat().st_uid) != os.geteuid():
        raise PermissionError(errno.EPERM, f"it belongs to uid {owner}; run this as that user", str(spool))
