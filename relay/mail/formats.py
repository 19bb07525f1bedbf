"""Writes instants, spans, sizes and values for people, labels and the log.  Pure; times are nanoseconds."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from relay.clock import SECOND_NS

LAST_SECOND = 253_402_300_799
"""9999-12-31T23:59:59Z, the last second whose year has four digits; an estimate may lie beyond."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))

Value = str | int | float | None | list[str | float] | Mapping[str, int]


def instant(at_ns: int) -> datetime:
    """Return an instant (wall clock) in UTC; outside 1970 to 9999, the nearest one within."""
    microseconds = min(max(at_ns // 1000, 0), LAST_SECOND * 1_000_000)
    return _EPOCH + timedelta(microseconds=microseconds)


def rfc3339(at_ns: int) -> str:
    """Return an instant (wall clock) in UTC to the millisecond, e.g. `2026-01-02T03:04:05.678Z`."""
    seconds, rest_ns = divmod(min(max(at_ns, 0), LAST_SECOND * SECOND_NS), SECOND_NS)
    return f"{_to_the_second(seconds)}.{rest_ns // 1_000_000:03}Z"


@lru_cache(maxsize=4)  # the log has many lines of one second
def _to_the_second(seconds: int) -> str:
    return instant(seconds * SECOND_NS).strftime("%Y-%m-%dT%H:%M:%S")


def rfc3339_or_none(at_ns: int | None) -> str | None:
    return None if at_ns is None else rfc3339(at_ns)


def utc(at_ns: int) -> str:
    """Return an instant (wall clock) for people, to the second: `2026-01-02T03:04:05Z`."""
    seconds = at_ns // SECOND_NS
    return f"{_to_the_second(seconds)}Z" if 0 <= seconds <= LAST_SECOND else "never"


def span(span_ns: int) -> str:
    """Return a span in its two largest units, rounded up to seconds: `0s`, `42s`, `3m 20s`, `2d 4h`."""
    seconds = max(0, -(-span_ns // SECOND_NS))
    counts: list[tuple[int, str]] = []
    for unit, length in _UNITS:
        count, seconds = divmod(seconds, length)
        counts.append((count, unit))
    first = next((n for n, (count, _) in enumerate(counts) if count), len(counts) - 1)
    return " ".join(f"{count}{unit}" for count, unit in counts[first : first + 2] if count) or "0s"


def period(per_ns: int) -> str:
    """Return a window as a policy writes it, to the nanosecond: `90s`, `1h`, `24h`, `7d`, `0.3s`."""
    for unit, length in _UNITS[:-1]:
        count, rest_ns = divmod(per_ns, length * SECOND_NS)
        if not rest_ns and count >= (2 if unit == "d" else 1):
            return f"{count}{unit}"
    whole, rest_ns = divmod(per_ns, SECOND_NS)
    return f"{whole}.{rest_ns:09}".rstrip("0").rstrip(".") + "s"


def size(size_bytes: int) -> str:
    """Return a size as a policy writes it: `512`, `20M`, `1G`; units of 1024."""
    for unit, length in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if size_bytes and not size_bytes % length:
            return f"{size_bytes // length}{unit}"
    return f"{size_bytes} bytes"


def postfix_delay(delay_ns: int) -> str:
    """Return a delay as Postfix shows it: two significant digits below ten seconds."""
    seconds = round(max(delay_ns, 0) / SECOND_NS, 4)
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.2g}"


def described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
