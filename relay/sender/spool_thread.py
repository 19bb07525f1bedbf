"""The spool, off the event loop: one thread, and everything that waits for it in batches.

Guarantees: the spool's calls never overlap.  What attempts came to is written down in the order notes,
status bytes, report, its marks, removal, many messages at a time as one group; `settle` and `change`
return only when that group is committed.  When the disk is full a settlement waits and is tried again:
nothing that happened is forgotten, and what was called once is not called again.  When the disk fails,
SpoolFault ends the sender: only a restart may trust it again.
"""

import asyncio
import contextlib
import enum
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.queue.sorting import Sorter
from relay.sender.group_commit import Batch
from relay.sender.host import THREADS, Workers
from relay.sender.reports import Reporter
from relay.spool.identity import warning_id
from relay.spool.interface import (
    Absent,
    Corrupt,
    Entry,
    Message,
    Note,
    Recovery,
    Spool,
    SpoolFault,
    SpoolFull,
    Status,
    Totals,
    Unreadable,
)

Returned = TypeVar("Returned")

Reading = Generator[list[Entry], None, Recovery]
"""Of `Spool.recover`."""
RETRY_FULL_SECONDS = 5.0
TAKE_AT_ONCE = 500
GATHERS_SECONDS = 0.003
"""Between two groups of endings, which nobody waits for: the connection is free already.

A sender that is busy takes a tenth less processor time for a message by that.
"""


class Ending(NamedTuple):
    message: Message
    marks: dict[int, Status]
    notes: tuple[Note, ...]
    is_finished: bool
    next_attempt_at_ns: int | None = None
    """Wall clock; a hint for a deferred message."""
    warning: tuple[tuple[Note, ...], int] | None = None
    """Delays to tell the sender of, and until when it will be tried (wall clock)."""
    is_silent: bool = False
    """No report, by an operator's word."""
    replies: tuple[Note, ...] = ()
    """What deferred recipients were told: hints."""
    reports: bool = False
    """Report what is owed though recipients are left; at the end of a message that is always so."""


@dataclass(frozen=True, slots=True)
class Written:
    """Ids of the messages queued because of an ending; at most one."""

    report: QueueId | None = None
    warning: QueueId | None = None
    size_bytes: int = 0
    """Of its content."""
    is_failure: bool = True
    """The report tells of some failure."""


NOTHING_WRITTEN = Written()


@dataclass(frozen=True, slots=True)
class SpoolLook:
    totals: Totals = field(default_factory=Totals)
    free_bytes: int = 0
    free_inodes: int | None = None
    corrupt: int = 0
    accepted: int = 0
    """Messages not taken yet: no more than milliseconds' worth, unless the disk is full."""
    unread: int = 0
    """Messages that the start has yet to read."""


NOT_SEEN = SpoolLook()


class Change(enum.Enum):
    HOLD = enum.auto()
    RELEASE = enum.auto()
    RETRY = enum.auto()


class _Step(enum.IntEnum):
    """How far an ending got, in this order: where it had to wait for room, it goes on from there."""

    ASKED = enum.auto()
    NOTED = enum.auto()
    PUBLISHED = enum.auto()
    """Its report or warning is there, if any is owed, and the message remembers it."""
    CALLED = enum.auto()
    """All of it was called; only its commit is missing."""


@dataclass(slots=True)
class _Settlement:
    """An ending on its way to the disk."""

    ending: Ending
    step: _Step = _Step.ASKED
    written: Written = NOTHING_WRITTEN
    failed: SpoolFull | Absent | Corrupt | None = None
    """Why some of it could not be called the last time."""

    @property
    def queue_id(self) -> QueueId:
        return self.ending.message.queue_id


