"""How full one limit is, for showing.  Pure."""

from dataclasses import dataclass

from relay.throttle.gauge import Gauge
from relay.throttle.limit import ForEach, Unit


@dataclass(frozen=True, slots=True)
class Usage:
    """One limit, as a status line shows it; of one with keys, the key that is fullest."""

    label: str
    unit: Unit
    used: int
    """May be above `count` after an edit that lowered it."""
    count: int
    span_ns: int
    """The period and its guard."""
    opens_at_ns: int
    """Boottime at which there may be room for one more; now, if there is."""
    for_each: ForEach | None = None
    key: str | None = None
    is_crowded: bool = False
    """There were more keys than are kept apart, and some of them count for every key."""


def usage_of(gauge: Gauge, now_ns: int) -> Usage:
    """Return it of one limit."""
    key = gauge.fullest(now_ns)
    return Usage(
        gauge.label,
        gauge.unit,
        gauge.used(key, now_ns),
        gauge.count,
        gauge.span_ns,
        gauge.opens_at(key, now_ns),
        gauge.for_each,
        key,
        gauge.is_crowded(now_ns),
    )
