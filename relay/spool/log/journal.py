"""The sender's own stream: what is written becomes durable as one group, and only then part of the index.

Hints are no reason to wait for a disk: they are in memory at once, and durable with the next group or
checkpoint.  Raises OSError, and nothing of the group counts then.  Assumes: the owner of the queue.
"""

from collections.abc import Sequence

from relay.mail.envelope import QueueId
from relay.spool.log import facts as said
from relay.spool.log.index import Index
from relay.spool.log.layout import SegmentName
from relay.spool.log.record import Record
from relay.spool.log.writer import StreamWriter


class Journal:
    def __init__(self, index: Index, writer: StreamWriter) -> None:
        self.writer = writer
        self._index = index
        self._hints: dict[QueueId, Record] = {}
        self._name: SegmentName | None = None
        self.written_bytes = 0
        """Since it was last set to 0."""

    def hint(self, queue_id: QueueId, at_ns: int) -> None:
        new = {"next": at_ns}
        self._index.say(queue_id, new)
        self._hints[queue_id] = Record(said.SAID, queue_id, said.encode(new))

    def write(self, records: Sequence[Record]) -> list[QueueId]:
        """Write records, of which there are some; return which messages came with them."""
        group = [*self._hints.values(), *records]
        name, offsets = self.writer.append(group)
        self._hints = {}
        if self._name is not None and self._name != name:
            self._index.segment(self._name).is_done = True
        self._name, segment = name, self._index.segment(name)
        end = self.writer.position.end
        self.written_bytes += end - segment.end
        segment.end = end
        pairs = zip(group, offsets, strict=True)
        return [new.queue_id for new, at in pairs if self._index.take_in(segment, new._replace(at=at))]
