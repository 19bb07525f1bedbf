"""How far a history reached: one line, in the file that is its lock.  Pure.

    relay-history-end +000001760000000123456789 1b2c3d4e

The number is the MARK of a group (`record`), and marks ascend through groups, rewrites and
boots: a sync lies between any two of them, so no two groups are of one instant.  The line
is written once that group is durable, and is not synced itself.  So it is never ahead of
what a crash leaves, and costs no wait.  A history whose last whole group has a lesser mark
has lost groups that were durable: it was cut, damaged at its end, removed, or put back from
a copy.

A kill takes nothing of the line.  Loss of power may take what the kernel had not yet
written back by itself, some half a minute, or leave it torn: then there is nothing to
compare with, or less.  An empty lock, as older versions leave it, says nothing either.
"""

import re
import zlib

from relay.throttle.history_format import HistoryError

LENGTH = 53
"""Of the line: it is always written over itself, within one sector."""

_WORD = b"relay-history-end "
_LINE = re.compile(rb"(relay-history-end ([+-][0-9]{24})) ([0-9a-f]{8})\n")


def line(mark_ns: int) -> bytes:
    """Return the line that says so."""
    text = _WORD + b"%+025d" % mark_ns
    return text + b" %08x\n" % zlib.crc32(text)


def read(content: bytes) -> int | None:
    """Return what mark a lock names, None if it names none.  Raises HistoryError if it is no lock of ours."""
    match = _LINE.match(content)
    if match is not None and zlib.crc32(match[1]) == int(match[3], 16):
        return int(match[2])
    front = content.rstrip(b"\0")
    if not front.startswith(_WORD) and not _WORD.startswith(front):
        raise HistoryError("not the lock of a history")
    return None


def compare(mark_ns: int | None, reached_ns: int | None) -> None:
    """Raise HistoryError if a history reached further than its last group; `mark_ns` None: it has none."""
    if reached_ns is None or (mark_ns is not None and mark_ns >= reached_ns):
        return
    if mark_ns is None:
        raise HistoryError("it is gone, and was in use")
    lost_s = (reached_ns - mark_ns) / 1_000_000_000
    raise HistoryError(f"its end is gone or damaged: it reached {lost_s:.3f} s further")
