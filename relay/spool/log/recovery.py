"""Starting is recovering: what the streams say after any crash.

In this order: the listeners' streams, for the messages; the sender's, for what became of them; then each
message for its entry.  Guarantees: nothing acknowledged is dropped, and nothing is sent twice whose mark was
committed; what it returns is durable.  A group of the sender counts whole or not at all, but where damage met
it: then all that is sound counts but the ends, so that a message comes again rather than never.  The last
one that is not whole is taken for torn, unless a copy in it is all that there is of a message: then it was
durable.
Running it twice, or being killed in the middle, changes nothing of this.
Raises OSError where the disk cannot be read: a stream of the sender that is unreadable is never taken for an
empty one.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from relay.mail.envelope import QueueId
from relay.queue.sorting import Sorter
from relay.spool.disk.os_errors import is_our_own_lack
from relay.spool.interface import Corrupt
from relay.spool.log import facts as said
from relay.spool.log.index import LogIndex
from relay.spool.log.layout import SENDER, SegmentName
from relay.spool.log.reading import MessageReader
from relay.spool.log.record import HEADER_BYTES, MESSAGES, MOVED, MOVED_LONG, Record
from relay.spool.log.segments import SegmentEvent, Segments, handle_of, place_of
from relay.spool.log.stream_reader import Damage, ReadGroup, groups, is_room
from relay.spool.log.streams import OnDamage, read_header
from relay.spool.log.summary import Summaries, Told, message_of
from relay.spool.message.message_file import Opened

_ENDS = frozenset({said.FINISHED, said.GONE})
_COPIES = frozenset({MOVED, MOVED_LONG})


RECOVERED_AT_ONCE = 500


class SendersEnd(NamedTuple):
    number: int
    """Of the last segment with a group that counts; 0 where there is none."""
    end: int
    torn: Sequence[tuple[str, int]] = ()
    """Segments with a group that counts as torn, and where that begins: cut off before another one begins,

    so that no later start finds it behind what goes on without it.
    """


def replay(
    segments: Segments,
    queued: LogIndex,
    numbers: list[int],
    *,
    on_damage: OnDamage,
    on_step: Callable[[], None],
    own: tuple[int, int] | None = None,
    is_all_read: bool = True,
) -> SendersEnd:
    """Take in the sender's stream; `own` is the segment that we write ourselves, and its length.

    `is_all_read`: of the listeners' streams.
    """
    names = [SegmentName(SENDER, number) for number in numbers]
    for name in names:
        segments.add(name)
    counted = _what_counts(segments, names)
    last = SendersEnd(0, 0)
    torn: list[tuple[str, int]] = []
    for name in names:
        on_step()
        handle = segments.handle(name)
        if name not in counted:
            segments[handle].change(SegmentEvent.END)
            continue
        is_ours = own is not None and own[0] == name.number
        end = counted[name]
        size = own[1] if own is not None and is_ours else segments.size(handle)
        limit = size if end is None else min(end, size)
        is_torn = end is None and not is_ours
        sound, is_cut = _replay_segment(
            segments,
            queued,
            handle,
            limit,
            on_damage,
            is_torn=is_torn,
            # What was torn is cut off, durably, before another segment begins.
            is_followed=name != names[-1],
            is_all_read=is_all_read,
        )
        if is_cut:
            torn.append((segments.path(handle), sound))
        # Behind the last group of a dead sender stands what is torn, and room.
        segments[handle].end = sound if is_torn else limit
        if not is_ours:
            segments[handle].change(SegmentEvent.END)
        if sound > HEADER_BYTES:
            last = SendersEnd(name.number, sound)
    return last._replace(torn=torn)


def _what_counts(segments: Segments, names: list[SegmentName]) -> dict[SegmentName, int | None]:
    """Return which segments of the sender count, and how much of each; None: all that is whole."""
    counted: dict[SegmentName, int | None] = {}
    for name in names:
        header = read_header(segments, name)
        if header is not None and header.before:
            # What stands between the two was given up.
            for other in [each for each in counted if each.number > header.before]:
                del counted[other]
            before = SegmentName(SENDER, header.before)
            if before in counted:
                counted[before] = header.before_end
        elif header is not None:
            counted.clear()
        counted[name] = None
    return counted


def _replay_segment(
    segments: Segments,
    queued: LogIndex,
    handle: int,
    end: int,
    on_damage: OnDamage,
    *,
    is_torn: bool,
    is_followed: bool,
    is_all_read: bool,
) -> tuple[int, bool]:
    """Return how much of it counts, and whether a group stands behind that which counts as torn."""
    window = segments.window(handle, end)
    sound, previous = min(HEADER_BYTES, end), None
    for group in groups(window, segments[handle].mark, HEADER_BYTES):
        if is_room(window, group):
            break
        if previous is not None:
            _apply(queued, handle, previous, on_damage)
            sound = previous.end
        previous = group
    if previous is None:
        return sound, False
    # Where not all is read a copy's first place may be what is not.
    was_durable = previous.is_whole or is_followed or (is_all_read and _is_all_there_is(queued, previous))
    if is_torn and not was_durable:
        return sound, True
    if is_torn:
        segments.make_durable(handle, previous)
    _apply(queued, handle, previous, on_damage)
    return previous.end, False


def _is_all_there_is(queued: LogIndex, group: ReadGroup) -> bool:
    """Return whether a copy in a group is of a message that is nowhere else: so it was durable."""
    pieces: list[Record | Damage] = [*group.records, *group.damages]
    return any(each.kind in _COPIES and each.queue_id not in queued.places for each in pieces)


def _apply(queued: LogIndex, handle: int, group: ReadGroup, on_damage: OnDamage) -> None:
    for damage in group.damages:
        on_damage(handle, damage)
    for each in group.records:
        if not group.is_whole and each.kind in _ENDS:
            continue
        take_in(queued, handle, each, on_damage)


def take_in(queued: LogIndex, handle: int, each: Record, on_damage: OnDamage) -> None:
    place = place_of(handle, each.at, each.record_bytes)
    if each.kind in MESSAGES:
        if each.queue_id in queued.places:
            queued.placed(each.kind, each.queue_id, place)
        else:
            queued.come(each.queue_id, each.number, place)
        return
    try:
        queued.change(each.kind, each.queue_id, each.payload, each.number)
    except (ValueError, KeyError, TypeError, AttributeError, struct.error):
        # A right checksum proves only that nobody changed it.
        on_damage(handle, Damage(each.at, each.at + each.record_bytes, None, 0, each.kind))
        return
    queued.placed(each.kind, each.queue_id, place)


class QueueWalk:
    """What a start has yet to read of the queue, a segment after the other, the oldest first."""

    def __init__(
        self, segments: Segments, queued: LogIndex, summaries: Summaries, reader: MessageReader
    ) -> None:
        self._segments = segments
        self._queued = queued
        self._summaries = summaries
        self._reader = reader
        self.ahead = 0
        """How many messages."""

    def batches(self, sorter: Sorter | None, on_step: Callable[[], None]) -> Iterator[list[Opened]]:
        """Yield what is queued; what is damaged is set aside.

        An empty batch: we lack descriptors or memory now.  Before the first one that is an error.
        """
        is_first = True
        of_segment: dict[int, list[QueueId]] = {}
        for queue_id, place in self._queued.places.items():
            of_segment.setdefault(handle_of(place), []).append(queue_id)
        self.ahead = len(self._queued.places)
        for handle, queue_ids in sorted(of_segment.items(), key=lambda each: min(each[1])):
            ahead = {queue_id: queue_id for queue_id in queue_ids}
            for batch in self._told(handle, ahead, sorter, on_step):
                is_first = False
                yield batch
            # Those that no summary tells of; and what was copied forward since this start began.
            rest = deque(sorted(ahead))
            while rest:
                on_step()
                try:
                    batch = self._read_some(rest, sorter)
                except OSError as error:
                    if is_first or not is_our_own_lack(error):
                        raise
                    yield []
                    continue
                if batch:
                    is_first = False
                    yield batch

    def _read_some(self, rest: deque[QueueId], sorter: Sorter | None) -> list[Opened]:
        """Read the next ones.  Raises OSError where that is none, for lack of descriptors or memory."""
        batch: list[Opened] = []
        for _ in range(min(len(rest), RECOVERED_AT_ONCE)):
            try:
                opened = self._reader.enter(rest[0], sorter)
            except OSError as error:
                if batch and is_our_own_lack(error):
                    break
                raise
            rest.popleft()
            self.ahead -= 1
            batch += [] if opened is None else [opened]
        return batch

    def _told(
        self,
        handle: int,
        ahead: dict[QueueId, QueueId],
        sorter: Sorter | None,
        on_step: Callable[[], None],
    ) -> Iterator[list[Opened]]:
        """Yield messages as a segment's summary tells of them, and take them out of what is ahead.

        Each has the id that `ahead` has of it: the same text, in memory once.  Their records are compared
        when they are loaded.
        """
        # The segment may be gone, if all that lived in it was copied forward meanwhile.
        if handle not in self._segments or (found := self._summaries.read(handle)) is None:
            return
        batch: list[Opened] = []
        for row, told in found.told():
            place = place_of(handle, row.at, row.record_bytes)
            queue_id = ahead.get(row.queue_id)
            if queue_id is None or self._queued.places.get(queue_id) != place:
                continue
            if (opened := self._told_message(queue_id, told, sorter)) is None:
                continue  # it is read with the rest
            del ahead[queue_id]
            self.ahead -= 1
            batch.append(opened)
            if len(batch) == RECOVERED_AT_ONCE:
                on_step()
                yield batch
                batch = []
        if batch:
            yield batch

    def _told_message(self, queue_id: QueueId, told: Told, sorter: Sorter | None) -> Opened | None:
        """Return None where its record has to be read."""
        try:
            opened = self._reader.laid_over(message_of(queue_id, told))
        except Corrupt:
            # The summary does not say, or its record shows what is wrong with it, and is set aside then.
            return None
        if sorter is not None:
            opened.sorted = sorter.sort(opened.envelope, lambda: self._reader.front_of(queue_id))
        self._reader.mark_what_was_reported(opened)
        return opened
