"""Room: what is needed of a mostly dead segment is copied forward, a slice at a time, until it is dead.

Bound: all segments that are not added to are at most twice what is needed of them and two segments more.  So a
held message keeps no segment for long, and a byte is copied only when at least as many died.
Guarantees: a copy is durable before its original is let go, and a segment goes with a checkpoint only.
"""

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.os_errors import is_not_now
from relay.spool.log.index import Index, Segment
from relay.spool.log.journal import Journal
from relay.spool.log.layout import Layout
from relay.spool.log.record import MOVED, Record, mark_of, sound_record

SLICE_BYTES = 256 * 1024


class Cleaner:
    def __init__(self, disk: Disk, layout: Layout, index: Index, journal: Journal) -> None:
        self._disk = disk
        self._layout = layout
        self._index = index
        self._journal = journal
        self._segment: Segment | None = None
        self._ahead: list[QueueId] = []

    def clean(self, spare_bytes: int) -> bool:
        """Copy a slice forward where there is a need to; return whether there was.  Raises OSError."""
        if not self._ahead:
            if self._segment is not None and self._segment.live_bytes:
                # Damaged, or not to be read now: who reads it next is told.
                self._segment.is_stuck = True
            self._segment = self._index.crowded(spare_bytes)
            places = self._index.places.items()
            self._ahead = [queue_id for queue_id, place in places if place.segment is self._segment]
        if self._segment is None:
            return False
        copies: list[Record] = []
        size_bytes = 0
        while self._ahead and size_bytes < SLICE_BYTES:
            try:
                found = self._copy(self._segment, self._ahead[-1])
            except OSError as error:
                if not is_not_now(error):
                    raise
                found = []
            self._ahead.pop()
            copies += found
            size_bytes += sum(each.record_bytes for each in found)
        if copies:
            try:
                # Crash here, before or after: the copy counts if it is there, and says the same.
                self._journal.write(copies)
            except OSError:
                self._segment, self._ahead = None, []
                raise
        return True

    def _copy(self, segment: Segment, queue_id: QueueId) -> list[Record]:
        """Return a message again; none for one that ended meanwhile, or is damaged."""
        place = self._index.places.get(queue_id)
        if place is None or place.segment is not segment:
            return []
        with opened(self._disk, self._disk.open_read(self._layout.segment(segment.name))) as fd:
            raw = self._disk.pread(fd, place.length, place.offset)
        found = sound_record(mark_of(segment.name), lambda at, size: raw[at : at + size], 0, len(raw))
        return [] if found is None or found.queue_id != queue_id else [found._replace(kind=MOVED)]
