"""Old ends, rounded up and added together, so that memory and the history stay bounded.  Pure.

Guarantees: no end is moved to an earlier instant, past now, or by more than 1/1024 of its
age; none is dropped that some window can still ask for; how often it is done makes no
difference to that.
"""

from collections.abc import Iterable

from relay.policy.units import LONGEST_DURATION_NS
from relay.throttle.gauge import UNKNOWN
from relay.throttle.record import Charged, Share
from relay.throttle.window import BUCKETS

KEEP_NS = 2 * LONGEST_DURATION_NS
"""The longest period and the longest guard that a policy can hold."""


def merge(ended: Iterable[Charged], now_ns: int) -> list[Charged]:
    """Round ends up and add up those that fall together; drop what no window can ask for."""
    merged: dict[int, Charged] = {}
    for charged in ended:
        age_ns = now_ns - charged.ended_at_ns
        if age_ns > KEEP_NS:
            continue
        at_ns = _rounded_up(charged.ended_at_ns, age_ns)
        if at_ns in merged:
            merged[at_ns] = _together(merged[at_ns], charged)
        elif at_ns != charged.ended_at_ns:
            merged[at_ns] = charged._replace(ended_at_ns=at_ns, is_merged=True)
        else:
            merged[at_ns] = charged
    return list(merged.values())


def _together(one: Charged, other: Charged) -> Charged:
    """Return two ends as one, at the instant of the first."""
    one_ns, other_ns = one.started_at_ns, other.started_at_ns
    return Charged(
        one.ended_at_ns,
        one.messages + other.messages,
        one.recipients + other.recipients,
        one.connections + other.connections,
        None if one_ns is None or other_ns is None else min(one_ns, other_ns),
        _shares_of_both(one, other) if one.shares or other.shares else (),
        is_merged=True,
    )


def _shares_of_both(one: Charged, other: Charged) -> tuple[Share, ...]:
    """Return whose two ends are; where one of them says nothing of a kind of key, it may be anybody's."""
    sums: dict[tuple[str, str], list[int]] = {}
    kinds = {share.for_each for share in one.shares + other.shares}
    for charged in (one, other):
        unknown = kinds - {share.for_each for share in charged.shares}
        extra = (Share(kind, UNKNOWN, charged.messages, charged.recipients) for kind in sorted(unknown))
        for share in (*charged.shares, *extra):
            total = sums.setdefault((share.for_each, share.key), [0, 0])
            total[0] += share.messages
            total[1] += share.recipients
    return tuple(Share(kind, key, *total) for (kind, key), total in sums.items())


def _rounded_up(ended_at_ns: int, age_ns: int) -> int:
    """Return an instant rounded up by less than 1/1024 of its age, and never past now.

    The grain is a power of two, so that rounding again when it is older lands on the same
    grid: errors do not add up.
    """
    grain_ns = age_ns // BUCKETS
    if grain_ns < 2:
        return ended_at_ns
    grain_ns = 1 << (grain_ns.bit_length() - 1)
    return -(-ended_at_ns // grain_ns) * grain_ns
