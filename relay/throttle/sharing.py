"""Whose old ends were, in bounded memory: by the slice, and of the lightest only how much.  Pure.

Guarantees: no key ever counts for less, or for shorter, than it had; weights apart from
keys stay as they are.  While there are few shares nothing is changed.  Beyond that the
newest half stay as they are, and older ones are told

- by the slice: the last end of each has the shares of all in it, added up by key, and the
  others say that nothing is to be counted with them.  So a key's share counts longer by less
  than 1/PARTS of its age;
- and where even these are too many, of the lightest keys of a slice only what the heaviest of
  them had, as what may be anybody's: no key had more.

Slices are cut on the grid of `merging.rounded_up`, so doing it again adds no error.
"""

import heapq
from collections.abc import Iterable, Sequence

from relay.throttle.compaction import earliest, rounded_up
from relay.throttle.history_format import UNKNOWN, Charged, Share

PARTS = 16
"""How many slices there are, at least, in as much time as has passed since the newest of them."""
LEAST_OF_A_SLICE = 16
"""The heaviest keys of a slice and kind, which are told apart however many shares there are."""


def thinned(ended: Sequence[Charged], most: int, now_ns: int) -> list[Charged]:
    """Return ends, which ascend, with about `most` shares; those that only say nothing come on top."""
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
        *others, last = _by_the_last(each, spare)
        spare -= len(last.shares)
        told += [*others, last]
    return [*sorted(told, key=lambda charged: charged.ended_at_ns), *ended[split:]]


def _by_the_last(ended: Sequence[Charged], spare: int) -> list[Charged]:
    """Return the ends of one slice, with the shares of all at the last of them."""
    last = ended[-1]
    kinds = sorted({share.for_each for charged in ended for share in charged.shares})
    shares: list[Share] = []
    for kind in kinds:
        of_kind = [share for charged in ended for share in charged.shares if share.for_each == kind]
        if not any(share.for_each == kind for share in last.shares):
            of_kind.append(Share(kind, UNKNOWN, last.messages, last.recipients))
        shares += _heaviest(kind, of_kind, max(LEAST_OF_A_SLICE, spare // len(kinds)))
    return [
        *(charged._replace(shares=_elsewhere(charged)) for charged in ended[:-1]),
        last._replace(
            started_at_ns=earliest(charged.started_at_ns for charged in ended),
            shares=tuple(shares),
            is_merged=last.is_merged or len(ended) > 1,
        ),
    ]


def _elsewhere(charged: Charged) -> tuple[Share, ...]:
    """Return what stands for shares that a later end tells."""
    kinds = dict.fromkeys(share.for_each for share in charged.shares)
    return tuple(Share(kind, UNKNOWN, 0, 0) for kind in kinds)


def _heaviest(kind: str, shares: Iterable[Share], most: int) -> list[Share]:
    """Add up shares of one kind by key; of all but so many keys return only the most that one had."""
    sums: dict[str, tuple[int, int]] = {}
    for share in shares:
        messages, recipients = sums.get(share.key, (0, 0))
        sums[share.key] = messages + share.messages, recipients + share.recipients
    messages, recipients = sums.pop(UNKNOWN, (0, 0))
    if len(sums) > most:
        kept = heapq.nlargest(most, sums, key=lambda key: sums[key][::-1])
        rest = [sums.pop(key) for key in sums.keys() - set(kept)]
        messages += max(each for each, _ in rest)
        recipients += max(each for _, each in rest)
    told = [Share(kind, key, *weights) for key, weights in sums.items()]
    if messages or recipients or not told:
        told.append(Share(kind, UNKNOWN, messages, recipients))
    return told
