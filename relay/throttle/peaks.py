"""The most that any window of a limit can have held, laid on a line and counted.  Pure.

Shares no arithmetic with `window`, `gauge` and `admission`, which it judges.  A slot is occupied
from its reservation until T after its end.  Whatever an upstream counted in one window of length T
was occupied at the instant at which the last of it began; so the most that is occupied at one
instant is the most that any window can hold.  T is the policy's; the guard is beyond what is
promised.  `audit` judges a history by today's limits: where N was lowered, or a limit added, what
was sent before may well exceed it.

What is not known exactly is counted apart, and never for less than it can be:
- a transaction without an end counts until its deadline;
- one whose start was not kept counts from its end (version 1 of the format);
- merged transactions have the earliest start and the latest end of their parts: they are in
  `at_most` only, with everything else; `most` has the rest, exactly;
- of a limit with keys, what is of no known key counts for every key, in `at_most` only.

Of a calendar's periods a slot is occupied until the end of the period in which it ended, as the wall
clock had them: a reading of the clock lays out the periods that hold any of its time, and each reading is
counted by itself, by its least offset, without the guard.  What the clock said at a time of which only a
wide span is known lays out none.

Therefore each limit's peak is counted before ends are merged, and kept as `history_format.Highest`;
`raised` goes on from that.  Where merged records cannot prove a limit, as for a new one, the proof
begins when they no longer count, and says so (`since_ns`).
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from relay.throttle.history_format import (
    ALIKE_NS,
    UNKNOWN,
    UNKNOWN_BYTES,
    Begun,
    Charged,
    ClockReading,
    Ended,
    Highest,
    HistoryError,
    Record,
    Reserved,
    read_groups,
    read_header,
)
from relay.throttle.limit import ForEach, Limit, Unit

MOST_KEPT = 64
"""What is kept of limits, those of today and, as far as there is room, those of other policies."""

Subject = tuple[Unit, int, ForEach | None, str | None, str | None]
"""What is counted, of which T or calendar and of whom: whatever its N, it is the same question."""
Slot = tuple[int, int, int]
"""From, to (exclusive) and weight."""


class ProofSpan(NamedTuple):
    """One transaction or connection, or several that were merged, from start to end."""

    started_at_ns: int
    ended_at_ns: int
    record: Reserved | Charged
    is_merged: bool = False
    has_start: bool = True


class _Held(NamedTuple):
    most: int
    most_at_ns: int | None
    key: str | None
    at_most: int


def subject_of(limit: Limit | Highest) -> Subject:
    if isinstance(limit, Highest):
        return limit.unit, limit.per_ns, limit.for_each, limit.only, limit.calendar
    calendar = None if limit.calendar is None else limit.calendar.name
    return limit.unit, 0 if calendar else limit.per_ns, limit.for_each, limit.only, calendar


def spans_of(records: Iterable[Record]) -> tuple[list[ProofSpan], set[int]]:
    """Return every transaction and connection once, and when each began that has no end."""
    known: dict[int, ProofSpan] = {}
    others: list[ProofSpan] = []
    open_ids: set[int] = set()
    for record in records:
        match record:
            case Reserved(reservation_id, deadline_ns):
                open_ids.add(reservation_id)
                known[reservation_id] = ProofSpan(reservation_id, deadline_ns, record)
            case Ended(reservation_id, ended_at_ns):
                if reservation_id in open_ids:
                    open_ids.remove(reservation_id)
                    known[reservation_id] = known[reservation_id]._replace(ended_at_ns=ended_at_ns)
            case Highest() | ClockReading() | Begun():
                continue
            case Charged(ended_at_ns=ended_at_ns, started_at_ns=started_at_ns, is_merged=is_merged):
                start_ns = ended_at_ns if started_at_ns is None else started_at_ns
                span = ProofSpan(start_ns, ended_at_ns, record, is_merged, started_at_ns is not None)
                if is_merged or started_at_ns is None:
                    others.append(span)
                elif (before := known.get(started_at_ns)) is None or before.ended_at_ns < ended_at_ns:
                    # One that outlived its deadline was charged twice, and is one transaction.
                    open_ids.discard(started_at_ns)
                    known[started_at_ns] = (
                        span if before is None else before._replace(ended_at_ns=ended_at_ns)
                    )
    return [*known.values(), *others], open_ids


def raised(
    before: Iterable[Highest], limits: Sequence[Limit], records: Iterable[Record], until_ns: int
) -> list[Highest]:
    """Return what limits held at any instant before `until_ns`, going on from what is known already.

    Nothing that is not in `records` may begin before `until_ns`.
    """
    kept = {subject_of(each): each for each in before}
    subjects = [subject_of(limit) for limit in limits]
    records = list(records)
    readings = [each for each in records if isinstance(each, ClockReading)]
    longest_ns = {subject_of(limit): _longest_ns(limit) for limit in limits}
    if all(subject in kept for subject in subjects):
        # What was free again by then is in what was counted.
        from_ns = min((kept[each].until_ns - longest_ns[each] for each in subjects), default=until_ns)
        records = [
            record
            for record in records
            if not (isinstance(record, Charged) and record.ended_at_ns <= from_ns)
        ]
    spans, _ = spans_of(records)
    for limit, subject in zip(limits, subjects, strict=True):
        # Moved behind the limits of other policies, which are dropped first.
        kept[subject] = highest(limit, kept.pop(subject, None), spans, until_ns, readings)
    return list(kept.values())[-MOST_KEPT:]


def _longest_ns(limit: Limit) -> int:
    return limit.per_ns if limit.calendar is None else limit.calendar.longest_ns


def highest(
    limit: Limit,
    before: Highest | None,
    spans: Sequence[ProofSpan],
    until_ns: int,
    readings: Sequence[ClockReading] = (),
) -> Highest:
    """Ask `readings` where the limit is of a calendar."""
    if before is None:
        first_ns = min((span.started_at_ns for span in spans), default=until_ns)
        before = Highest(first_ns, first_ns, 0, 0, 0, None, None, *subject_of(limit))
    if limit.calendar is not None:
        return _highest_by_the_clock(
            limit, _longest_ns(limit), before, spans, until_ns=until_ns, readings=readings
        )
    exact, rough = _slots_by_key(limit, spans)
    found = _held(exact, rough, before.until_ns, until_ns)
    if found.most > before.most:
        before = before._replace(most=found.most, most_at_ns=found.most_at_ns, key=found.key)
    since_ns, earlier, at_most = before.since_ns, before.earlier, max(before.at_most, found.at_most)
    if at_most > limit.count >= before.most:
        # Merged records cannot prove it: begin when they no longer count.
        ends_ns = (end_ns for slots in rough.values() for _, end_ns, _ in slots)
        since_ns = max(since_ns, min(until_ns, max(ends_ns, default=before.until_ns)))
        earlier, at_most = max(earlier, at_most), _held(exact, rough, since_ns, until_ns).at_most
    return before._replace(since_ns=since_ns, until_ns=until_ns, at_most=at_most, earlier=earlier)


def _highest_by_the_clock(
    limit: Limit,
    longest_ns: int,
    before: Highest,
    spans: Sequence[ProofSpan],
    *,
    until_ns: int,
    readings: Sequence[ClockReading],
) -> Highest:
    since_ns, at_most, earlier = before.since_ns, before.at_most, before.earlier
    for number, reading in enumerate(readings):
        # Of the last one the time goes on; a period is over one longest period after it began.
        is_last = number == len(readings) - 1
        last_ns = until_ns if is_last else min(until_ns, reading.until_ns + longest_ns)
        first_ns = max(before.until_ns, reading.since_ns)
        is_wide = reading.most_ns is None or reading.most_ns - reading.least_ns > 2 * ALIKE_NS
        if first_ns >= last_ns or is_wide:
            continue
        exact, rough = _slots_by_key(limit, spans, reading.least_ns)
        found = _held(exact, rough, first_ns, last_ns)
        if found.most > before.most:
            before = before._replace(most=found.most, most_at_ns=found.most_at_ns, key=found.key)
        if found.at_most > limit.count >= found.most:
            # Merged records cannot prove it: begin when they no longer count.
            ends_ns = (end_ns for slots in rough.values() for _, end_ns, _ in slots)
            since_ns = max(since_ns, min(last_ns, max(ends_ns, default=first_ns)))
            earlier = max(earlier, found.at_most)
            found = _held(exact, rough, min(since_ns, last_ns), last_ns)
        at_most = max(at_most, found.at_most)
    return before._replace(since_ns=since_ns, until_ns=until_ns, at_most=at_most, earlier=earlier)


def _held(
    exact: dict[str | None, list[Slot]], rough: dict[str | None, list[Slot]], from_ns: int, until_ns: int
) -> _Held:
    most, most_at_ns, most_key = 0, None, None
    for key, slots in exact.items():
        if sum(weight for _, _, weight in slots) > most:
            found, at_ns = _most(slots, from_ns, until_ns)
            if found > most:
                most, most_at_ns, most_key = found, at_ns, key
    at_most = most
    for key in rough.keys() - {None}:
        slots = [*exact.get(key, ()), *rough[key]]
        if sum(weight for _, _, weight in slots) > at_most:
            at_most = max(at_most, _most(slots, from_ns, until_ns)[0])
    if None in exact and None in rough:
        # Without keys all of it is one.
        at_most = _most([*exact[None], *rough[None]], from_ns, until_ns)[0]
    elif None in rough:
        # What may be of any key counts for each.
        at_most += _most(rough[None], from_ns, until_ns)[0]
    return _Held(most, most_at_ns, most_key, at_most)


def _slots_by_key(
    limit: Limit, spans: Iterable[ProofSpan], ahead_ns: int = 0
) -> tuple[dict[str | None, list[Slot]], dict[str | None, list[Slot]]]:
    exact: dict[str | None, list[Slot]] = {}
    rough: dict[str | None, list[Slot]] = {}
    for started_at_ns, ended_at_ns, record, is_merged, _ in spans:
        for key, weight in _of_keys(limit, record):
            free_at_ns = ended_at_ns + limit.per_ns
            if limit.calendar is not None:
                free_at_ns = limit.calendar.after(ended_at_ns + ahead_ns) - ahead_ns
            slot = (started_at_ns, free_at_ns, weight)
            # Without a key, where keys are asked for, it may be of any of them.
            is_rough = is_merged or (limit.for_each is not None and key is None) or weight >= UNKNOWN_BYTES
            (rough if is_rough else exact).setdefault(key, []).append(slot)
    return exact, rough


def _of_keys(limit: Limit, record: Reserved | Charged) -> list[tuple[str | None, int]]:
    """Return weights by key; None stands for no or any key."""
    weight = record.of(limit.unit)
    shares = [share for share in record.shares if share.for_each == limit.for_each]
    if not shares:
        return [(None, weight)] if weight else []
    found: list[tuple[str | None, int]] = []
    for share in shares:
        if limit.only is not None and share.key not in (limit.only, UNKNOWN):
            continue
        if of_key := share.of(limit.unit):
            found.append((None if share.key == UNKNOWN else share.key, of_key))
    return found


def _most(slots: Iterable[Slot], from_ns: int, until_ns: int) -> tuple[int, int | None]:
    """Return the most weight at one instant, and the first such instant."""
    steps: list[tuple[int, int]] = [(from_ns, 0)]
    all_along = 0
    for start_ns, end_ns, weight in slots:
        if start_ns <= from_ns and end_ns >= until_ns:
            all_along += weight
        elif start_ns < until_ns and end_ns > from_ns:
            steps.append((max(start_ns, from_ns), weight))
            steps.append((end_ns, -weight))
    # Of one instant, what goes comes first: no sum in between is more than those beside it.
    steps.sort()
    occupied = list(itertools.accumulate(weight for _, weight in steps))
    most = max(occupied)
    is_any = all_along + most > 0 and from_ns < until_ns
    return (all_along + most, steps[occupied.index(most)][0]) if is_any else (0, None)


@dataclass(frozen=True, slots=True)
class Peak:
    label: str
    unit: str
    count: int
    period_ns: int
    most: int
    """The most that was ever occupied at once, of one key where it has keys; by what was known exactly."""
    most_at_ns: int | None
    """Wall clock: when it first was; None where there is nothing."""
    at_most: int
    """The same with all that is known only roughly: no window can have held more."""
    key: str | None
    proven_since_ns: int | None
    """Wall clock: since then no window can have held more than N, where that is not proven of before."""
    counted_until_ns: int | None
    """Wall clock: what it held before was counted when ends were merged, and is not to be counted anew."""

    @property
    def is_exceeded(self) -> bool:
        return self.most > self.count

    @property
    def is_proven(self) -> bool:
        return self.at_most <= self.count


@dataclass(frozen=True, slots=True)
class Audit:
    transactions: int
    """Known one by one."""
    connections: int
    """The same; they are kept where a limit counts them."""
    in_flight: int
    """Of `transactions`, those without an end so far."""
    merged: int
    """Messages and connections that compaction has merged into fewer lines."""
    without_start: int
    since_ns: int | None
    """Wall clock: the earliest instant that is known; None for an empty history."""
    until_ns: int | None
    """Wall clock: when it was last written."""
    findings: tuple[Peak, ...]
    """In the order of the limits."""


def audit(content: bytes, limits: Sequence[Limit]) -> Audit:
    _, start = read_header(content)
    contents = read_groups(content, start)
    if contents.at is None:
        raise HistoryError(f"byte {start}: its first group is damaged")
    wall_ns = contents.at.wall_ns - contents.at.boottime_ns
    spans, open_ids = spans_of(contents.records)
    known = [span for span in spans if not span.is_merged]
    transactions = [span.started_at_ns for span in known if span.record.messages]
    # Behind all that the file tells of.
    until_ns = 1 + max([contents.at.boottime_ns, *(span.started_at_ns for span in spans)])
    readings = [each for each in contents.records if isinstance(each, ClockReading)]
    readings += contents.readings
    before = {subject_of(each): each for each in contents.records if isinstance(each, Highest)}
    findings = []
    for limit in limits:
        counted = before.get(subject_of(limit))
        findings.append(_finding(limit, highest(limit, counted, spans, until_ns, readings), counted, wall_ns))
    return Audit(
        len(transactions),
        len(known) - len(transactions),
        len(open_ids.intersection(transactions)),
        sum(each.record.messages + each.record.connections for each in spans if each.is_merged),
        sum(not each.has_start for each in spans),
        min((wall_ns + span.started_at_ns for span in spans), default=None),
        contents.at.wall_ns,
        tuple(findings),
    )


def _finding(limit: Limit, found: Highest, before: Highest | None, wall_ns: int) -> Peak:
    at_most = max(found.at_most, found.earlier)
    is_proven_since = found.at_most <= limit.count < at_most
    return Peak(
        limit.label,
        limit.unit,
        limit.count,
        limit.per_ns,
        found.most,
        None if found.most_at_ns is None else wall_ns + found.most_at_ns,
        at_most,
        found.key,
        wall_ns + found.since_ns if is_proven_since else None,
        None if before is None else wall_ns + before.until_ns,
    )
