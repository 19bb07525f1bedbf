"""Merges old slots, so that memory and the history stay bounded.  Pure.

The newest `exact` slots stay as they are, within half of `most_shares`.  The ends of older slots are rounded
*up* to a grid, by less than 1/parts of their age.  Slots with the same rounded end and the same kinds of
shares become one, with a sum for each key.  So no weight becomes free too early, and merging twice adds no
error.  A slot is dropped once no limit that a policy can hold needs it.

If the shares of merged slots exceed the other half of `most_shares`, the oldest slots lose their shares.  A
slot without shares counts for every key.  So no key ever counts for less, or for a shorter time, than before.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from relay.clock import LONGEST_DURATION_NS
from relay.throttle.history import Share, Slot

KEEP_NS = 2 * LONGEST_DURATION_NS
"""The longest period plus the longest guard that a policy can hold."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much of the past is kept, and how exactly."""

    exact: int = 8192
    """A limit with N up to half of this is exact: rounding moves no slot older than two spans into it."""
    parts: int = 1024
    """Larger limits waste less than 1/parts of their span."""
    most_shares: int = 400_000
    """About 80 MB: half for exact slots, half for merged slots."""
    least: int = 12_288
    """New events trigger no compaction up to this number of slots and shares."""


BOUNDS = Bounds()


def compacted(ended: Sequence[Slot], now_ns: int, bounds: Bounds = BOUNDS) -> list[Slot]:
    """Return what to keep of slots that have ended.  Argument and result ascend by their ends."""
    split, spare = len(ended), bounds.most_shares // 2
    while split > max(0, len(ended) - bounds.exact) and spare >= len(ended[split - 1].shares):
        split -= 1
        spare -= len(ended[split].shares)
    together: dict[tuple[int, frozenset[str]], list[Slot]] = {}
    for slot in ended[:split]:
        if (age_ns := now_ns - slot.until_ns) <= KEEP_NS:
            kinds = frozenset([share.for_each for share in slot.shares])
            end_ns = _rounded_up(slot.until_ns, age_ns, bounds.parts)
            together.setdefault((end_ns, kinds), []).append(slot)
    merged, spare = [], bounds.most_shares // 2
    for (end_ns, _), slots in sorted(together.items(), key=lambda item: item[0][0], reverse=True):
        slot = _sum(end_ns, slots)
        spare -= len(slot.shares)
        merged.append(slot if spare >= 0 else slot._replace(shares=()))
    return sorted([*merged, *ended[split:]], key=end_of)


def end_of(slot: Slot) -> int:
    return slot.until_ns


def _rounded_up(at_ns: int, age_ns: int, parts: int) -> int:
    """Round an instant up by less than 1/parts of its age, and never past now.

    The grain is a power of two, so rounding again at a greater age lands on the same grid.
    """
    grain_ns = age_ns // parts
    if grain_ns < 2:
        return at_ns
    grain_ns = 1 << (grain_ns.bit_length() - 1)
    return -(-at_ns // grain_ns) * grain_ns


def _sum(end_ns: int, slots: Sequence[Slot]) -> Slot:
    """Add slots with the same kinds of shares up to one that ends at `end_ns`."""
    sums: dict[tuple[str, str], tuple[int, int, int]] = {}
    for slot in slots:
        for for_each, key, *weights in slot.shares:
            messages, recipients, size_bytes = sums.get((for_each, key), (0, 0, 0))
            sums[for_each, key] = messages + weights[0], recipients + weights[1], size_bytes + weights[2]
    return Slot(
        0,
        min(slot.started_at_ns for slot in slots),
        end_ns,
        sum(slot.messages for slot in slots),
        sum(slot.recipients for slot in slots),
        sum(slot.connections for slot in slots),
        sum(slot.bytes for slot in slots),
        tuple([Share(*kind_and_key, *weights) for kind_and_key, weights in sums.items()]),
        is_open=False,
    )
