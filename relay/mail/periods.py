"""Lengths of time as people write them.  Pure; nanoseconds in."""

from relay.clock import SECOND_NS

_LONG = (("d", 86_400), ("h", 3_600), ("m", 60))


def period(per_ns: int) -> str:
    """Return a window as a policy writes it: `90s`, `1h`, `24h`, `7d`."""
    for unit, length in _LONG:
        count, rest_ns = divmod(per_ns, length * SECOND_NS)
        if not rest_ns and count >= (2 if unit == "d" else 1):
            return f"{count}{unit}"
    return in_seconds(per_ns)


def in_seconds(span_ns: int) -> str:
    """Return a span in seconds to the nanosecond, as labels have it: `60s`, `2592000s`, `0.3s`."""
    whole, rest_ns = divmod(span_ns, SECOND_NS)
    return f"{whole}.{rest_ns:09}".rstrip("0").rstrip(".") + "s"


def elapsed(span_ns: int) -> str:
    """Return a span in one unit, rounded up: `42 s`, `57 min`, `23 h`, `6 d`."""
    for unit, length, below in (("s", 1, 120), ("min", 60, 120), ("h", 3_600, 48)):
        count = -(-span_ns // (length * SECOND_NS))
        if count < below:
            return f"{count} {unit}"
    return f"{-(-span_ns // (86_400 * SECOND_NS))} d"
