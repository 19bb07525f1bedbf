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
from typing import Any, TypeVar

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

_Kind = TypeVar("_Kind")


@contextmanager
def offline(policy: Policy) -> Iterator[Session]:
    """Raise SpoolBusy, OSError (PermissionError: another user's spool), WrongSpool."""
    refuse_strangers(policy.spool)
    with asyncio.Runner() as runner:
        operator = OfflineOperator(policy)
        runner.run(operator.begin())
        try:
            yield _Offline(runner, operator)
        finally:
            runner.run(operator.close())


class _Offline(Session):
    def __init__(self, runner: asyncio.Runner, operator: "OfflineOperator") -> None:
        self._runner, self._operator = runner, operator

    def ask(self, kind: type[_Kind], name: str, **arguments: object) -> Iterator[_Kind]:  # noqa: ARG002 - as it comes
        answer = values(getattr(self._operator, name)(**arguments))
        while (value := self._runner.run(_next(answer))) is not None:
            yield value


async def _next(answer: AsyncGenerator[Any, None]) -> Any:
    return await anext(answer, None)


class OfflineOperator(Operator):
    def __init__(self, policy: Policy) -> None:
        clock, disk, hostname = SystemClock(), RealDisk(), policy.hostname or socket.getfqdn()
        events = Events(sys.stderr, "text", clock, hostname=hostname, level=Level.WARNING)
        telemetry = Telemetry(events, Metrics(), clock)
        self._outcomes = OutcomeStore(str(policy.spool), policy.recent, disk, telemetry)
        spool = open_spool(
            policy, disk, clock, lambda name, why: events.tell("corrupt", queue_id=name, reason=why)
        )
        host = Host(clock, disk)
        sender = Sender(spool, host, policy=policy, hostname=hostname, telemetry=telemetry, on_fault=_fail)
        status_view = StatusView(sender, policy, hostname, clock, PolicyStatus("", clock.wall_ns()))
        status_view.condition, status_view.refusing_because = Condition.DOWN, "the relay is down"
        super().__init__(sender, status_view, events)

    async def begin(self) -> None:
        self._outcomes.start()

    async def close(self) -> None:
        await self._outcomes.close()
        await self._sender.stop()

    async def snapshot(self) -> Snapshot:
        await self._status_view.look_at_hosts()
        return await super().snapshot()

    async def _load_queue(self, queue_ids: Collection[QueueId] | None = None) -> None:
        # At most IDS_AT_ONCE messages are named in one call.
        if self._sender.is_reading and (queue_ids is None or not await self._sender.read_only(queue_ids)):
            await self._sender.read()


def refuse_strangers(spool: Path) -> None:
    """Raise PermissionError in another user's spool: files of root there would stop the relay's start."""
    if spool.exists() and (owner := spool.stat().st_uid) != os.geteuid():
        raise PermissionError(errno.EPERM, f"it belongs to uid {owner}; run this as that user", str(spool))


def _fail(error: BaseException) -> None:
    raise error
