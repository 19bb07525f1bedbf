"""The proof on the user's own history: the most that any window can have held.

What a slot is, and what counts where something is known only roughly, says `proof`, which
shares no arithmetic with what lets messages go.  Older transactions are merged into fewer
lines; what limits held before that was counted then, and stands in the file (`Highest`).

The history is judged by today's limits.  Where N was lowered, or a limit added, what was
sent before may well exceed it: `most_at_ns` tells when.

Reads without the lock: what is being added at this moment is not there yet, and a
rewrite shows the old file or the new one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from relay.spool.durable import Disk
from relay.throttle import high_water
from relay.throttle.history import LARGEST_BYTES
from relay.throttle.history_check import reached_by
from relay.throttle.history_format import Highest, HistoryError, read_groups, read_header
from relay.throttle.limit import Limit
from relay.throttle.proof import highest, stretches_of, subject_of


@dataclass(frozen=True, slots=True)
class Peak:
    """What the history says about one limit."""

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
    """The key that `most` is of."""
    proven_since_ns: int | None
    """Wall clock: since then no window can have held more than N, where that is not proven of before."""
    counted_until_ns: int | None
    """Wall clock: what it held before was counted when ends were merged, and is not to be counted anew."""

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
    findings: tuple[Peak, ...]
    """One a limit, in their order."""


def audit_file(path: Path, limits: Sequence[Limit], disk: Disk) -> Audit:
    """Judge a history as it is on the disk.  Raises FileNotFoundError, PermissionError and HistoryError."""
    try:
        fd = disk.open_read(str(path))
    except FileNotFoundError:
        try:
            high_water.compare(None, reached_by(f"{path}.lock", disk))
        except HistoryError as error:
            raise HistoryError(f"{path}: {error}") from None
        raise
    except PermissionError:
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
    stretches, in_flight = stretches_of(contents.records)
    known = [stretch for stretch in stretches if not stretch.is_merged]
    # Behind all that the file tells of.
    until_ns = 1 + max([contents.at.boottime_ns, *(stretch.started_at_ns for stretch in stretches)])
    before = {subject_of(each): each for each in contents.records if isinstance(each, Highest)}
    findings = []
    for limit in limits:
        counted = before.get(subject_of(limit))
        findings.append(_finding(limit, highest(limit, counted, stretches, until_ns), counted, wall_ns))
    return Audit(
        len(known),
        in_flight,
        sum(each.record.messages + each.record.connections for each in stretches if each.is_merged),
        sum(not each.has_start for each in stretches),
        min((wall_ns + stretch.started_at_ns for stretch in stretches), default=None),
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
