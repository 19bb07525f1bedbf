"""Summaries of segments on the disk: when they are written, and whether one may be believed.

A segment whose mail waits gets one once it is long enough that reading it would take a start some time, and
at a clean close, so that a start reads the summaries, what came behind them, and the sender's stream.  Mail
that is relayed as fast as it comes never gets one.
Guarantees: never raises for what it cannot write: a start reads the segment then.
"""

import contextlib
from collections.abc import Callable, Iterator

from relay.mail.header import message_id_of
from relay.spool.durable import Disk, opened
from relay.spool.interface import Corrupt
from relay.spool.log import summary
from relay.spool.log.index import LogIndex
from relay.spool.log.layout import LogLayout
from relay.spool.log.message import front_of
from relay.spool.log.record import HEADER_BYTES, INLINE, MESSAGES, Record
from relay.spool.log.segments import Segments, is_senders, place_of
from relay.spool.log.stream_reader import SegmentReader, pieces
from relay.spool.log.summary import Row, Summary, Told
from relay.spool.replacing import put_in_place

WORTH_IT = 8
"""So much of a segment has to live: an eighth."""
LET_BE = 4
"""So many segments without one are quick enough to read."""


class Summaries:
    def __init__(self, disk: Disk, layout: LogLayout, segments: Segments, queued: LogIndex) -> None:
        self._disk = disk
        self._layout = layout
        self._segments = segments
        self._queued = queued
        self._covered: dict[int, int] = {}
        """How much of each segment its summary tells of."""

    def read(self, handle: int) -> Summary | None:
        """Return a segment's summary, if there is one that may be believed."""
        name = self._segments[handle].name
        try:
            with opened(self._disk, self._disk.open_read(self._layout.summary(name))) as fd:
                raw = self._disk.pread(fd, min(self._disk.size(fd), summary.LARGEST_BYTES), 0)
            found = summary.decode(name, raw)
            if found is None or found.covers > self._segments.size(handle):
                return None
        except (OSError, Corrupt):
            return None
        self._covered[handle] = found.covers
        return found

    def write_some(self) -> None:
        """Write one where enough segments wait for theirs."""
        waiting = [handle for handle in self._without() if self._segments[handle].is_done]
        if len(waiting) > LET_BE:
            self._write(waiting[0])

    def write_all(self) -> None:
        for handle in self._without():
            self._write(handle)

    def _without(self) -> list[int]:
        return [
            handle
            for handle, segment in self._segments
            if not (is_senders(segment.name) or segment.is_pinned)
            and segment.end > self._covered.get(handle, 0) + HEADER_BYTES
            and segment.live_bytes * WORTH_IT > segment.end
        ]

    def _write(self, handle: int) -> None:
        segment = self._segments[handle]
        # Whether or not it can be written: it is not tried all the time.
        self._covered[handle] = segment.end
        with contextlib.suppress(OSError, Corrupt):
            content = summary.encode(segment.name, segment.end, list(self._rows(handle)))
            path = self._layout.summary(segment.name)
            # Crash here: the one before, or none; and a draft that the next one replaces.
            self._disk.close(put_in_place(self._disk, path, content))

    def _rows(self, handle: int) -> Iterator[tuple[Row, Told]]:
        segment = self._segments[handle]
        window = SegmentReader(self._reader(handle), segment.end)
        for each in pieces(window, segment.mark, HEADER_BYTES):
            if not isinstance(each, Record) or each.kind not in MESSAGES:
                continue
            size = each.record_bytes
            is_here = self._queued.durable_place(each.queue_id) == place_of(handle, each.at, size)
            # Also what ended: a start has to know that its end is needed as long as this segment is there.
            told = _told(each) if is_here else Told(each.kind, b"", None)
            yield Row(each.queue_id, each.at, size, each.number), told

    def _reader(self, handle: int) -> Callable[[int, int], bytes]:
        return lambda size, offset: self._segments.pread(handle, size, offset)


def _told(each: Record) -> Told:
    front = front_of(each.payload) if each.kind in INLINE else b""
    return summary.told_of(each, message_id_of(front))
