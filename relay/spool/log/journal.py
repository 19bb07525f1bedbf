"""The sender's own stream: records become durable as one group, and only then part of the index.

Hints wait for no disk: they are in memory at once, and durable with the next group or checkpoint.
`write` raises OSError, and then nothing of the group is valid.  Assumes: the caller owns the queue.
"""

import contextlib
from collections.abc import Sequence

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import Disk, opened
from relay.spool.log.facts import facts_record
from relay.spool.log.index import Index
from relay.spool.log.layout import LogLayout, SegmentName
from relay.spool.log.record import MOVED, Record, record_in
from relay.spool.log.writer import StreamWriter

SLICE_BYTES = 256 * 1024


class Journal:
    def __init__(self, index: Index, writer: StreamWriter) -> None:
        self.writer = writer
        self._index = index
        self._hints: dict[QueueId, Record] = {}
        self._name: SegmentName | None = None
        self.written_bytes = 0
        """Since the caller last set it to 0."""

    def hint(self, queue_id: QueueId, at_ns: int) -> None:
        new = {"next": at_ns}
        self._index.apply_facts(queue_id, new)
        self._hints[queue_id] = facts_record(queue_id, new)

    def write(self, records: Sequence[Record]) -> list[QueueId]:
        """Write at least one record; return the ids of the new messages.  Raises OSError."""
        group = [*self._hints.values(), *records]
        name, offsets = self.writer.append(group)
        self._hints = {}
        if self._name is not None and self._name != name:
            self._index.segment(self._name).is_finished = True
        self._name, segment = name, self._index.segment(name)
        end = self.writer.position.end
        self.written_bytes += end - segment.end
        segment.extend(end)
        pairs = zip(group, offsets, strict=True)
        return [new.queue_id for new, at in pairs if self._index.take_in(segment, new._replace(at=at))]


class Cleaner:
    """Copies the queued messages of a mostly dead segment forward, a slice at a time, until it is dead.

    Bound: all finished segments together hold at most twice their live bytes and two segments more.
    So a held message keeps no segment for long, and a byte is copied only when at least as many died.
    A copy is durable before its original is released, and only a checkpoint removes a segment.
    """

    def __init__(self, disk: Disk, layout: LogLayout, index: Index, journal: Journal) -> None:
        self._disk = disk
        self._layout = layout
        self._index = index
        self._journal = journal
        self._ahead: list[QueueId] = []

    def clean(self, spare_bytes: int) -> None:
        """Copy a slice forward if cleaning is due.  Raises OSError."""
        if not self._ahead:
            if (segment := self._index.crowded(spare_bytes)) is None:
                return
            segment.was_cleaned = True
            places = self._index.places.items()
            self._ahead = [queue_id for queue_id, place in places if place.segment is segment]
        copies: list[Record] = []
        left = list(self._ahead)
        while left and sum(each.record_bytes for each in copies) < SLICE_BYTES:
            copies += self._copy(left.pop())
        if copies:
            # Crash here, before or after: a copy that is there says the same as its original.
            self._journal.write(copies)
        self._ahead = left

    def _copy(self, queue_id: QueueId) -> list[Record]:
        """Return a copy of a message's record; none if the message ended, or stays as it cannot be read."""
        place = self._index.places.get(queue_id)
        if place is None or not place.segment.was_cleaned:
            return []
        name, raw = place.segment.name, b""
        with (
            contextlib.suppress(OSError),
            opened(self._disk, self._disk.open_read(self._layout.segment(name))) as fd,
        ):
            raw = self._disk.pread(fd, place.length, place.offset)
        found = record_in(raw, name)
        return [] if found is None or found.queue_id != queue_id else [found._replace(kind=MOVED)]
