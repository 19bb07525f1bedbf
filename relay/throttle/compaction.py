"""Old ends, rounded up and added together, so that memory and the history stay bounded.  Pure.

Guarantees: no end is moved to an earlier instant, past now, or by more than 1/1024 of its
age; none is dropped that some window can still ask for; how often it is done makes no
difference to that.
"""

from collections.abc import Iterable, Sequence

from relay.policy.units import LONGEST_DURATION_NS
from relay.throttle.history_format import UNKNOWN, Charged, Share
from relay.throttle.window import BUCKETS

KEEP_NS = 2 * LONGEST_DURATION_NS
"""The longest period and the longest guard that a policy can hold."""


def merge(ended: Iterable[Charged], now_ns: int) -> list[Charged]:
    """Round ends up and add up those that fall together; drop what no window can ask for."""
    together: dict[int, list[Charged]] = {}
    for charged in ended:
        age_ns = now_ns - charged.ended_at_ns
        if age_ns <= KEEP_NS:
            at_ns = rounded_up(charged.ended_at_ns, age_ns, BUCKETS)
            together.setdefault(at_ns, []).append(charged)
    return [_as_one(at_ns, each) for at_ns, each in together.items()]


def _as_one(at_ns: int, ended: Sequence[Charged]) -> Charged:
    """Return ends as one, at an instant that none of them is after."""
    if len(ended) == 1:
        (charged,) = ended
        is_moved = at_ns != charged.ended_at_ns
        return charged._replace(ended_at_ns=at_ns, is_merged=True) if is_moved else charged
    starts_ns = [charged.started_at_ns for charged in ended]
    return Charged(
        at_ns,
        sum(charged.messages for charged in ended),
        sum(charged.recipients for charged in ended),
        sum(charged.connections for charged in ended),
        earliest(starts_ns),
        _shares_of_all(ended),
        is_merged=True,
    )


def earliest(starts_ns: Iterable[int | None]) -> int | None:
    """Return the first of some starts; None where one was not kept."""
    known_ns: list[int] = []
    for start_ns in starts_ns:
        if start_ns is None:
            return None
        known_ns.append(start_ns)
    return min(known_ns)


def _shares_of_all(ended: Sequence[Charged]) -> tuple[Share, ...]:
    """Return whose several ends are; where one of them says nothing of a kind of key, it may be anybody's."""
    kinds = {share.for_each for charged in ended for share in charged.shares}
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for charged in ended:
        unknown = kinds - {share.for_each for share in charged.shares}
        extra = [Share(kind, UNKNOWN, charged.messages, charged.recipients) for kind in sorted(unknown)]
        for share in (*charged.shares, *extra):
            messages, recipients = sums.get(share[:2], (0, 0))
            sums[share[:2]] = messages + share.messages, recipients + share.recipients
    return tuple(Share(*whose, *weights) for whose, weights in sums.items())


def rounded_up(ended_at_ns: int, age_ns: int, parts: int) -> int:
    """Return an instant rounded up by less than 1/parts of its age, and never past now.

    The grain is a power of two, so that rounding again when it is older lands on the same
    grid: errors do not add up.
    """
    grain_ns = age_ns // parts
    if grain_ns < 2:
        return ended_at_ns
    grain_ns = 1 << (grain_ns.bit_length() - 1)
    return -(-ended_at_ns // grain_ns) * grain_ns
