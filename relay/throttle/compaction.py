"""Old slots in fewer records, so that memory and the history stay bounded.  Pure.

The newest `exact` slots stay as they are.  Of older ones the instants of their ends are rounded *up* to a
grid, by less than 1/PARTS of their age, and those that fall together are added up; so no sum falls too
early, and merging twice adds no error.  A slot is dropped once no limit that a policy can hold asks for
it.

What is merged is told in two records: the totals, which count for no key, and the shares, which count for
nothing but their keys.  Where there are more than `most_shares`, the lightest keys of each instant become
one share of UNKNOWN, as heavy as the heaviest of them: UNKNOWN counts for every key.  So no key ever
counts for less, or for a shorter time, than it had.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from relay.clock import LONGEST_DURATION_NS
from relay.throttle.events import UNKNOWN, Share, Slot
from relay.throttle.window import BUCKETS, EXACT_SLOTS

KEEP_NS = 2 * LONGEST_DURATION_NS
"""The longest period and the longest guard that a policy can hold."""
Sums = dict[tuple[str, str], Share]
"""Shares by kind and key."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much of the past is kept, and how exactly."""

    exact: int = 2 * EXACT_SLOTS
    """What an exact window admits in two spans, so that rounding what is older cannot reach into it."""
    at_once: int = EXACT_SLOTS
    """So many slots more than that wait to be merged."""
    parts: int = BUCKETS
    most_shares: int = 262_144
    """Some 40 MB."""


BOUNDS = Bounds()


def compacted(ended: Sequence[Slot], now_ns: int, bounds: Bounds = BOUNDS) -> list[Slot]:
    """Return what is to be kept of slots that have ended; both ascend by their ends."""
    split = max(0, len(ended) - bounds.exact)
    shares = sum(len(slot.shares) for slot in ended)
    if shares > bounds.most_shares:
        # Those of the newest are kept as they are, as far as half of the room goes.
        split, spare = len(ended), bounds.most_shares // 2
        while split > max(0, len(ended) - bounds.exact) and spare >= len(ended[split - 1].shares):
            split -= 1
            spare -= len(ended[split].shares)
    old = [slot for slot in ended[:split] if now_ns - slot.until_ns <= KEEP_NS]
    kinds = tuple(dict.fromkeys(share.for_each for slot in old for share in slot.shares))
    merged = [_total(at_ns, slots, kinds) for at_ns, slots in _together(old, now_ns, bounds.parts).items()]
    if kinds:
        keyed = _by_key(old, now_ns, bounds.parts, kinds)
        most_keys = bounds.most_shares
        if sum(len(sums) for _, sums in keyed.values()) > bounds.most_shares // 2:
            most_keys = max(1, bounds.most_shares // 2 // (len(keyed) * len(kinds)))
        merged += [
            Slot(0, started_at_ns, at_ns, 0, 0, 0, 0, _heaviest(sums, most_keys), is_open=False)
            for at_ns, (started_at_ns, sums) in keyed.items()
            if sums
        ]
    return sorted([*merged, *ended[split:]], key=end_of)


def end_of(slot: Slot) -> int:
    return slot.until_ns


def rounded_up(at_ns: int, age_ns: int, parts: int) -> int:
    """Round an instant up by less than 1/parts of its age, and never past now.

    The grain is a power of two, so that rounding again when it is older lands on the same grid.
    """
    grain_ns = age_ns // parts
    if grain_ns < 2:
        return at_ns
    grain_ns = 1 << (grain_ns.bit_length() - 1)
    return -(-at_ns // grain_ns) * grain_ns


def _together(slots: Iterable[Slot], now_ns: int, parts: int) -> dict[int, list[Slot]]:
    found: dict[int, list[Slot]] = {}
    for slot in slots:
        found.setdefault(rounded_up(slot.until_ns, now_ns - slot.until_ns, parts), []).append(slot)
    return found


def _total(at_ns: int, slots: Sequence[Slot], kinds: Sequence[str]) -> Slot:
    """Add slots up, without their keys: the total counts for none."""
    messages, recipients, connections, size_bytes = (
        sum(each) for each in zip(*(slot[3:7] for slot in slots), strict=True)
    )
    started_at_ns = min(slot.started_at_ns for slot in slots)
    none = tuple(Share(kind, UNKNOWN, 0, 0, 0) for kind in kinds)
    return Slot(0, started_at_ns, at_ns, messages, recipients, connections, size_bytes, none, is_open=False)


def _by_key(
    slots: Iterable[Slot], now_ns: int, parts: int, kinds: Sequence[str]
) -> dict[int, tuple[int, Sums]]:
    """Return by instant when the first of its slots began, and its shares added up by key."""
    return {
        at_ns: (min(slot.started_at_ns for slot in each), _sums(each, kinds))
        for at_ns, each in _together(slots, now_ns, parts).items()
    }


def _sums(slots: Sequence[Slot], kinds: Sequence[str]) -> Sums:
    """Add shares up; a slot without a share of some kind counts as UNKNOWN there."""
    sums: Sums = {}
    for slot in slots:
        told = {share.for_each for share in slot.shares}
        weights = slot.messages, slot.recipients, slot.bytes
        unknown = [Share(kind, UNKNOWN, *weights) for kind in kinds if kind not in told]
        for share in (*slot.shares, *unknown):
            if any(share[2:]):
                before = sums.get(share[:2])
                sums[share[:2]] = share if before is None else _sum(before, share)
    return sums


def _heaviest(sums: Sums, most_keys: int) -> tuple[Share, ...]:
    """Keep the heaviest keys of each kind, and of the others the most that one had, as UNKNOWN."""
    kept: list[Share] = []
    for kind in dict.fromkeys(share.for_each for share in sums.values()):
        shares = [share for share in sums.values() if share.for_each == kind and share.key != UNKNOWN]
        shares.sort(key=lambda share: (share.recipients, share.bytes), reverse=True)
        unknown = sums.get((kind, UNKNOWN), Share(kind, UNKNOWN, 0, 0, 0))
        if rest := shares[most_keys:]:
            messages, recipients, size_bytes = (
                max(each) for each in zip(*(share[2:] for share in rest), strict=True)
            )
            unknown = _sum(unknown, Share(kind, UNKNOWN, messages, recipients, size_bytes))
        kept += [*shares[:most_keys], *([unknown] if any(unknown[2:]) else [])]
    return tuple(kept)


def _sum(one: Share, other: Share) -> Share:
    messages, recipients = one.messages + other.messages, one.recipients + other.recipients
    return Share(one.for_each, one.key, messages, recipients, one.bytes + other.bytes)
