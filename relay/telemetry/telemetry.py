"""The log, the numbers, what is hidden of them, and the clock by which they tell."""

from typing import NamedTuple

from relay.clock import Clock
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics
from relay.telemetry.redaction import Redaction


class Telemetry(NamedTuple):
    events: Events
    metrics: Metrics
    redaction: Redaction
    clock: Clock
