"""The proof on the user's own history: the most that any window can have held.

Shares no arithmetic with `window` and `slots`: it lays every transaction of a history on a
line and counts.  A slot is occupied from its reservation until T after its end.  Whatever an
upstream counted in one window of length T was occupied at the instant at which the last of
it began; so the most that is occupied at one instant is the most that any window can hold.
T is the policy's; the guard is beyond what is promised.

What is not known exactly is told apart, and never taken for less than it can be:
- a transaction without an end counts until its deadline;
- one whose start was not kept counts from its end (version 1 of the format);
- what compaction has merged has the earliest start and the latest end of its parts: it
  is in `at_most` only, with everything else; `most` has the rest, exactly;
- of a limit with keys, what is of no known key counts for every key, in `at_most` only.

The history is judged by today's limits.  Where N was lowered, or a limit added, what was
sent before may well exceed it: `most_at_ns` tells when.

Reads without the lock: what is being added at this moment is not there yet, and a
rewrite shows the old file or the new one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from relay.limit import Limit
from relay.spool.durable import Disk
from relay.throttle.gauge import UNKNOWN
from relay.throttle.history import LARGEST_BYTES
from relay.throttle.record import (
    Charged,
    Ended,
    HistoryError,
    Record,
    Reserved,
    Share,
    read_groups,
    read_header,
)


class Stretch(NamedTuple):
    """One transaction or connection, or several that were merged, from start to end."""

    started_at_ns: int
    ended_at_ns: int
    weights: dict[str, int]
    shares: tuple[Share, ...]
    is_merged: bool
    has_start: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """What the history says about one limit."""

    label: str
    unit: str
    count: int
    period_ns: int
    most: int
    """The most that was ever occupied at once, of one key where it has keys; by what is known exactly."""
    most_at_ns: int | None
    """Wall clock: when it first was; None where there is nothing."""
    at_most: int
    """The same with all that is known only roughly: no window can have held more."""
    key: str | None
    """The key that `most` is of."""

    @property
    def is_exceeded(self) -> bool:
        """Whether some window surely held more than N."""
        return self.most > self.count

    @property
    def is_proven(self) -> bool:
        """Whether no window can have held more than N."""
        return self.at_most <= self.count


@dataclass(frozen=True, slots=True)
class Audit:
    """What the history of one account says."""

    transactions: int
    """That are known one by one."""
    in_flight: int
    """Of these: without an end so far."""
    merged: int
    """Messages and connections that compaction has merged into fewer lines."""
    without_start: int
    since_ns: int | None
    """Wall clock: the earliest instant that is known; None for an empty history."""
    until_ns: int | None
    """Wall clock: when it was last written."""
    findings: tuple[Finding, ...]
    """One a limit, in their order."""


def audit_file(path: Path, limits: Sequence[Limit], disk: Disk) -> Audit:
    """Judge a history as it is on the disk.  Raises FileNotFoundError, PermissionError and HistoryError."""
    try:
        fd = disk.open_read(str(path))
    except (FileNotFoundError, PermissionError):
        raise
    except OSError as error:
        raise HistoryError(f"{path}: cannot read: {error.strerror or error}") from error
    try:
        size = disk.size(fd)
        if size > LARGEST_BYTES:
            raise HistoryError(f"{path}: {size} bytes are no history")
        content = disk.pread(fd, size, 0)
    except OSError as error:
        raise HistoryError(f"{path}: cannot read: {error.strerror or error}") from error
    finally:
        disk.close(fd)
    try:
        return audit(content, limits)
    except HistoryError as error:
        raise HistoryError(f"{path}: {error}") from error


def audit(content: bytes, limits: Sequence[Limit]) -> Audit:
    """Judge the content of a history.  Raises HistoryError where it is none."""
    _, start = read_header(content)
    contents = read_groups(content, start)
    if contents.at is None:
        raise HistoryError(f"byte {start}: its first group is damaged")
    wall_ns = contents.at.wall_ns - contents.at.boottime_ns
    stretches, in_flight = _stretches(contents.records)
    known = [stretch for stretch in stretches if not stretch.is_merged]
    return Audit(
        len(known),
        in_flight,
        sum(each.weights["messages"] + each.weights["connections"] for each in stretches if each.is_merged),
        sum(not each.has_start for each in stretches),
        min((wall_ns + stretch.started_at_ns for stretch in stretches), default=None),
        contents.at.wall_ns,
        tuple(_finding(limit, stretches, wall_ns) for limit in limits),
    )


def _stretches(records: Sequence[Record]) -> tuple[list[Stretch], int]:
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


def _weights(record: Reserved | Charged) -> dict[str, int]:
    return {
        "messages": record.messages,
        "recipients": record.recipients,
        "connections": record.connections,
    }


def _finding(limit: Limit, stretches: Sequence[Stretch], wall_ns: int) -> Finding:
    exact: dict[str | None, list[tuple[int, int, int]]] = {}
    rough: dict[str | None, list[tuple[int, int, int]]] = {}
    for stretch in stretches:
        for key, weight in _of_keys(limit, stretch):
            slot = (stretch.started_at_ns, stretch.ended_at_ns + limit.per_ns, weight)
            # Without a key, where keys are asked for, it may be of any of them.
            is_rough = stretch.is_merged or (limit.for_each is not None and key is None)
            (rough if is_rough else exact).setdefault(key, []).append(slot)
    most, most_at_ns, most_key = max(
        ((*_most(slots), key) for key, slots in exact.items()),
        key=lambda each: each[0],
        default=(0, None, None),
    )
    anybodys = rough.pop(None, [])
    if limit.for_each is None:
        at_most = _most([*exact.get(None, []), *anybodys])[0]
    else:
        own = [_most([*exact.get(key, []), *rough.get(key, [])])[0] for key in {*exact, *rough}]
        at_most = max(own, default=0) + _most(anybodys)[0]
    return Finding(
        limit.label,
        limit.unit,
        limit.count,
        limit.per_ns,
        most,
        None if most_at_ns is None else wall_ns + most_at_ns,
        at_most,
        most_key,
    )


def _of_keys(limit: Limit, stretch: Stretch) -> Iterator[tuple[str | None, int]]:
    """Return what a stretch weighs by a limit, for each of its keys; None for no or any key."""
    shares = [share for share in stretch.shares if share.for_each == limit.for_each]
    for share in shares:
        if limit.only is not None and share.key not in (limit.only, UNKNOWN):
            continue
        weight = share.messages if limit.unit == "messages" else share.recipients
        yield None if share.key == UNKNOWN else share.key, weight
    if not shares and stretch.weights[limit.unit]:
        yield None, stretch.weights[limit.unit]


def _most(slots: Sequence[tuple[int, int, int]]) -> tuple[int, int | None]:
    """Return the most weight at one instant, and the first such instant; each slot is [from, to)."""
    steps = sorted(step for start, end, weight in slots for step in ((start, weight), (end, -weight)))
    most, most_at_ns, occupied = 0, None, 0
    for index, (at_ns, weight) in enumerate(steps):
        occupied += weight
        is_last_of_instant = index + 1 == len(steps) or steps[index + 1][0] != at_ns
        if is_last_of_instant and occupied > most:
            most, most_at_ns = occupied, at_ns
    return most, most_at_ns
