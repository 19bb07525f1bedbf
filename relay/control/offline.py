"""The `Session` with a relay that is down: an operator works on its spool.

The session holds the spool's lock until it is closed, so no sender can start meanwhile.  It reads as a start
reads, and answers as a running relay answers, but sends nothing.  Reports that a verb causes are queued, and
go when the relay runs again.
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
from relay.control.operations import NO_UPSTREAM, OK, UNCHANGED, Session
from relay.control.operator import Operator, values
from relay.control.recorded import record, recorded_upstreams
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
from relay.verdicts.account import PauseAsked

_END = object()
_Kind = TypeVar("_Kind")


@contextmanager
def offline(policy: Policy) -> Iterator[Session]:
    """Raise SpoolBusy, OSError (PermissionError: another user's spool), WrongSpool."""
    refuse_strangers(policy.spool)
    with asyncio.Runner() as runner:
        operator = OfflineOperator(policy)
        try:
            yield _Offline(runner, operator)
        finally:
            runner.run(operator.close())


class _Offline(Session):
    def __init__(self, runner: asyncio.Runner, operator: "OfflineOperator") -> None:
        self._runner, self._operator = runner, operator

    def ask(self, kind: type[_Kind], name: str, **arguments: object) -> Iterator[_Kind]:  # noqa: ARG002 - as it comes
        answer = values(getattr(self._operator, name)(**arguments))
        while (value := self._runner.run(_next(answer))) is not _END:
            yield value


async def _next(answer: AsyncGenerator[Any, None]) -> Any:
    return await anext(answer, _END)


class OfflineOperator(Operator):
    def __init__(self, policy: Policy) -> None:
        self._policy, self._clock, self._disk = policy, SystemClock(), RealDisk()
        clock, disk, hostname = self._clock, self._disk, policy.hostname or socket.getfqdn()
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
        self._is_begun = self._is_whole = False

    async def close(self) -> None:
        await self._outcomes.close()
        await self._sender.stop()

    async def snapshot(self) -> Snapshot:
        await self._status_view.look_at_hosts()
        self._status_view.recorded = recorded_upstreams(self._policy, self._disk, self._clock)
        return await super().snapshot()

    async def pause(self, upstream: str, asked: PauseAsked | None) -> str:
        """Have the next start pause the upstream; with None asked, have it use the upstream again."""
        if upstream not in self._policy.upstreams:
            return NO_UPSTREAM
        is_new = record(self._policy, upstream, asked, self._disk, self._clock)
        return OK if is_new else UNCHANGED

    async def resume(self, upstream: str) -> str:
        return await self.pause(upstream, None)

    async def _load_queue(self, queue_ids: Collection[QueueId] | None = None) -> None:
        if not self._is_begun:
            self._outcomes.start()
            self._is_begun = True
        if self._is_whole:
            return
        # At most IDS_AT_ONCE messages are named in one call.
        if queue_ids is None or not await self._sender.read_only(queue_ids):
            await self._sender.read()
            self._is_whole = True


def refuse_strangers(spool: Path) -> None:
    """Raise PermissionError in another user's spool: files of root there would stop the relay's start."""
    if spool.exists() and (owner := spool.stat().st_uid) != os.geteuid():
        raise PermissionError(errno.EPERM, f"it belongs to uid {owner}; run this as that user", str(spool))


def _fail(error: BaseException) -> None:
    raise error
