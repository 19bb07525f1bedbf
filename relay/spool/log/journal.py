"""The sender's own stream: what is written becomes durable as one group, and only then part of the index.

Hints are no reason to wait for a disk: they are in memory at once, and durable with the next group or checkpoint.
Raises OSError, and nothing of the group counts then.  Assumes: the owner of the queue.
"""

from collections.abc import Sequence

from relay.mail.envelope import QueueId
from relay.spool.log.facts import SAID, encode
from relay.spool.log.index import Index
from relay.spool.log.layout import SENDER, SegmentName
from relay.spool.log.record import New, Record
from relay.spool.log.writer import StreamWriter


class Journal:
    def __init__(self, index: Index, writer: StreamWriter) -> None:
        self._index = index
        self._writer = writer
        self._hints: dict[QueueId, int] = {}
        self.written_bytes = 0
        """Since it was last set to 0."""

    @property
    def position(self) -> tuple[int, int]:
        return self._writer.position

    def hint(self, queue_id: QueueId, at_ns: int) -> None:
        self._hints[queue_id] = at_ns
        self._index.say(queue_id, {"next": at_ns})

    def write(self, records: Sequence[New]) -> list[QueueId]:
        """Write records, of which there are some; return which messages came with them."""
        hints = [New(SAID, queue_id, encode({"next": at_ns})) for queue_id, at_ns in self._hints.items()]
        before = self._writer.current
        appended = self._writer.append([*hints, *records])
        self._hints = {}
        segment = self._index.segment(appended.name)
        if before is not None and before != appended.name.number:
            self._index.segment(SegmentName(SENDER, before)).is_done = True
        self.written_bytes += appended.end - (segment.end or 0)
        segment.end = appended.end
        came = []
        for new, offset in zip([*hints, *records], appended.offsets, strict=True):
            record = Record(new.kind, QueueId(new.queue_id), new.payload, new.number, offset)
            if self._index.take_in(segment, record):
                came.append(record.queue_id)
        return came

    def close(self) -> None:
        self._writer.close()
