"""Room: what lives in a mostly dead segment is copied forward, a slice at a time, until the segment is dead.

Bound: all segments that are not added to are at most twice what lives in them and two segments more.  So a held
message keeps no segment for long, and a byte is copied only when at least as many died.
Guarantees: a copy is durable before its original is let go, and a segment goes with a checkpoint only.
"""

from collections.abc import Callable

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.os_errors import is_not_now
from relay.spool.log import facts as said
from relay.spool.log.content import notes_at
from relay.spool.log.index import Index, Segment
from relay.spool.log.journal import Journal
from relay.spool.log.layout import Layout
from relay.spool.log.reader import record_at
from relay.spool.log.record import INLINE, MOVED, MOVED_LONG, New

SLICE_BYTES = 256 * 1024


class Cleaner:
    def __init__(
        self,
        disk: Disk,
        layout: Layout,
        index: Index,
        journal: Journal,
        *,
        spare_bytes: int,
        set_aside: Callable[[QueueId, str], None],
    ) -> None:
        """`set_aside` is called with a damaged message that was to be copied, and why."""
        self._disk = disk
        self._layout = layout
        self._index = index
        self._journal = journal
        self._spare_bytes = spare_bytes
        self._set_aside = set_aside
        self._segment: Segment | None = None

    def clean(self) -> bool:
        """Copy a slice forward where there is a need to; return whether there was.  Raises OSError."""
        segment = self._segment
        if segment is None or not (segment.live or segment.noted):
            segment = self._segment = self._index.crowded(self._spare_bytes)
        if segment is None:
            return False
        try:
            records, damaged = self._slice(segment)
        except OSError as error:
            if not is_not_now(error):
                raise
            # It stays, and others are cleaned.
            segment.is_stuck, self._segment = True, None
            return True
        if records:
            # Crash here, before or after: the copy counts if it is there, and says the same.
            self._journal.write(records)
        for queue_id in damaged:
            self._set_aside(queue_id, "its record does not match its checksums")
        if damaged and damaged[-1] in segment.live:
            segment.is_stuck, self._segment = True, None
        return True

    def _slice(self, segment: Segment) -> tuple[list[New], list[QueueId]]:
        records: list[New] = []
        damaged: list[QueueId] = []
        size_bytes = 0
        with opened(self._disk, self._disk.open_read(self._layout.segment(segment.name))) as fd:
            for queue_id in segment.live:
                if size_bytes >= SLICE_BYTES:
                    break
                place = self._index.place(queue_id)
                size_bytes += place.length
                found = record_at(self._disk.pread(fd, place.length, place.offset), segment.mark, queue_id)
                if found is None:
                    damaged.append(queue_id)
                else:
                    kind = MOVED if found.kind in INLINE else MOVED_LONG
                    records.append(New(kind, queue_id, found.payload, found.number))
        for queue_id in segment.noted:
            if size_bytes >= SLICE_BYTES:
                break
            raw = notes_at(self._disk, self._layout, queue_id, self._index.facts[queue_id].notes)
            size_bytes += len(raw) + 1
            records.append(New(said.NOTED_ANEW, queue_id, said.encode({}, raw)))
        return records, damaged
