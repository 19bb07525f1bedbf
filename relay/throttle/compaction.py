"""Compaction: old ends in fewer records, so that memory and the history stay bounded.  Pure.

`merge` rounds the instants of old ends up, and adds up ends that fall on one instant.  It moves no
end to an earlier instant, past now, or by more than 1/1024 of its age.  It drops an end only when no
window can ask for it any more.  Merging twice adds no error.

`thinned` bounds the number of shares, which say of which key an end is.  A key never counts for less,
or for a shorter time, than it had, and the total weights stay as they are.  Up to a bound nothing
changes.  Beyond it, the newest half of the shares stay as they are.  Older ends are cut into slices
on the grid of `rounded_up`:

- the last end of a slice gets the shares of the whole slice, added up by key, and the others say
  that they count for no key.  So a share counts longer by less than 1/PARTS of its age;
- where even that is too much, the lightest keys of a slice become one share of UNKNOWN, as heavy as
  the heaviest of them.  UNKNOWN counts for every key.
"""

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from relay.clock import LONGEST_DURATION_NS
from relay.throttle.bounds import BOUNDS
from relay.throttle.history_format import UNKNOWN, Charged, Share

KEEP_NS = 2 * LONGEST_DURATION_NS
"""The longest period and the longest guard that a policy can hold."""
PARTS = 16
"""A slice is at most 1/PARTS of its age long."""
LEAST_OF_A_SLICE = 16
"""So many keys of each kind keep a share of their own in a slice, however many shares there are."""


def merge(ended: Iterable[Charged], now_ns: int, parts: int = BOUNDS.parts) -> list[Charged]:
    """Round ends up and add up those that fall together; drop what no window can ask for."""
    together: dict[int, list[Charged]] = {}
    for charged in ended:
        age_ns = now_ns - charged.ended_at_ns
        if age_ns <= KEEP_NS:
            at_ns = rounded_up(charged.ended_at_ns, age_ns, parts)
            together.setdefault(at_ns, []).append(charged)
    return [_as_one(at_ns, each) for at_ns, each in together.items()]


def _as_one(at_ns: int, ended: Sequence[Charged]) -> Charged:
    if len(ended) == 1:
        (charged,) = ended
        is_moved = at_ns != charged.ended_at_ns
        return charged._replace(ended_at_ns=at_ns, is_merged=True) if is_moved else charged
    counts = (charged.weights for charged in ended)
    messages, recipients, connections = map(sum, zip(*counts, strict=True))
    return Charged(
        at_ns,
        messages,
        recipients,
        connections,
        earliest(charged.started_at_ns for charged in ended),
        _shares_of_all(ended),
        is_merged=True,
        bytes=total(charged.bytes if charged.messages else 0 for charged in ended),
    )


def total(sizes: Iterable[int | None]) -> int | None:
    """Return None where one was not kept."""
    known = list(sizes)
    return None if None in known else sum(each for each in known if each is not None)


class _ShareSum(NamedTuple):
    """What shares of one key add up to, as the fields of a share."""

    messages: int
    recipients: int
    bytes: int | None

    def of(self, kind: str, key: str) -> Share:
        return Share(kind, key, self.messages, self.recipients, self.bytes)

    def and_of(self, share: Share) -> "_ShareSum":
        return _ShareSum(
            self.messages + share.messages,
            self.recipients + share.recipients,
            total([self.bytes, share.bytes]),
        )


_NOTHING = _ShareSum(0, 0, 0)


def _unknown(kind: str, charged: Charged) -> Share:
    size_bytes = charged.bytes if charged.messages else 0
    return Share(kind, UNKNOWN, charged.messages, charged.recipients, size_bytes)


def earliest(starts_ns: Iterable[int | None]) -> int | None:
    """Return None where one was not kept."""
    known_ns = list(starts_ns)
    return None if None in known_ns else min(each for each in known_ns if each is not None)


