"""An operator's work on the spool of a relay that is down.

Takes the spool's lock for as long as it lasts, so that no sender can start meanwhile;
reads it as a start would, and answers as a running relay would, but sends nothing.
Reports that a verb causes are queued, and leave when the relay runs again.
"""

import asyncio
import errno
import os
import socket
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from relay.clock import SystemClock
from relay.control.operations import ABSENT, IS_DOWN, OK, UNCHANGED, Found, Results, Rows, Verb, Write
from relay.control.operator import Operator
from relay.control.recorded import record_pause, record_resume, recorded_upstreams
from relay.mail.envelope import QueueId
from relay.policy.model import Policy
from relay.sender.host import Host
from relay.sender.sender import Sender
from relay.spool.disk.durable import RealDisk
from relay.spool.engines import open_spool
from relay.status.filters import WHOLE_QUEUE, By, Filters, Group, Wanted
from relay.status.plan import Plan
from relay.status.snapshot import Condition, MessageView, PolicyStatus, QueueState, Snapshot
from relay.status.watch import Watch
from relay.telemetry.event_table import Level
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics
from relay.telemetry.outcomes import OutcomeStore
from relay.telemetry.telemetry import Telemetry
from relay.verdicts.operator_pause import PauseAsked


class OfflineOperations(Rows):
    def __init__(self, policy: Policy) -> None:
        """Raise SpoolBusy, OSError (PermissionError: another user's spool), ValueError for another format."""
        refuse_strangers(policy.spool)
        self._policy = policy
        clock, disk = SystemClock(), RealDisk()
        self._disk, self._clock = disk, clock
        events = Events(sys.stderr, "text", clock, level=Level.WARNING)
        hostname = policy.hostname or socket.getfqdn()
        telemetry = Telemetry(events, Metrics(clock), clock)
        self._outcomes = OutcomeStore(str(policy.spool), policy.recent, disk, telemetry)
        self._sender = Sender(
            open_spool(
                policy, disk, clock, lambda name, why: events.tell("corrupt", queue_id=name, reason=why)
            ),
            Host(clock, disk),
            policy=policy,
            hostname=hostname,
            telemetry=telemetry,
            on_fault=self._fail,
        )
        status = PolicyStatus("", clock.wall_ns())
        self._watch = Watch(self._sender, policy, hostname, clock, status)
        self._watch.condition, self._watch.refusing_because = Condition.DOWN, "the relay is down"
        self._operator = Operator(self._sender, self._watch, events)
        self._is_read = False

    async def close(self) -> None:
        await self._outcomes.close()
        await self._sender.stop()

    async def snapshot(self) -> Snapshot:
        operator = await self._read()
        self._watch.recorded = await asyncio.to_thread(
            recorded_upstreams, self._policy, self._disk, self._clock
        )
        return await operator.snapshot()

    async def rows(self, wanted: Wanted = WHOLE_QUEUE) -> Found:
        async for some in (await self._read()).rows(wanted):
            yield some

    async def summary(self, filters: Filters, by: By, limit: int | None = None) -> Sequence[Group]:
        return await (await self._read()).summary(filters, by, limit)

    async def plan(self, text: bytes, path: Path) -> Plan | str:
        return await (await self._read()).plan(text, path)

    async def show(self, queue_id: QueueId) -> MessageView | str:
        return await (await self._read()).show(queue_id)

    async def content(self, queue_id: QueueId, write: Write) -> str:
        return await (await self._read()).content(queue_id, write)

    async def act(
        self, verb: Verb, queue_ids: Sequence[QueueId], states: Collection[QueueState] = ()
    ) -> Results:
        if verb == "first":
            return dict.fromkeys(queue_ids, IS_DOWN)
        return await (await self._read()).act(verb, queue_ids, states)

    async def pause(self, upstream: str, asked: PauseAsked) -> str:
        if upstream not in self._policy.upstreams:
            return ABSENT
        await asyncio.to_thread(record_pause, self._policy, upstream, asked, self._disk, self._clock)
        return OK

    async def resume(self, upstream: str, *, believes: bool = False) -> str:
        """End a pause that the next start would go on with."""
        if upstream not in self._policy.upstreams:
            return ABSENT
        if believes:
            return "the relay is down; which refusals it doubts is known while it runs"
        rested = await asyncio.to_thread(record_resume, self._policy, upstream, self._disk, self._clock)
        return OK if rested else UNCHANGED

    async def _read(self) -> Operator:
        if not self._is_read:
            await self._sender.read()
            self._outcomes.start()
            self._is_read = True
        return self._operator

    @staticmethod
    def _fail(error: BaseException) -> None:
        raise error


def refuse_strangers(spool: Path) -> None:
    """Raise PermissionError: files that root makes would keep the relay from starting."""
    if spool.exists() and (owner := spool.stat().st_uid) != os.geteuid():
        raise PermissionError(errno.EPERM, f"it belongs to user {owner}", str(spool))
