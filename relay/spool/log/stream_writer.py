"""The one who adds to a stream: groups of records, each one write and one sync.

Guarantees: when `append` returned the group is durable, and so are the names that lead to it.  When it raised
OSError nothing of the group counts: it is cut off again, and whether or not that worked, nothing is ever
added behind it.  The next group goes into another segment, which says how much of this one counts, and begins
only when the group is cut off: it may go before this one does.
Assumes: nobody else writes a stream of this name.  Does not: retry.

The sender's groups are small and many, and each waits for its sync.  So its segments grow ahead of them, by
room: zeros that the next groups overwrite.  A listener's are large, and room would double what it writes.
"""

import contextlib
import errno
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from relay.spool.disk.durable import ROOM_BYTES, Disk, opened, write_with_room
from relay.spool.log import segments
from relay.spool.log.layout import LogLayout, SegmentName
from relay.spool.log.record import HEADER_BYTES, New, SegmentHeader, encode_group, encode_header, mark_of

_POSITION = struct.Struct("<QQQ")
_CRC = struct.Struct("<I")
POSITION_BYTES = _POSITION.size + _CRC.size


class Position(NamedTuple):
    """How far a listener's mail is accepted, in the file of its lock; for processes, not for a restart."""

    number: int
    end: int
    messages: int
    """Of the stream."""


def encode_position(position: Position) -> bytes:
    raw = _POSITION.pack(*position)
    return raw + _CRC.pack(zlib.crc32(raw))


def decode_position(raw: bytes) -> Position | None:
    """Return None where there is none yet, or it is just being written."""
    if len(raw) != POSITION_BYTES or zlib.crc32(raw[:-4]) != _CRC.unpack(raw[-4:])[0]:
        return None
    return Position(*_POSITION.unpack_from(raw))


class Appended(NamedTuple):
    name: SegmentName
    offsets: list[int]
    end: int
    is_new: bool
    """It is the first group of its segment."""


class StreamWriter:
    def __init__(
        self,
        disk: Disk,
        layout: LogLayout,
        stream: str,
        last: tuple[int, int] = (0, 0),
        highest: int = 0,
        *,
        has_room: bool = False,
    ) -> None:
        """`last` is the segment that the stream ends with, and how much of it counts.

        `highest` is the highest number that is taken.
        """
        self._has_room = has_room
        self._disk = disk
        self._layout = layout
        self._stream = stream
        self._fd: int | None = None
        self._number, self._end = last
        self._highest = highest
        self._uncut: list[tuple[str, int]] = []
        """Segments with a group that was given up and could not be cut off, and where that begins."""
        self._torn: list[tuple[str, int]] = []
        """The same of groups that a start took for torn."""

    @property
    def begins_a_segment(self) -> bool:
        """Whether the next group is the first one of a segment."""
        return self._fd is None or self._end >= segments.SEGMENT_BYTES

    @property
    def is_begun(self) -> bool:
        return self._fd is not None

    @property
    def position(self) -> tuple[int, int]:
        """Return the number of the last segment that counts, and how much of it does."""
        return self._number, self._end

    def cut_off_first(self, torn: Sequence[tuple[str, int]]) -> None:
        """Be told what a start took for torn: it is cut off too before another segment begins."""
        self._torn = list(torn)

    def append(self, records: Sequence[New]) -> Appended:
        if self._fd is None or self.begins_a_segment:
            return self._begin(records)
        name = SegmentName(self._stream, self._number)
        pieces, offsets = encode_group(mark_of(name), records, self._end)
        group = b"".join(pieces)
        try:
            self._write(self._fd, group, self._end)
            # Crash here: a group that may be there, torn or whole; nobody was told of it.
            self._disk.sync_content(self._fd)
        except OSError:
            self._undo(self._layout.segment(name), self._fd, self._end)
            self.close()
            raise
        self._end += len(group)
        return Appended(name, offsets, self._end, is_new=False)

    def close(self) -> None:
        if self._fd is None:
            return
        with contextlib.suppress(OSError):
            if self._has_room and self._disk.size(self._fd) > self._end:
                # Crash here, or no room to do it: zeros, which no start takes for anything.
                self._disk.truncate(self._fd, self._end)
        with contextlib.suppress(OSError):
            self._disk.close(self._fd)
        self._fd = None

    def _begin(self, records: Sequence[New]) -> Appended:
        """Write the first group of the next segment together with its header."""
        self.close()
        self._cut_what_is_left()
        # A number is never used twice, though its file may be gone.
        self._highest += 1
        name = SegmentName(self._stream, self._highest)
        header = encode_header(name, SegmentHeader(self._number, self._end))
        pieces, offsets = encode_group(mark_of(name), records, HEADER_BYTES)
        content = header + b"".join(pieces)
        path = self._layout.segment(name)
        fd = self._disk.open_new(path)
        try:
            self._write(fd, content, 0)
            self._disk.sync(fd)
            # Crash here: a whole segment, its name perhaps not durable; nobody was told of it.
            self._disk.sync_directory(self._layout.log)
        except OSError:
            self._undo(path, fd, 0)
            with contextlib.suppress(OSError):
                self._disk.unlink(path)
            with contextlib.suppress(OSError):
                self._disk.close(fd)
            raise
        self._fd, self._number, self._end = fd, self._highest, len(content)
        return Appended(name, offsets, self._end, is_new=True)

    def _write(self, fd: int, content: bytes, offset: int) -> None:
        if self._has_room:
            left_bytes = max(0, segments.SEGMENT_BYTES - offset - len(content))
            room_bytes = min(ROOM_BYTES, left_bytes)
            write_with_room(self._disk, fd, content, offset, folder=self._layout.log, room_bytes=room_bytes)
        else:
            self._disk.write_at(fd, content, offset)
        # A write may say that nothing was wrong, and do nothing.
        if self._disk.pread(fd, len(content), offset) != content:
            raise OSError(errno.EIO, "what was written is not there")

    def _undo(self, path: str, fd: int, end: int) -> None:
        """Cut off a group that nobody may find."""
        try:
            self._cut(fd, end)
        except OSError:
            self._uncut.append((path, end))

    def _cut_what_is_left(self) -> None:
        for path, end in (*self._uncut, *self._torn):
            with (
                contextlib.suppress(FileNotFoundError),
                opened(self._disk, self._disk.open_update(path)) as fd,
            ):
                self._cut(fd, end)
        self._uncut.clear()
        self._torn.clear()

    def _cut(self, fd: int, end: int) -> None:
        self._disk.truncate(fd, end)
        # Crash here: the group counts, or not; nobody was told of it.
        self._disk.sync(fd)
