"""Reports that are owed, and how many may go in an hour.

An upstream that counts bounces cuts off accounts that send many (cPanel after five an hour, others after
fifteen), so a storm of bounces must not become one of reports.  In any hour no more than `reports.per_hour`
reports and warnings are queued; a history on disk keeps that over restarts and edits.

Guarantees: a report that may not go yet is not lost: its message stays in the spool with its failed
recipients marked and noted, and a start asks again.  First come, first served; recipients that are left do
not wait for it, and those that fail meanwhile join it.
A history that cannot be read or written limits nothing: a report is owed, the limit is courtesy.
"""

import asyncio
from collections.abc import Awaitable, Callable

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.policy.model import Policy
from relay.queue.queued import Queued, WaitReason
from relay.queue.queues import Queues
from relay.sender.host import Host, woken
from relay.sender.spool_thread import UNREADABLE_RETRY_NS
from relay.sender.throttle_thread import ThrottleThread
from relay.telemetry.metrics import Telemetry
from relay.throttle.admission import Request, Wait
from relay.throttle.file_history import FileHistory
from relay.throttle.history import HistoryError
from relay.throttle.limit import PlainLimit
from relay.throttle.throttle import Reservation, Throttle

HOUR_NS = 3600 * SECOND_NS
PUBLISHING_NS = 60 * SECOND_NS
"""A slot whose process died counts as in use for so long; then it leaves an hour later."""
REASON = WaitReason("only its report is left, which waits for reports.per_hour")


class OwedReports:
    """Which reports may go now, and which messages wait for theirs.  Belongs to one event loop."""

    def __init__(self, policy: Policy, queue: Queues, host: Host, telemetry: Telemetry) -> None:
        """Touch no disk before the first report."""
        self._events, self._metrics, self._clock = telemetry
        self._queue = queue
        history = FileHistory(policy.reports_history, host.disk, self._clock)
        throttle = Throttle(history, _limits(policy), 0, self._clock, transaction_ns=PUBLISHING_NS)
        self._gate = ThrottleThread(throttle, self._clock, self._tell_uncounted, workers=host.workers)
        self._waiting: dict[QueueId, None] = {}
        self._wake = asyncio.Event()
        self._opens_at_ns = 0
        """Boottime: when there may be a slot, as of the last time that there was none."""
        self._is_asked = self._is_closed = False

    async def may_go(self) -> bool:
        """Take a slot for a report or warning; False where there is none, or reports wait for one."""
        return self._first() is None and await self._take_slot()

    def wait(self, queued: Queued) -> None:
        """Let the report of a message wait for its turn; recipients that are left go on."""
        if queued.queue_id not in self._waiting:
            if self._first() is None:
                until_ns = self._clock.wall_ns() + self._opens_at_ns - self._clock.boottime_ns()
                self._events.tell("reports_capped", until_at_ns=until_ns)
            self._metrics.count("relay_reports_capped_total")
            self._events.tell("report_waiting", queue_id=queued.queue_id)
            self.ask_soon(queued.queue_id)

    def ask_soon(self, queue_id: QueueId) -> None:
        """Have the report of a queued message made when its turn comes, which may be at once."""
        self._waiting[queue_id] = None
        self._wake.set()

    def wake(self) -> None:
        self._wake.set()

    async def run(self, report: Callable[[QueueId], Awaitable[bool]]) -> None:
        """Have each report made when its turn comes, until cancelled; `report` says whether it could be."""
        while True:
            self._wake.clear()
            if self._first() is None:
                await self._wake.wait()
            elif not await self._take_slot():
                await woken(self._wake, self._opens_at_ns, self._clock)
            elif (queue_id := self._first()) is not None:  # still: an operator may have ended the last one
                del self._waiting[queue_id]
                if not await report(queue_id):
                    # Others first, and not all slots of the hour for a disk that reads nothing now.
                    self._waiting[queue_id] = None
                    again_at_ns = self._clock.boottime_ns() + UNREADABLE_RETRY_NS
                    await woken(self._wake, again_at_ns, self._clock)

    async def use(self, policy: Policy) -> None:
        await self._gate.replan(_limits(policy), 0)
        self._wake.set()

    async def close(self) -> None:
        """Let go of the history; what is owed from now on waits for the next start."""
        self._is_closed = True
        if self._is_asked:
            await self._gate.close()

    def _first(self) -> QueueId | None:
        """Return the message whose report is next, and forget those that have ended."""
        while (first := next(iter(self._waiting), None)) is not None and first not in self._queue:
            del self._waiting[first]
        return first

    async def _take_slot(self) -> bool:
        self._opens_at_ns = self._clock.boottime_ns() + HOUR_NS
        if self._is_closed:
            return False
        self._is_asked = True
        try:
            (answer,) = await self._gate.reserve([Request(1)])
        except HistoryError as error:
            self._tell_uncounted(error)
            return True
        if isinstance(answer, Wait):
            self._opens_at_ns = answer.until_ns
        if isinstance(answer, Reservation):
            self._gate.ended(answer)
        return isinstance(answer, Reservation)

    def _tell_uncounted(self, error: HistoryError) -> None:
        self._events.tell("reports_uncounted", error=str(error))


def _limits(policy: Policy) -> list[PlainLimit]:
    most = policy.reports.per_hour
    return [] if most is None else [PlainLimit("messages", most, HOUR_NS, f"{most} reports per 3600s")]
