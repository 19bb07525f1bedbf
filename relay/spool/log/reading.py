"""Queued messages, read as they are now: a record or a file of its own, and what became of it laid over.

Raises Absent, Unreadable, which is told of once, and Corrupt for what was set aside before it is raised.
"""

import contextlib
from collections.abc import Callable, Iterator

from relay.mail.envelope import QueueId
from relay.queue.sorting import Sorter
from relay.spool.disk.os_errors import is_not_now
from relay.spool.interface import Absent, Corrupt, Status, Unreadable
from relay.spool.log import facts as said
from relay.spool.log import message
from relay.spool.log.damaged import Damaged
from relay.spool.log.index import UNPLACED, LogIndex
from relay.spool.log.journal import Journal
from relay.spool.log.record import INLINE, MESSAGES, New, Record
from relay.spool.log.segments import Segments, handle_of, length_of, offset_of
from relay.spool.message import files
from relay.spool.message.message_file import Opened
from relay.spool.root.quarantine import Quarantine


class ReadAgain:
    """Messages that the disk did not give us: each is asked for again once between two clean-ups."""

    def __init__(self) -> None:
        self.due: list[QueueId] = []
        self._later: list[QueueId] = []

    def __len__(self) -> int:
        return len(self.due) + len(self._later)

    def leave(self, queue_id: QueueId) -> None:
        self._later.append(queue_id)

    def look_again(self) -> None:
        self.due, self._later = self.due + self._later, []


class MessageReader:
    def __init__(
        self,
        segments: Segments,
        queued: LogIndex,
        *,
        aside: Quarantine,
        damaged: Damaged,
        journal: Journal,
        commit: Callable[[], None],
    ) -> None:
        """`commit` is called before a message is read that was published and is not durable yet."""
        self._disk, self._layout = segments.disk, segments.layout
        self._segments = segments
        self._queued = queued
        self._aside = aside
        self._damaged = damaged
        self._journal = journal
        self._commit = commit
        self.again = ReadAgain()

    def read(self, queue_id: QueueId, sorter: Sorter | None = None) -> Opened:
        found = self._record(queue_id)
        try:
            return self.laid_over(self.opened(found, sorter))
        except Corrupt as fault:
            self._damaged.set_aside(queue_id, str(fault), found.payload, found.number)
            raise
        except Unreadable as error:
            self._aside.tell_unread(queue_id, error)
            raise

    def enter(self, queue_id: QueueId, sorter: Sorter | None) -> Opened | None:
        """Read a message that comes into the queue; None where it is damaged, gone, or left for later."""
        try:
            opened = self.read(queue_id, sorter)
        except (Absent, Corrupt):
            return None
        except Unreadable:
            self.again.leave(queue_id)
            return None
        self.mark_what_was_reported(opened)
        return opened

    def mark_what_was_reported(self, opened: Opened) -> None:
        """Remember that a report is there which a crash left without its marks.

        Another recipient that joined those that it tells of would change the id of their report.
        """
        if Status.TODO not in opened.statuses or (owed := opened.owed_report) is None:
            return
        own = owed.report_id
        if own in self._queued.places or self._queued.has_ended(own):
            self._journal.call(New(said.TOLD, opened.queue_id, said.encode_told(owed.indices)))
            opened.reported.update(owed.indices)

    def laid_over(self, opened: Opened) -> Opened:
        """Return a message with what became of it since its record was written.  Raises Corrupt."""
        facts = self._queued.facts.get(opened.queue_id)
        return opened if facts is None else facts.laid_over(opened)

    def opened(self, found: Record, sorter: Sorter | None = None) -> Opened:
        """Return the message of a sound record, all to do.  Raises Corrupt, and sets nothing aside."""
        if found.kind not in MESSAGES:
            raise Corrupt("another record stands there")
        if found.kind in INLINE:
            return message.decode(found.queue_id, found.payload, sorter=sorter)
        with files.absence(found.queue_id):
            path = self._layout.content(found.queue_id)
            return files.read(self._disk, path, found.queue_id, with_content=True, sorter=sorter)

    def stream(self, queue_id: QueueId, *, is_checked: bool) -> Iterator[bytes]:
        """Yield the content in chunks, as `Spool.content` says."""
        found = self._record(queue_id)
        if found.kind in INLINE:
            yield message.decode(queue_id, found.payload).content or b""
            return
        try:
            with files.absence(queue_id):
                path = self._layout.content(queue_id)
                yield from files.stream(self._disk, path, queue_id, is_checked=is_checked)
        except Corrupt as fault:
            self._damaged.set_aside(queue_id, str(fault), b"", found.number)
            raise

    def front_of(self, queue_id: QueueId) -> bytes:
        """Return the first part of the content, or nothing where it cannot be read now."""
        with contextlib.suppress(Absent, Corrupt, OSError):
            return message.front_of(self._record(queue_id).payload)
        return b""

    def _record(self, queue_id: QueueId) -> Record:
        if (place := self._queued.places.get(queue_id)) is None:
            raise Absent(queue_id)
        if place == UNPLACED:
            self._commit()
            place = self._queued.places[queue_id]
        handle = handle_of(place)
        try:
            raw = self._segments.pread(handle, length_of(place), offset_of(place))
        except OSError as error:
            if not is_not_now(error):
                raise
            self._aside.tell_unread(queue_id, error)
            raise Unreadable(error.errno, error.strerror) from error
        mark = self._segments[handle].mark
        try:
            return message.sound_record(raw, mark, queue_id, offset_of(place))
        except Corrupt as fault:
            recipients = message.recipients_of(raw, mark, queue_id)
            self._damaged.set_aside(queue_id, str(fault), message.payload_of(raw, queue_id), recipients)
            raise
