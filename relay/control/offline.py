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
from collections.abc import Sequence
from pathlib import Path

from relay.clock import SystemClock
from relay.control.operations import ABSENT, OK, Results, Verb
from relay.control.operator import Operator
from relay.mail.envelope import QueueId
from relay.policy.model import Policy
from relay.sender.sender import Sender
from relay.sender.state_file import pause_path
from relay.spool.durable import RealDisk
from relay.spool.maildir.engine import MaildirSpool
from relay.spool.maildir.trigger import Trigger
from relay.status.snapshot import Condition, MessageView, PolicyStatus, Snapshot
from relay.status.watch import Watch
from relay.telemetry.event_table import Level
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics
from relay.telemetry.redaction import Redaction
from relay.telemetry.telemetry import Telemetry


class OfflineOperations:
    def __init__(self, policy: Policy) -> None:
        """Raise SpoolBusy, OSError (PermissionError: another user's spool), ValueError for another format."""
        _refuse_strangers(policy.spool)
        self._policy = policy
        clock, disk = SystemClock(), RealDisk()
        self._disk = disk
        events = Events(sys.stderr, "text", clock, level=Level.WARNING)
        hostname = policy.hostname or socket.getfqdn()
        metrics = Metrics(clock)
        self._sender = Sender(
            MaildirSpool(
                str(policy.spool), disk, clock, lambda name, why: events.corrupt(queue_id=name, reason=why)
            ),
            Trigger(str(policy.spool), disk),
            policy=policy,
            hostname=hostname,
            disk=disk,
            telemetry=Telemetry(events, metrics, Redaction(), clock),
            on_fault=self._fail,
        )
        status = PolicyStatus("", clock.wall_ns())
        self._watch = Watch(self._sender, policy, hostname, clock, status)
        self._watch.condition, self._watch.refusing_because = Condition.DOWN, "the relay is down"
        self._operator = Operator(self._sender, self._watch, events)
        self._is_read = False

    async def close(self) -> None:
        await self._sender.stop()

    async def snapshot(self) -> Snapshot:
        return await (await self._read()).snapshot()

    async def queue(self) -> Sequence[MessageView]:
        return await (await self._read()).queue()

    async def show(self, queue_id: QueueId) -> MessageView | str:
        return await (await self._read()).show(queue_id)

    async def act(self, verb: Verb, queue_ids: Sequence[QueueId]) -> Results:
        return await (await self._read()).act(verb, queue_ids)

    async def resume(self, upstream: str, *, believes: bool = False) -> str:
        """Forget a pause that the next start would go on with."""
        if upstream not in self._policy.upstreams:
            return ABSENT
        if believes:
            return "the relay is down; which refusals it doubts is known while it runs"
        await asyncio.to_thread(self._forget_pause, pause_path(self._policy, upstream))
        return OK

    def _forget_pause(self, path: Path) -> None:
        if self._disk.inode(str(path)) is not None:
            self._disk.unlink(str(path))

    async def _read(self) -> Operator:
        if not self._is_read:
            await self._sender.read()
            self._is_read = True
        return self._operator

    @staticmethod
    def _fail(error: BaseException) -> None:
        raise error


def _refuse_strangers(spool: Path) -> None:
    """Raise PermissionError: files that root makes would keep the relay from starting."""
    # Before the first start there is only the folder, if that.
    path = next((path for path in (spool / "ledger", spool) if path.exists()), None)
    if path is not None and (owner := path.stat().st_uid) != os.geteuid():
        raise PermissionError(errno.EPERM, f"it belongs to user {owner}", str(spool))
