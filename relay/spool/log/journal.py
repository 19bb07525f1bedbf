"""The sender's own stream: what was called waits here, and becomes durable as one group.

Guarantees: reads see what was called at once; `commit` makes all of it durable in the order of the calls, or,
where there is no room, nothing: then it stays called.  Each segment's first group ends with the account.
Raises SpoolFault where the disk fails: then only a restart knows what is durable.
Assumes: the holder of the spool's lock.
"""

from collections.abc import Sequence

from relay.mail.envelope import QueueId
from relay.spool.faults import faults
from relay.spool.log import facts as said
from relay.spool.log.index import LogIndex
from relay.spool.log.layout import SENDER, SegmentName
from relay.spool.log.record import HEAD_BYTES, New
from relay.spool.log.segments import SegmentEvent, Segments, place_of
from relay.spool.log.stream_writer import Appended, StreamWriter


class Journal:
    def __init__(self, segments: Segments, queued: LogIndex, writer: StreamWriter | None = None) -> None:
        """`writer` is that of an earlier reading by this process."""
        self._segments = segments
        self._queued = queued
        self.writer = writer
        self._pending: list[New] = []
        self.said_of: set[QueueId] = set()
        """Messages of which something was called since the sender last looked whether that became much."""
        self._current: int | None = None

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def go_on(self, before: int, end: int, highest: int, torn: Sequence[tuple[str, int]]) -> None:
        """Begin behind what a start found: which segment ends the stream, how much of it counts.

        `highest` is the highest number that any segment of the stream has; `torn` as `SendersEnd` has it.
        """
        if self.writer is None:
            self.writer = StreamWriter(
                self._segments.disk, self._segments.layout, SENDER, (before, end), highest, has_room=True
            )
        elif self.writer.is_begun:
            self._current = self._segments.add(SegmentName(SENDER, self.writer.position[0]))
        self.writer.cut_off_first(torn)

    @property
    def end(self) -> tuple[int, int] | None:
        """Return the number and the length of what was written, where a group was."""
        return self.writer.position if self.writer is not None and self.writer.is_begun else None

    def call(self, new: New) -> None:
        """Take in what is to be written with the next commit."""
        queue_id = id_of(new)
        self._queued.change(new.kind, queue_id, new.payload, new.number)
        if new.kind in said.OF_A_MESSAGE:
            self.said_of.add(queue_id)
        self._pending.append(new)

    def publish(self, new: New) -> None:
        """Queue a message with the next commit."""
        self._queued.come(id_of(new), new.number, 0)
        self._pending.append(new)

    def commit(self) -> int:
        """Write what is pending, of which there is some; return the segment."""
        with faults("log"):
            handle = self._append(self._pending)
        self._pending = []
        return handle

    def write(self, records: list[New]) -> int:
        """Write some records as a group of their own, when nothing is pending; return its segment.

        Where there is no room it stays called, as what anybody else called.
        """
        for new in records:
            self.call(new)
        return self.commit()

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()

    def _append(self, records: list[New]) -> int:
        if self.writer is None:
            raise AssertionError("recover comes first")
        if self.writer.begins_a_segment:
            records = [*records, New(said.ACCOUNT, "", self._queued.account.encode())]
        return self._place(records, self.writer.append(records))

    def _place(self, records: list[New], appended: Appended) -> int:
        handle = self._segments.add(appended.name)
        if appended.is_new:
            if self._current is not None:
                self._segments[self._current].change(SegmentEvent.END)
            self._current = handle
        self._segments[handle].end = appended.end
        placed = self._queued.placed
        for new, offset in zip(records, appended.offsets, strict=True):
            size = HEAD_BYTES + len(new.queue_id) + len(new.payload)
            placed(new.kind, id_of(new), place_of(handle, offset, size))
        return handle


def id_of(new: New) -> QueueId:
    return QueueId(new.queue_id)