class SpoolThread:
    def __init__(
        self,
        spool: Spool,
        reporter: Reporter,
        on_full: Callable[[SpoolFull], None],
        workers: Workers = THREADS,
    ) -> None:
        """`on_full` is told when something could not be written for lack of room."""
        self.spool = spool
        self._reporter = reporter
        self._on_full = on_full
        self._thread = workers.one("spool")
        self._tells_full_again_at = 0.0
        """By the clock of the event loop."""
        self._lacks_commit = False
        """There was no room to make durable what was called."""
        self._endings: Batch[_Settlement, Written] = Batch(self._write, self._thread, GATHERS_SECONDS)
        self._changes: Batch[tuple[QueueId, Change], None] = Batch(self._change, self._thread)

    async def call(self, function: Callable[[], Returned]) -> Returned:
        return await self._thread.call(function)

    async def read_on(self, reading: Reading) -> list[Entry] | Recovery:
        """Go on with `Spool.recover` by a batch, and at its end return what it found.

        Batches of the queue and other calls take turns: neither keeps the other waiting for long.
        """

        def read() -> list[Entry] | Recovery:
            try:
                return next(reading)
            except StopIteration as end:
                found: Recovery = end.value
                return found

        return await self.call(read)

    async def take(self, sorter: Sorter) -> list[Entry]:
        return await self.call(lambda: self.spool.take(TAKE_AT_ONCE, sorter))

    async def sort(self, queue_ids: Sequence[QueueId], sorter: Sorter) -> dict[QueueId, Entry]:
        return await self.call(lambda: self.spool.sort(queue_ids, sorter))

    async def load(self, queue_ids: Sequence[QueueId]) -> list[Message | Exception]:
        """Read messages; for each itself, or Absent, Corrupt, SpoolFault or OSError."""
        at_hand = {queue_id: self.spool.at_hand(queue_id) for queue_id in queue_ids}
        others = [queue_id for queue_id, message in at_hand.items() if message is None]
        # What is in memory does not wait for the thread, which mostly waits for the disk.
        read = await self.call(lambda: [self._load(queue_id) for queue_id in others]) if others else []
        loaded = dict(zip(others, read, strict=True))
        return [at_hand[queue_id] or loaded[queue_id] for queue_id in queue_ids]

    async def content(self, message: Message) -> AsyncGenerator[bytes, None]:
        """Yield content that is not in memory, in chunks, as `Spool.content` says."""
        chunks = self.spool.content(message.queue_id)
        while (chunk := await self.call(lambda: next(chunks, None))) is not None:
            # Between two chunks that are only checked, other calls have their turn too.
            if chunk:
                yield chunk

    async def settle(self, ending: Ending) -> Written:
        """Write down what an attempt came to; on return it is durable.

        Raises SpoolFault, and Absent or Corrupt where the message is gone or damaged.  Waits as
        long as there is no room, since it did happen.
        """
        settlement = _Settlement(ending)
        while True:
            try:
                return await self._endings.submit(settlement)
            except SpoolFull as full:
                self._tell_full(full)
                await asyncio.sleep(RETRY_FULL_SECONDS)

    async def change(self, queue_id: QueueId, change: Change) -> None:
        """Hold a message, let it go on, or let the next start too try it at once; durably but for the last.

        Many that are asked for at the same time share their syncs.  Raises SpoolFault, SpoolFull, Absent.
        """
        await self._changes.submit((queue_id, change))

    async def make_room(self) -> bool:
        return await self.call(self.spool.make_room)

    async def totals(self) -> Totals:
        return await self.call(self.spool.totals)

    async def clean_up(self) -> None:
        """Do as `Spool.clean_up`.  Raises SpoolFull."""
        await self.call(self.spool.clean_up)

    async def look(self) -> SpoolLook:
        """Read the account and the free space off the spool.  Raises OSError, SpoolFault and SpoolFull."""
        return await self.call(self._look)

    def close(self) -> None:
        self._thread.close()
        if self._lacks_commit:
            # What was relayed and is not marked would be relayed again by the next start.
            with contextlib.suppress(SpoolFull, SpoolFault):
                self.spool.commit()
        self.spool.close()

    def _tell_full(self, full: SpoolFull) -> None:
        """Tell once for all that wait at the same time."""
        now = asyncio.get_running_loop().time()
        if now >= self._tells_full_again_at:
            self._tells_full_again_at = now + RETRY_FULL_SECONDS
            self._on_full(full)

    def _look(self) -> SpoolLook:
        spool, (free_bytes, free_inodes) = self.spool, self.spool.free()
        return SpoolLook(
            spool.totals(),
            free_bytes,
            free_inodes,
            spool.corrupt_count(),
            spool.accepted_count(),
            spool.unread_count(),
        )

    def _load(self, queue_id: QueueId) -> Message | Exception:
        try:
            return self.spool.load(queue_id)
        except (Absent, Corrupt, SpoolFault, OSError) as error:
            return error

    def _write(self, settlements: Sequence[_Settlement]) -> list[Written | BaseException]:
        """Write a batch as one group.  A fault of the disk is raised for all: any of it may be lost."""
        self._call([each for each in settlements if each.step < _Step.CALLED])
        full = self._commit()
        return [each.failed or full or each.written for each in settlements]

    def _commit(self) -> SpoolFull | None:
        """Make durable what was called; what finds no room stays called, and goes with the next commit."""
        try:
            self.spool.commit()
        except SpoolFull as full:
            self._lacks_commit = True
            return full
        self._lacks_commit = False
        return None

    def _call(self, asked: Sequence[_Settlement]) -> None:
        """Call what a batch asks for; where one ending fails, that of each for itself.

        Calling twice is harmless.
        """
        try:
            self._call_together(asked)
        except (SpoolFull, Absent, Corrupt) as error:
            if len(asked) == 1:
                (alone,) = asked
                alone.failed = self._in_part(alone.ending, error) if isinstance(error, SpoolFull) else error
                return
            # Without room for one's reason, another may end that needs none, and so give room.
            for each in asked:
                self._call([each])

    def _in_part(self, ending: Ending, full: SpoolFull) -> SpoolFull | Absent | Corrupt:
        """Mark what was relayed though the rest has to wait; return why it has to.

        A mark takes no room, and a crash before there is some must not send it again.
        """
        relayed = {index: status for index, status in ending.marks.items() if not status.is_failure}
        try:
            if relayed:
                self.spool.mark({ending.message.queue_id: relayed})
        except (SpoolFull, Absent, Corrupt) as error:
            return error
        return full

    def _change(self, asked: Sequence[tuple[QueueId, Change]]) -> list[BaseException | None]:
        """Carry out a batch as one group."""
        were_held = {queue_id: self.spool.is_held(queue_id) for queue_id, _ in asked}
        results = self._change_each(asked)
        full = self._commit()
        answers = [result or full for result in results]
        # What is answered as not done must not come true with the next commit or start.
        not_done = {
            queue_id
            for (queue_id, _), answer in zip(asked, answers, strict=True)
            if isinstance(answer, SpoolFull)
        }
        for was_held, put_back in ((False, self.spool.release), (True, self.spool.hold)):
            if undone := [queue_id for queue_id in not_done if were_held[queue_id] is was_held]:
                with contextlib.suppress(SpoolFull, Absent, Corrupt):
                    put_back(*undone)
        return answers

    def _change_each(self, asked: Sequence[tuple[QueueId, Change]]) -> list[BaseException | None]:
        """Call what a batch asks for; where one change fails, each for itself.  Repeating is harmless."""
        try:
            self._change_together(asked)
        except (SpoolFull, Absent, Corrupt) as error:
            if len(asked) == 1:
                return [error]
            return [result for each in asked for result in self._change_each([each])]
        return [None] * len(asked)

    def _change_together(self, asked: Sequence[tuple[QueueId, Change]]) -> None:
        if held := [queue_id for queue_id, change in asked if change is Change.HOLD]:
            self.spool.hold(*held)
        if released := [queue_id for queue_id, change in asked if change is Change.RELEASE]:
            self.spool.release(*released)
        for queue_id, change in asked:
            if change is not Change.HOLD:
                self.spool.postpone(queue_id, 0)

    def _call_together(self, asked: Sequence[_Settlement]) -> None:
        fresh = [each for each in asked if each.step < _Step.NOTED]
        self.spool.note({each.queue_id: each.ending.notes for each in fresh if each.ending.notes})
        for each in fresh:
            each.step = _Step.NOTED
        # Crash here: reasons without a mark; the recipients are tried again.
        self.spool.mark({each.queue_id: each.ending.marks for each in asked if each.ending.marks})
        # Crash here: all recipients marked; the next start publishes the report and removes the message.
        finished: list[QueueId] = []
        for each in asked:
            each.failed = None
            try:
                if each.step < _Step.PUBLISHED:
                    self._publish(each)
                    each.step = _Step.PUBLISHED
            except (SpoolFull, Absent, Corrupt) as error:
                each.failed = error
                continue
            if each.ending.is_finished:
                finished.append(each.queue_id)
            elif each.ending.next_attempt_at_ns is not None:
                self.spool.postpone(each.queue_id, each.ending.next_attempt_at_ns)
        # Crash here: reports queued, their messages still there; publishing again finds them.
        self.spool.finish(finished)
        for each in asked:
            if each.failed is not None:
                continue
            each.step = _Step.CALLED
            if each.ending.replies:
                self.spool.keep_replies(each.queue_id, each.ending.replies)

    def _publish(self, settlement: _Settlement) -> None:
        """Publish what is owed; called again after a fault, it still knows what it published before."""
        ending, message = settlement.ending, settlement.ending.message
        if ending.is_finished or ending.reports:
            is_any = any(s.is_reported for s in (*message.statuses, *ending.marks.values()))
            if is_any and not ending.is_silent:
                self._report(settlement)
        elif ending.warning is not None and not message.envelope.is_null:
            delays, until_at_ns = ending.warning
            header, _ = self._content(message)
            envelope, content = self._reporter.delays(message, header, delays, until_at_ns)
            own = warning_id(message.queue_id)
            is_new = self.spool.publish_report(own, envelope, content)
            if is_new:
                settlement.written = Written(None, own, len(content))
            # Crash here: the warning is there and not remembered; it is published only once all the same.
            self.spool.mark_warned(message.queue_id)

    def _report(self, settlement: _Settlement) -> None:
        """Publish the report that is owed by now, whatever was owed when the message was read."""
        message = settlement.ending.message
        if (owed := self.spool.owed_report(message.queue_id)) is None:
            return
        known = {note.index: note for note in self.spool.notes(message.queue_id)}
        original, is_whole = self._content(message)
        envelope, content = self._reporter.endings(message, original, owed, known, is_whole=is_whole)
        is_new = self.spool.publish_report(owed.report_id, envelope, content)
        if is_new:
            is_failure = any(status.is_failure for status in owed.statuses)
            settlement.written = Written(owed.report_id, None, len(content), is_failure)
        if not settlement.ending.is_finished:
            # Crash here: the report is there and not remembered; the next start finds it by its id.
            self.spool.mark_reported(message.queue_id, owed.indices)

    def _content(self, message: Message) -> tuple[bytes, bool]:
        """Return the content, or the front of what is too long to be returned; and whether that is all."""
        if message.content is not None:
            return message.content, True
        try:
            # A damaged octet in what is quoted harms less than a report that is never made.
            with contextlib.closing(self.spool.content(message.queue_id, is_checked=False)) as chunks:
                return next(chunks, b""), False
        except Unreadable:
            # A report that quotes nothing is better than none.
            return b"", False


def seconds(span_ns: int) -> float:
    """Return a span in seconds, never negative, for the event loop's timers."""
    return max(0, span_ns) / SECOND_NS
