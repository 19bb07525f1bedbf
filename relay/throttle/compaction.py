"""Merges old slots, so that memory and the history stay bounded.  Pure.

The newest `exact` slots stay as they are, within half of `most_shares`.  The ends of older slots are rounded
*up* to a grid, by less than 1/parts of their age.  Slots with the same rounded end become one, with a sum
for each key.  So no weight becomes free too early, and merging twice adds no error.  A slot is dropped once
no limit that a policy can hold needs it.

If merged slots exceed the other half of `most_shares`, the lightest keys of each kind in a slot become one
share of UNKNOWN, as heavy as the heaviest of them.  UNKNOWN counts for every key, as does a slot without
shares of some kind.  So no key ever counts for less, or for a shorter time, than before.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from relay.clock import LONGEST_DURATION_NS
from relay.throttle.history import UNKNOWN, Share, Slot

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
    together: dict[int, list[Slot]] = {}
    for slot in ended[:split]:
        if (age_ns := now_ns - slot.until_ns) <= KEEP_NS:
            together.setdefault(_rounded_up(slot.until_ns, age_ns, bounds.parts), []).append(slot)
    merged = [_sum(at_ns, slots) for at_ns, slots in together.items()]
    if sum(len(slot.shares) for slot in merged) > bounds.most_shares // 2:
        most = bounds.most_shares // 2 // len(merged)
        merged = [slot._replace(shares=_heaviest(slot.shares, most)) for slot in merged]
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


def _sum(at_ns: int, slots: Sequence[Slot]) -> Slot:
    """Add slots up to one that ends at `at_ns`.  A slot without a share of some kind counts as UNKNOWN."""
    kinds = dict.fromkeys(share.for_each for slot in slots for share in slot.shares)
    shares: dict[tuple[str, str], Share] = {}
    for slot in slots:
        told = {share.for_each for share in slot.shares}
        unknown = [
            Share(kind, UNKNOWN, slot.messages, slot.recipients, slot.bytes)
            for kind in kinds
            if kind not in told
        ]
        for kind, key, messages, recipients, size_bytes in (*slot.shares, *unknown):
            _, _, *before = shares.get((kind, key), (kind, key, 0, 0, 0))
            shares[kind, key] = Share(
                kind, key, before[0] + messages, before[1] + recipients, before[2] + size_bytes
            )
    return Slot(
        0,
        min(slot.started_at_ns for slot in slots),
        at_ns,
        sum(slot.messages for slot in slots),
        sum(slot.recipients for slot in slots),
        sum(slot.connections for slot in slots),
        sum(slot.bytes for slot in slots),
        tuple(shares.values()),
        is_open=False,
    )


def _heaviest(shares: Sequence[Share], most: int) -> tuple[Share, ...]:
    """Keep the heaviest keys; replace the others of each kind by UNKNOWN with their largest weights."""
    kept = [share for share in shares if share.key == UNKNOWN]
    ranked = sorted((s for s in shares if s.key != UNKNOWN), key=lambda share: share[2:], reverse=True)
    for kind in dict.fromkeys(share.for_each for share in ranked[most:]):
        others = (share[2:] for share in ranked[most:] if share.for_each == kind)
        kept.append(Share(kind, UNKNOWN, *map(max, zip(*others, strict=True))))
    return (*kept, *ranked[:most])
