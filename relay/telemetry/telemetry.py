"""The log, the numbers, and the clock by which they tell."""

from typing import NamedTuple

from relay.clock import Clock
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics


class Telemetry(NamedTuple):
    events: Events
    metrics: Metrics
    clock: Clock

    def spool_trouble(self, error: Exception) -> None:
        """Tell that the spool is full, or does not answer."""
        self.metrics.count("relay_spool_errors_total")
        self.events.tell("spool_failed", error=str(error))
