"""Looks at a history file and says what is not as it should be; takes no lock, changes nothing.

What a process that uses the history would do with each is in `history`; beside one, a
group that is just being appended looks like one that a crash tore.
"""

import errno
import glob
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from relay.clock import Clock
from relay.spool.durable import Disk, opened, why_of_others
from relay.spool.finding import NOTHING_SENT, Finding
from relay.throttle import high_water, repair
from relay.throttle.history import CLOCK_SKEW_NS, LARGEST_BYTES, is_left_of_a_rewrite
from relay.throttle.history_format import Contents, HistoryError, read_groups, read_header


def history_findings(path: Path, disk: Disk, clock: Clock, owner: int) -> Iterator[Finding]:
    """Yield what is to be said of one history; `owner` is the user of the relay.  Raises OSError."""
    # Ahead of the history, which can only have more by then.
    reached_ns = reached_by(f"{path}.lock", disk)
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        # Made by the first reservation, if there never was one.
        yield from _lost_findings(str(path), None, reached_ns)
        return
    yield from _beside_findings(f"{path}.new", disk)
    if not stat.S_ISREG(found.st_mode):
        yield Finding(str(path), "foreign", "not a file", NOTHING_SENT, f"see what it is; {repair.ANEW}")
        return
    # Only root can open what is safe from others and belongs to somebody else.
    users = {owner, path.parent.stat().st_uid} if owner == 0 else {owner}
    if (why := why_of_others(found.st_uid, stat.S_IMODE(found.st_mode), users)) is not None:
        yield Finding(str(path), "owner", why, NOTHING_SENT, f"chown it to user {owner}, chmod 600")
    if found.st_size > LARGEST_BYTES:
        yield Finding(str(path), "damaged_history", f"{found.st_size} bytes", NOTHING_SENT, repair.ANEW)
        return
    try:
        with opened(disk, disk.open_read(str(path))) as fd:
            content = disk.pread(fd, disk.size(fd), 0)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EIO):
            raise
        yield Finding(
            str(path), "damaged_history", f"cannot be read: {error.strerror}", NOTHING_SENT, repair.ANEW
        )
        return
    yield from _content_findings(str(path), content, clock, reached_ns)


def reached_by(path: str, disk: Disk) -> int | None:
    """Return what the lock says; None also where it is no lock of ours, which its use will tell."""
    try:
        with opened(disk, disk.open_read(path)) as fd:
            return high_water.read(disk.pread(fd, high_water.LENGTH, 0))
    except (OSError, HistoryError):
        return None


def _lost_findings(path: str, mark_ns: int | None, reached_ns: int | None) -> Iterator[Finding]:
    """Yield what is to be said of a history that has less than its lock says."""
    try:
        high_water.compare(mark_ns, reached_ns)
    except HistoryError as error:
        yield Finding(path, "damaged_history", str(error), NOTHING_SENT, repair.ANEW)


def _beside_findings(path: str, disk: Disk) -> Iterator[Finding]:
    """Yield what is to be said of the place where a rewrite begins."""
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


def _content_findings(path: str, content: bytes, clock: Clock, reached_ns: int | None) -> Iterator[Finding]:
    try:
        boot_id, start = read_header(content)
        contents = read_groups(content, start)
        if contents.at is None:
            raise HistoryError(f"byte {start}: its first group is damaged")
    except HistoryError as error:
        yield Finding(path, "damaged_history", str(error), NOTHING_SENT, repair.ANEW)
        return
    if lost := list(_lost_findings(path, contents.at.mark_ns, reached_ns)):
        yield from lost
        return
    if contents.end < len(content):
        what = f"byte {contents.end}: its last group is not whole; nothing was sent on it"
        yield Finding(path, "torn_group", what, "cut at the next use", "")
    if boot_id == clock.boot_id() and _is_of_the_future(contents, clock):
        what = "written in the future of this boot, so in another time namespace"
        yield Finding(path, "future_history", what, NOTHING_SENT, "do not share it between containers")


def _is_of_the_future(contents: Contents, clock: Clock) -> bool:
    return contents.at is not None and contents.at.boottime_ns > clock.boottime_ns() + CLOCK_SKEW_NS
