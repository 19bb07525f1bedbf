"""Adds groups of records to one stream; each group is one write and one sync.

Guarantees: when `append` returned the group is durable, and so are the names that lead to it.  When it raised
OSError nothing of it counts.  Where there was no room its bytes are taken back, and the next group goes to
the same place.  After any other failure, above all of a sync, the segment is left: the group is cut off, as
far as the disk lets us, and the next segment says how much of this one counts.
Crash before that: the group may count or not; its caller was told neither.

The sender's groups are small and many, and each waits for its sync.  So its segments grow ahead of them, by
room: zeros that the next groups overwrite.  A listener's are large, and room would double what it writes.
"""

import contextlib
from collections.abc import Sequence

from relay.spool.disk.durable import ROOM_BYTES, Disk, write_with_room
from relay.spool.disk.os_errors import error_of, is_lack_of_room
from relay.spool.log.layout import SENDER, LogLayout, SegmentName
from relay.spool.log.record import Position, Record, encode_group, header_of, mark_of

SEGMENT_BYTES = 16 * 1024 * 1024
"""A segment that is as long is not added to."""


Begun = tuple[Position, int]
"""Where a stream ends, and the highest number of a segment that is taken."""
NOT_BEGUN = (Position(), 0)


class StreamWriter:
    def __init__(self, disk: Disk, layout: LogLayout, stream: str, segment_bytes: int, begun: Begun) -> None:
        self._disk = disk
        self._layout = layout
        self._stream = stream
        self._segment_bytes = segment_bytes
        (self._number, self._end, _), self._highest = begun
        self._fd: int | None = None
        self._groups = 0
        """Written, or tried to be, into the segment."""

    @property
    def position(self) -> Position:
        """Return the number of the last segment that counts, and how much of it does."""
        return Position(self._number, self._end)

    def append(self, records: Sequence[Record]) -> tuple[SegmentName, list[int]]:
        """Return the segment, and where each record is."""
        if self._fd is None or self._end >= self._segment_bytes:
            return self._begin(records)
        name = SegmentName(self._stream, self._number)
        self._groups += 1
        group, offsets = encode_group(mark_of(name), records, self._end, self._groups)
        size_bytes = self._disk.size(self._fd)
        try:
            self._write(self._fd, group, self._end)
        except OSError as error:
            # Where it is as long as before, a part of the group may stay in its room.
            if not (is_lack_of_room(error) and error_of(self._disk.truncate, self._fd, size_bytes) is None):
                self._leave(self._fd)
            raise
        try:
            # Crash here: a group that may be there, torn or whole; nobody was told of it.
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
                    # Crash here, or no room to do it: zeros, which no start takes for anything.
                    self._disk.truncate(self._fd, self._end)
            self._disk.close(self._fd)
            self._fd = None

    def _begin(self, records: Sequence[Record]) -> tuple[SegmentName, list[int]]:
        """Write the first group of the next segment together with its header."""
        self.close()
        # A number is never used twice, though its file may be gone.
        self._highest += 1
        name = SegmentName(self._stream, self._highest)
        header = header_of(self.position)
        group, (_, *offsets) = encode_group(mark_of(name), [header, *records], 0, 0)
        path = self._layout.segment(name)
        fd = self._disk.open_new(path)
        try:
            self._write(fd, group, 0)
            self._disk.sync(fd)
            # Crash here: a whole segment, its name perhaps not durable; nobody was told of it.
            self._disk.sync_directory(self._layout.log)
        except OSError:
            with contextlib.suppress(OSError):
                self._disk.truncate(fd, 0)
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
        """Cut off a group that nobody may find, and go on elsewhere."""
        with contextlib.suppress(OSError):
            self._disk.truncate(fd, self._end)
            self._disk.sync(fd)
        self._disk.close(fd)
        self._fd = None
