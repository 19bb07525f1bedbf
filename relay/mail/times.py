"""Time as people read it: RFC 3339 for instants, two units for spans.  Pure."""

from datetime import UTC, datetime
from functools import lru_cache

SECOND_NS = 1_000_000_000
_LAST_SECOND = 253_402_300_799
"""9999-12-31T23:59:59Z: RFC 3339 has four digits for the year; an estimate may lie beyond."""

_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def rfc3339(at_ns: int) -> str:
    """Return an instant (wall clock) in UTC to the millisecond, e.g. `2026-01-02T03:04:05.678Z`."""
    second, rest_ns = divmod(at_ns, SECOND_NS)
    if not 0 <= second <= _LAST_SECOND:
        second, rest_ns = max(0, min(second, _LAST_SECOND)), 0
    return f"{_whole_second(second)}.{rest_ns // 1_000_000:03d}Z"


def rfc3339_or_none(at_ns: int | None) -> str | None:
    """Return the same, or None for no instant."""
    return None if at_ns is None else rfc3339(at_ns)


def span(span_ns: int) -> str:
    """Return a span in its two largest units, rounded up to seconds: `0s`, `42s`, `3m 20s`, `2d 4h`."""
    seconds = max(0, -(-span_ns // SECOND_NS))
    for (unit, length), smaller in zip(_UNITS, (*_UNITS[1:], None), strict=True):
        if seconds >= length:
            count, rest = divmod(seconds, length)
            few = rest // smaller[1] if smaller else 0
            return f"{count}{unit} {few}{smaller[0]}" if smaller and few else f"{count}{unit}"
    return "0s"


@lru_cache(maxsize=8)
def _whole_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
