"""The log, the numbers, and the clock by which they tell."""

from typing import NamedTuple

from relay.clock import Clock
from relay.spool.disk.os_errors import is_lack_of_means
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics


class Telemetry(NamedTuple):
    events: Events
    metrics: Metrics
    clock: Clock

    def spool_trouble(self, error: Exception) -> None:
        """Tell that the spool could not be written or read: for lack of means of ours, or else of room."""
        if is_lack_of_means(error) or is_lack_of_means(error.__cause__):
            self.events.shortage(where="the spool", error=str(error))
            return
        self.metrics.spool_failed()
        self.events.spool_failed(error=str(error))
