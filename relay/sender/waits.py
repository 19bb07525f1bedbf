"""Tells of messages that wait for room: once each, not at every look."""

from relay.clock import SECOND_NS, Clock
from relay.queue.scheduler import Queued, Scheduler
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics

SHORT_WAIT_NS = SECOND_NS
"""A wait for room that is not worth a line in the log."""


class Waits:
    """Those of one upstream."""

    def __init__(
        self, upstream: str, scheduler: Scheduler, events: Events, metrics: Metrics, clock: Clock
    ) -> None:
        self._upstream = upstream
        self._scheduler = scheduler
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._told: dict[str, str] = {}
        """Of which message of each lane it was said last."""

    def tell(self, queued: Queued, reason: str, until_ns: int) -> None:
        """Say of a message, once, that it has to wait for room until an instant (boottime)."""
        self._scheduler.explain(queued.queue_id, reason)
        wait_ns = until_ns - self._clock.boottime_ns()
        if queued.queue_id == self._told.get(queued.lane) or wait_ns < SHORT_WAIT_NS:
            return
        self._told[queued.lane] = queued.queue_id
        self._metrics.had_to_wait(self._upstream)
        self._events.waiting(
            queue_id=queued.queue_id,
            upstream=self._upstream,
            reason=reason,
            until_at_ns=self._clock.wall_ns() + wait_ns,
            lane=self._scheduler.lane_of(queued) or None,
        )