def _shares_of_all(ended: Sequence[Charged]) -> tuple[Share, ...]:
    """Add up shares by key; an end without a share of some kind counts as UNKNOWN there."""
    kinds = {share.for_each for charged in ended for share in charged.shares}
    sums: dict[tuple[str, str], _ShareSum] = {}
    for charged in ended:
        unknown = kinds - {share.for_each for share in charged.shares}
        extra = [_unknown(kind, charged) for kind in sorted(unknown)]
        for share in (*charged.shares, *extra):
            sums[share[:2]] = sums.get(share[:2], _NOTHING).and_of(share)
    return tuple(each.of(*whose) for whose, each in sums.items())


def rounded_up(ended_at_ns: int, age_ns: int, parts: int) -> int:
    """Round an instant up by less than 1/parts of its age, and never past now.

    The grain is a power of two, so that rounding again when it is older lands on the same
    grid: errors do not add up.
    """
    grain_ns = age_ns // parts
    if grain_ns < 2:
        return ended_at_ns
    grain_ns = 1 << (grain_ns.bit_length() - 1)
    return -(-ended_at_ns // grain_ns) * grain_ns


def thinned(ended: Sequence[Charged], most: int, now_ns: int, least: int = LEAST_OF_A_SLICE) -> list[Charged]:
    """Keep about `most` shares of ends, which ascend; empty shares come on top."""
    if sum(len(charged.shares) for charged in ended) <= most:
        return list(ended)
    spare, split = most // 2, len(ended)
    while split and spare >= len(ended[split - 1].shares):
        split -= 1
        spare -= len(ended[split].shares)
    spare += most - most // 2
    slices: dict[int, list[Charged]] = {}
    for charged in ended[:split]:
        if charged.shares:
            at_ns = rounded_up(charged.ended_at_ns, now_ns - charged.ended_at_ns, PARTS)
            slices.setdefault(at_ns, []).append(charged)
    told = [charged for charged in ended[:split] if not charged.shares]
    for each in reversed(slices.values()):
        *others, last = _by_the_last(each, spare, least)
        spare -= len(last.shares)
        told += [*others, last]
    return [*sorted(told, key=lambda charged: charged.ended_at_ns), *ended[split:]]


def _by_the_last(ended: Sequence[Charged], spare: int, least: int) -> list[Charged]:
    last = ended[-1]
    kinds = sorted({share.for_each for charged in ended for share in charged.shares})
    shares: list[Share] = []
    for kind in kinds:
        of_kind = [share for charged in ended for share in charged.shares if share.for_each == kind]
        if not any(share.for_each == kind for share in last.shares):
            of_kind.append(_unknown(kind, last))
        shares += _heaviest(kind, of_kind, max(least, spare // len(kinds)))
    return [
        *(charged._replace(shares=_elsewhere(charged)) for charged in ended[:-1]),
        last._replace(
            started_at_ns=earliest(charged.started_at_ns for charged in ended),
            shares=tuple(shares),
            is_merged=last.is_merged or len(ended) > 1,
        ),
    ]


def _elsewhere(charged: Charged) -> tuple[Share, ...]:
    kinds = dict.fromkeys(share.for_each for share in charged.shares)
    return tuple(Share(kind, UNKNOWN, 0, 0, 0) for kind in kinds)


def _heaviest(kind: str, shares: Iterable[Share], most: int) -> list[Share]:
    """Add up shares by key; of all but `most` keys keep only the most that one had, as UNKNOWN."""
    sums: dict[str, _ShareSum] = {}
    for share in shares:
        sums[share.key] = sums.get(share.key, _NOTHING).and_of(share)
    messages, recipients, size_bytes = sums.pop(UNKNOWN, _NOTHING)
    if len(sums) > most:
        kept = heapq.nlargest(most, sums, key=lambda key: (sums[key].recipients, sums[key].messages))
        rest = [sums.pop(key) for key in sums.keys() - set(kept)]
        messages += max(each.messages for each in rest)
        recipients += max(each.recipients for each in rest)
        sizes = [each.bytes for each in rest]
        largest = None if None in sizes else max(each for each in sizes if each is not None)
        size_bytes = total([size_bytes, largest])
    told = [each.of(kind, key) for key, each in sums.items()]
    if messages or recipients or size_bytes != 0 or not told:
        told.append(Share(kind, UNKNOWN, messages, recipients, size_bytes))
    return told
