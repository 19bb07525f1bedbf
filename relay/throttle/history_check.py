"""Looks at a history file without its lock, for `relay fsck`, `audit` and `status`.  Changes nothing.

`relay fsck` says of each history what a relay that starts now would do with it, by the table in
`history_states`.  A group that is just being appended looks like one that a crash tore; a rewrite
shows the old file or the new one.
"""

import errno
import glob
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from relay.clock import Clock
from relay.spool.disk.durable import Disk, opened, why_of_others
from relay.spool.finding import NOTHING_SENT, Finding
from relay.throttle.history import in_this_boot, is_left_of_a_rewrite
from relay.throttle.history_format import MARK_BYTES, HistoryError, Record, read_mark
from relay.throttle.history_states import (
    REMEDIES,
    Event,
    HistoryEffect,
    Looker,
    Observation,
    at_a_start,
    examine,
    missing,
    of_the_future,
    oversized,
    refusal,
)
from relay.throttle.limit import Limit
from relay.throttle.peaks import Audit, ProofSpan, audit, spans_of
from relay.throttle.slots import Slots

_KINDS = {
    Event.TORN: "torn_group",
    Event.FOREIGN: "foreign",
    Event.OWNER: "owner",
    Event.FUTURE: "future_history",
}
"""All others are `damaged_history`."""


def history_findings(path: Path, disk: Disk, clock: Clock, owner: int) -> Iterator[Finding]:
    """`owner` is the user of the relay.  Raises OSError."""
    # Ahead of the history, which can only have more by then.
    mark_ns = _mark_in(f"{path}.lock", disk)
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        # Made by the first reservation, if there never was one.
        yield from _told(path, [missing(None, mark_ns) or Observation(Event.ABSENT)])
        return
    yield from _beside_findings(f"{path}.new", disk)
    if not stat.S_ISREG(status.st_mode):
        yield from _told(path, [Observation(Event.FOREIGN, "not a file")])
        return
    # Only root can open what is safe from others and belongs to another user.
    users = {owner, path.parent.stat().st_uid} if owner == 0 else {owner}
    if (why := why_of_others(status.st_uid, stat.S_IMODE(status.st_mode), users)) is not None:
        of_owner = {Event.OWNER: f"chown it to user {owner}, chmod 600"}
        yield from _told(path, [Observation(Event.OWNER, why)], of_owner)
    looker = Looker(clock.boot_id(), clock.boottime_ns(), mark_ns)
    yield from _told(path, _found(path, status.st_size, disk, looker))


def _found(path: Path, length_bytes: int, disk: Disk, looker: Looker) -> list[Observation]:
    if (too_long := oversized(length_bytes)) is not None:
        return [too_long]
    try:
        with opened(disk, disk.open_read(str(path))) as fd:
            content = disk.pread(fd, disk.size(fd), 0)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EIO):
            raise
        return [Observation(Event.DISK_ERROR, f"cannot be read: {error.strerror}")]
    examination = examine(content, looker)
    ahead = of_the_future(examination.last, looker.now_ns) if examination.is_of_this_boot else None
    return [*examination.found, *([ahead] if ahead else [])]


def _told(
    path: Path, found: Sequence[Observation], remedies: Mapping[Event, str] = REMEDIES
) -> Iterator[Finding]:
    for (event, what), effect in at_a_start(found):
        if effect is HistoryEffect.REFUSE:
            kind = _KINDS.get(event, "damaged_history")
            yield Finding(str(path), kind, what, NOTHING_SENT, remedies[event])
        elif effect is HistoryEffect.CUT:
            yield Finding(str(path), _KINDS[event], what, "cut at the next use", "")


def _beside_findings(path: str, disk: Disk) -> Iterator[Finding]:
    if os.path.lexists(path):
        if is_left_of_a_rewrite(disk, path):
            yield Finding(path, "leftover", "a rewrite that a crash cut off", "removed by the next one")
        else:
            becomes = f"renamed by the next rewrite, to {path}.1 or so, never deleted"
            yield Finding(path, "foreign", "not written by us", becomes, "see what it is")
    for kept in sorted(Path(path).parent.glob(f"{glob.escape(Path(path).name)}.*")):
        yield Finding(
            str(kept), "set_aside", "was in the way of a rewrite", "left where it is", "see what it is"
        )


def _mark_in(lock_path: str, disk: Disk) -> int | None:
    """Return None also where it is no lock of ours; its use will tell."""
    try:
        with opened(disk, disk.open_read(lock_path)) as fd:
            return read_mark(disk.pread(fd, MARK_BYTES, 0))
    except (OSError, HistoryError):
        return None


def audit_file(path: Path, limits: Sequence[Limit], disk: Disk) -> Audit:
    """Judge the file as it is.  Raises FileNotFoundError, PermissionError and HistoryError."""
    content = _content(path, disk, _mark_in(f"{path}.lock", disk))
    try:
        return audit(content, limits)
    except HistoryError as error:
        raise HistoryError(f"{path}: {error}") from error


def slots_in_file(
    path: Path, limits: Sequence[Limit], guard_ns: int | None, disk: Disk, clock: Clock
) -> Slots:
    """Return what a start would know of the account's past, and change nothing; no file: no past.

    Raises PermissionError, and HistoryError where a start would send nothing.
    """
    slots = Slots()
    slots.judge_by(limits, guard_ns)
    slots.time_is(clock.boottime_ns(), clock.wall_ns())
    slots.reset(_records_in(path, disk, clock))
    return slots


def spans_in_file(path: Path, disk: Disk, clock: Clock) -> list[ProofSpan]:
    """Return what the file tells of the account's past, in this boot's time; no file: nothing.

    Raises PermissionError, and HistoryError where a start would send nothing.
    """
    spans, _ = spans_of(_records_in(path, disk, clock))
    return spans


def _records_in(path: Path, disk: Disk, clock: Clock) -> list[Record]:
    # Ahead of the history, which can only have more by then.
    mark_ns = _mark_in(f"{path}.lock", disk)
    try:
        content = _content(path, disk, mark_ns)
    except FileNotFoundError:
        return []
    now_ns = clock.boottime_ns()
    examination = examine(content, Looker(clock.boot_id(), now_ns, mark_ns))
    refused = [found for found, effect in at_a_start(examination.found) if effect is HistoryEffect.REFUSE]
    is_ours = examination.is_of_this_boot
    if ahead := of_the_future(examination.last, now_ns) if is_ours else None:
        refused.append(ahead)
    for event, what in refused:
        raise refusal(str(path), event, what)
    return list(examination.records) if is_ours else in_this_boot(examination, now_ns, clock.wall_ns())


def _content(path: Path, disk: Disk, mark_ns: int | None) -> bytes:
    """Raise FileNotFoundError, PermissionError and HistoryError."""
    try:
        with opened(disk, disk.open_read(str(path))) as fd:
            size = disk.size(fd)
            content = b"" if oversized(size) else disk.pread(fd, size, 0)
    except FileNotFoundError:
        if (lost := missing(None, mark_ns)) is not None:
            raise HistoryError(f"{path}: {lost.what}") from None
        raise
    except PermissionError:
        raise
    except OSError as error:
        raise HistoryError(f"{path}: cannot read: {error.strerror or error}") from error
    if (too_long := oversized(size)) is not None:
        raise HistoryError(f"{path}: {too_long.what}")
    return content
