"""Room: what is needed of a mostly dead segment is copied forward, a slice at a time, until it is dead.

Bound: all segments that are not added to are at most twice what is needed of them and two segments more.  So a
held message keeps no segment for long, and a byte is copied only when at least as many died.
Guarantees: a copy is durable before its original is let go, and a segment goes with a checkpoint only.
"""

from collections.abc import Callable

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.os_errors import is_not_now
from relay.spool.log import facts as said
from relay.spool.log.content import notes_at, record_in
from relay.spool.log.index import Index, Segment
from relay.spool.log.journal import Journal
from relay.spool.log.layout import Layout
from relay.spool.log.record import MOVED, Record

SLICE_BYTES = 256 * 1024


class Cleaner:
    def __init__(
        self,
        disk: Disk,
        layout: Layout,
        index: Index,
        journal: Journal,
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
        self._ahead: list[QueueId] = []

    def clean(self) -> bool:
        """Copy a slice forward where there is a need to; return whether there was.  Raises OSError."""
        if not self._ahead:
            if self._segment is not None and self._segment.live_bytes:
                self._segment.is_stuck = True
            self._segment = self._index.crowded(self._spare_bytes)
            self._ahead = [] if self._segment is None else self._index.needs_of(self._segment)
        if self._segment is None:
            return False
        copies: list[Record] = []
        size_bytes = 0
        while self._ahead and size_bytes < SLICE_BYTES:
            try:
                copies += self._copies(self._segment, self._ahead[-1])
            except OSError as error:
                if not is_not_now(error):
                    raise
            self._ahead.pop()
            size_bytes += copies[-1].record_bytes if copies else 0
        try:
            if copies:
                # Crash here, before or after: the copy counts if it is there, and says the same.
                self._journal.write(copies)
        except OSError:
            self._segment, self._ahead = None, []
            raise
        return True

    def _copies(self, segment: Segment, queue_id: QueueId) -> list[Record]:
        """Return records again that are in a segment, of a message that may have ended meanwhile."""
        copies: list[Record] = []
        place = self._index.places.get(queue_id)
        if place is not None and place.segment is segment:
            with opened(self._disk, self._disk.open_read(self._layout.segment(segment.name))) as fd:
                found = record_in(self._disk.pread(fd, place.length, place.offset), segment.mark, queue_id)
            if found is not None:
                copies.append(found._replace(kind=MOVED))
            else:
                self._set_aside(queue_id, "its record does not match its checksums")
        facts = self._index.facts.get(queue_id)
        if facts is not None and facts.is_noted_in(segment.name):
            raw = notes_at(self._disk, self._layout, queue_id, facts.notes)
            copies.append(Record(said.NOTED_ANEW, queue_id, said.encode({}, raw)))
        return copies
