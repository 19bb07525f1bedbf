"""What limits held at most, laid on a line and counted.  Pure.

Shares no arithmetic with `window`, `gauge` and `decision`.  A slot is occupied from its
reservation until T after its end.  Whatever an upstream counted in one window of length T
was occupied at the instant at which the last of it began; so the most that is occupied at
one instant is the most that any window can hold.  T is the policy's; the guard is beyond
what is promised.

What is not known exactly is told apart, and never taken for less than it can be:
- a transaction without an end counts until its deadline;
- one whose start was not kept counts from its end (version 1 of the format);
- what was merged has the earliest start and the latest end of its parts: it is in
  `at_most` only, with everything else; `most` has the rest, exactly;
- of a limit with keys, what is of no known key counts for every key, in `at_most` only.

So it is counted before anything is merged, and kept as `record.Highest`: `raised` goes on
from what it said.  Where what is known roughly cannot prove a limit, as of one that is new,
the proof begins where no more of that counts, and says so (`since_ns`).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from relay.limit import ForEach, Limit, Unit
from relay.throttle.gauge import UNKNOWN
from relay.throttle.record import Charged, Ended, Highest, Record, Reserved, Share

MOST_KEPT = 64
"""What is kept of limits, those of today and, as far as there is room, those of other policies."""

Subject = tuple[Unit, int, ForEach | None, str | None]
"""What is counted, of which T and of whom: whatever its N, it is the same question."""
Slot = tuple[int, int, int]
"""From, to and how much."""


class Stretch(NamedTuple):
    """One transaction or connection, or several that were merged, from start to end."""

    started_at_ns: int
    ended_at_ns: int
    weights: dict[str, int]
    shares: tuple[Share, ...]
    is_merged: bool
    has_start: bool


class _Held(NamedTuple):
    """What a limit held at one instant of some."""

    most: int
    most_at_ns: int | None
    key: str | None
    at_most: int


def subject_of(limit: Limit | Highest) -> Subject:
    """Return what it is that a limit, or what is kept of one, is about."""
    return limit.unit, limit.per_ns, limit.for_each, limit.only


def stretches_of(records: Iterable[Record]) -> tuple[list[Stretch], int]:
    """Return every transaction once, and how many of them have no end."""
    known: dict[int, Stretch] = {}
    others: list[Stretch] = []
    open_ids: set[int] = set()
    for record in records:
        match record:
            case Reserved(reservation_id, deadline_ns, _, _, _, shares):
                open_ids.add(reservation_id)
                known[reservation_id] = Stretch(
                    reservation_id, deadline_ns, _weights(record), shares, is_merged=False, has_start=True
                )
            case Ended(reservation_id, ended_at_ns):
                if reservation_id in open_ids:
                    open_ids.remove(reservation_id)
                    known[reservation_id] = known[reservation_id]._replace(ended_at_ns=ended_at_ns)
            case Highest():
                continue
            case Charged(ended_at_ns, _, _, _, started_at_ns, shares, is_merged):
                start_ns = ended_at_ns if started_at_ns is None else started_at_ns
                stretch = Stretch(
                    start_ns, ended_at_ns, _weights(record), shares, is_merged, started_at_ns is not None
                )
                if is_merged or started_at_ns is None:
                    others.append(stretch)
                elif (before := known.get(started_at_ns)) is None or before.ended_at_ns < ended_at_ns:
                    # One that outlived its deadline was charged twice, and is one transaction.
                    open_ids.discard(started_at_ns)
                    known[started_at_ns] = (
                        stretch if before is None else before._replace(ended_at_ns=ended_at_ns)
                    )
    return [*known.values(), *others], len(open_ids)


def raised(
    before: Iterable[Highest], limits: Iterable[Limit], records: Iterable[Record], until_ns: int
) -> list[Highest]:
    """Return what limits held at any instant before `until_ns`, going on from what is known already.

    Nothing that is not in `records` may begin before `until_ns`.
    """
    kept = {subject_of(each): each for each in before}
    stretches, _ = stretches_of(records)
    for limit in limits:
        subject = subject_of(limit)
        # Behind those that nobody goes on with.
        kept[subject] = highest(limit, kept.pop(subject, None), stretches, until_ns)
    return list(kept.values())[-MOST_KEPT:]


def highest(limit: Limit, before: Highest | None, stretches: Sequence[Stretch], until_ns: int) -> Highest:
    """Return what one limit held at any instant before `until_ns`."""
    exact, rough = _slots_by_key(limit, stretches)
    if before is None:
        first_ns = min((stretch.started_at_ns for stretch in stretches), default=until_ns)
        before = Highest(first_ns, first_ns, 0, 0, 0, None, None, *subject_of(limit))
    found = _held(exact, rough, before.until_ns, until_ns)
    if found.most > before.most:
        before = before._replace(most=found.most, most_at_ns=found.most_at_ns, key=found.key)
    since_ns, earlier, at_most = before.since_ns, before.earlier, max(before.at_most, found.at_most)
    if at_most > limit.count >= before.most:
        # What is known only roughly cannot tell: begin where no more of it counts.
        ends_ns = (end_ns for slots in rough.values() for _, end_ns, _ in slots)
        since_ns = max(since_ns, min(until_ns, max(ends_ns, default=before.until_ns)))
        earlier, at_most = max(earlier, at_most), _held(exact, rough, since_ns, until_ns).at_most
    return before._replace(since_ns=since_ns, until_ns=until_ns, at_most=at_most, earlier=earlier)


def _held(
    exact: dict[str | None, list[Slot]], rough: dict[str | None, list[Slot]], from_ns: int, until_ns: int
) -> _Held:
    """Return the most at one instant from one on until before another."""
    most, most_at_ns, most_key, own = 0, None, None, 0
    for key, slots in exact.items():
        if sum(weight for _, _, weight in slots) > most:
            found, at_ns = _most(slots, from_ns, until_ns)
            if found > most:
                most, most_at_ns, most_key = found, at_ns, key
    # What may be of any key counts for each; without keys it is all there is.
    anybodys = [*exact.get(None, ()), *rough.get(None, ())]
    if None not in exact:
        own = most
    for key in rough.keys() - {None}:
        own = max(own, _most([*exact.get(key, ()), *rough[key]], from_ns, until_ns)[0])
    return _Held(most, most_at_ns, most_key, own + _most(anybodys, from_ns, until_ns)[0])


def _slots_by_key(
    limit: Limit, stretches: Iterable[Stretch]
) -> tuple[dict[str | None, list[Slot]], dict[str | None, list[Slot]]]:
    """Return what is known exactly and what is known roughly, by key."""
    exact: dict[str | None, list[Slot]] = {}
    rough: dict[str | None, list[Slot]] = {}
    for stretch in stretches:
        for key, weight in _of_keys(limit, stretch):
            slot = (stretch.started_at_ns, stretch.ended_at_ns + limit.per_ns, weight)
            # Without a key, where keys are asked for, it may be of any of them.
            is_rough = stretch.is_merged or (limit.for_each is not None and key is None)
            (rough if is_rough else exact).setdefault(key, []).append(slot)
    return exact, rough


def _of_keys(limit: Limit, stretch: Stretch) -> Iterator[tuple[str | None, int]]:
    """Return what a stretch weighs by a limit, for each of its keys; None for no or any key."""
    shares = [share for share in stretch.shares if share.for_each == limit.for_each]
    for share in shares:
        if limit.only is not None and share.key not in (limit.only, UNKNOWN):
            continue
        if weight := share.messages if limit.unit == "messages" else share.recipients:
            yield None if share.key == UNKNOWN else share.key, weight
    if not shares and stretch.weights[limit.unit]:
        yield None, stretch.weights[limit.unit]


def _most(slots: Iterable[Slot], from_ns: int, until_ns: int) -> tuple[int, int | None]:
    """Return the most weight at one instant, and the first such instant; each slot is [from, to)."""
    inside = [
        (max(start_ns, from_ns), min(end_ns, until_ns), weight)
        for start_ns, end_ns, weight in slots
        if start_ns < until_ns and end_ns > from_ns
    ]
    steps = sorted(step for start, end, weight in inside for step in ((start, weight), (end, -weight)))
    most, most_at_ns, occupied = 0, None, 0
    for index, (at_ns, weight) in enumerate(steps):
        occupied += weight
        is_last_of_instant = index + 1 == len(steps) or steps[index + 1][0] != at_ns
        if is_last_of_instant and occupied > most:
            most, most_at_ns = occupied, at_ns
    return most, most_at_ns


def _weights(record: Reserved | Charged) -> dict[str, int]:
    return {
        "messages": record.messages,
        "recipients": record.recipients,
        "connections": record.connections,
    }
