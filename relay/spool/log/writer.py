"""Adds groups of records to one stream; each group is one write and one sync.

Guarantees: once `append` returned, the group is durable, and so is the name of its segment.  If `append`
raised OSError, nothing of the group is valid.  If the disk was full, the writer truncates the group, and
writes the next one at the same offset.  After any other failure, above all of a sync, the writer leaves the
segment: it truncates the group if the disk allows it, and the header of the next segment says how much of
this one is valid.  Crash before that: the group may be valid or not; its caller was told neither.

The sender writes many small groups, and each waits for its sync.  So its segments grow ahead by preallocated
zeros, which the next groups overwrite.  A listener's groups are large: zeros would double what it writes.
"""

import contextlib
from collections.abc import Sequence

from relay.spool.disk.durable import ROOM_BYTES, Disk, write_with_room
from relay.spool.disk.os_errors import error_of, is_lack_of_room
from relay.spool.log.layout import SENDER, LogLayout, SegmentName
from relay.spool.log.record import Position, Record, encode_group, header_of, mark_of

SEGMENT_BYTES = 16 * 1024 * 1024
"""A segment of this length or more gets no further group."""


StreamEnd = tuple[Position, int]
"""Where a stream ends, and the highest segment number in use."""
EMPTY_STREAM = (Position(), 0)


class StreamWriter:
    def __init__(
        self, disk: Disk, layout: LogLayout, stream: str, segment_bytes: int, end: StreamEnd
    ) -> None:
        self._disk = disk
        self._layout = layout
        self._stream = stream
        self._segment_bytes = segment_bytes
        (self._number, self._end), self._highest = end
        self._fd: int | None = None
        self._groups = 0
        """Groups written into the segment, or tried."""

    @property
    def position(self) -> Position:
        """Return the number of the last valid segment, and the end of its valid part."""
        return Position(self._number, self._end)

    def append(self, records: Sequence[Record]) -> tuple[SegmentName, list[int]]:
        """Return the segment, and the offset of each record.  Raises OSError."""
        if self._fd is None or self._end >= self._segment_bytes:
            return self._begin(records)
        name = SegmentName(self._stream, self._number)
        self._groups += 1
        group, offsets = encode_group(mark_of(name), records, self._end, self._groups)
        size_bytes = self._disk.size(self._fd)
        try:
            self._write(self._fd, group, self._end)
        except OSError as error:
            # At the old length, a part of the group may remain in the preallocated zeros.
            if not (is_lack_of_room(error) and error_of(self._disk.truncate, self._fd, size_bytes) is None):
                self._leave(self._fd)
            raise
        try:
            # Crash here: the group may be there, torn or whole; nobody was told of it.
            self._disk.sync_content(self._fd)
        except OSError:
            self._leave(self._fd)
            raise
        self._end += len(group)
        return name, offsets

    def close(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                if self._disk.size(self._fd) > self._end:
                    # Crash here, or no room for it: zeros stay, which a start ignores.
                    self._disk.truncate(self._fd, self._end)
            self._disk.close(self._fd)
            self._fd = None

    def _begin(self, records: Sequence[Record]) -> tuple[SegmentName, list[int]]:
        """Write the first group of the next segment together with its header."""
        self.close()
        # A number is never used twice, even if its file is gone.
        self._highest += 1
        name = SegmentName(self._stream, self._highest)
        header = header_of(self.position)
        group, (_, *offsets) = encode_group(mark_of(name), [header, *records], 0, 0)
        path = self._layout.segment(name)
        fd = self._disk.open_new(path)
        try:
            self._write(fd, group, 0)
            self._disk.sync(fd)
            # Crash here: a whole segment, whose name may not be durable; nobody was told of it.
            self._disk.sync_directory(self._layout.log)
        except OSError:
            with contextlib.suppress(OSError):
                self._disk.unlink(path)
            self._disk.close(fd)
            raise
        self._fd, self._number, self._end, self._groups = fd, self._highest, len(group), 0
        return name, offsets

    def _write(self, fd: int, content: bytes, offset: int) -> None:
        if self._stream == SENDER:
            room_bytes = min(ROOM_BYTES, max(0, self._segment_bytes - offset - len(content)))
            write_with_room(self._disk, fd, content, offset, folder=self._layout.log, room_bytes=room_bytes)
        else:
            self._disk.write_at(fd, content, offset)

    def _leave(self, fd: int) -> None:
        """Truncate a group that failed, and leave the segment."""
        with contextlib.suppress(OSError):
            self._disk.truncate(fd, self._end)
            self._disk.sync(fd)
        self._disk.close(fd)
        self._fd = None
