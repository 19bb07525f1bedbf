"""Starting is recovering: what the streams say after any crash.

In this order: the listeners' streams, for the messages; the sender's, for what became of them; then each
message for its entry.  Guarantees: nothing acknowledged is dropped, and nothing is sent twice whose mark was
committed; what it returns is durable.  A group of the sender counts whole or not at all, but where damage met
it: then all that is sound counts but the ends, so that a message comes again rather than never.
Running it twice, or being killed in the middle, changes nothing of this.
Raises OSError where the disk cannot be read: a stream of the sender that is unreadable is never taken for an
empty one.
"""

import struct
from collections.abc import Callable
from typing import NamedTuple

from relay.spool.log import facts as said
from relay.spool.log.index import LogIndex
from relay.spool.log.layout import SENDER, SegmentName
from relay.spool.log.record import HEADER_BYTES, MESSAGES, Record
from relay.spool.log.segments import Segments, place_of
from relay.spool.log.stream_reader import Damage, ReadGroup, SegmentReader, groups, is_room
from relay.spool.log.streams import OnDamage, read_header

_ENDS = frozenset({said.FINISHED, said.GONE})


class SendersEnd(NamedTuple):
    number: int
    """Of the last segment with a group that counts; 0 where there is none."""
    end: int


def replay(
    segments: Segments,
    queued: LogIndex,
    numbers: list[int],
    *,
    on_damage: OnDamage,
    on_step: Callable[[], None],
    own: tuple[int, int] | None = None,
) -> SendersEnd:
    """Take in the sender's stream; `own` is the segment that we write ourselves, and its length."""
    names = [SegmentName(SENDER, number) for number in numbers]
    for name in names:
        segments.add(name)
    counted = _what_counts(segments, names)
    last = SendersEnd(0, 0)
    for name in names:
        on_step()
        handle = segments.handle(name)
        if name not in counted:
            segments[handle].is_done = True
            continue
        is_ours = own is not None and own[0] == name.number
        end = counted[name]
        size = own[1] if own is not None and is_ours else segments.size(handle)
        limit = size if end is None else min(end, size)
        is_torn = end is None and not is_ours
        sound = _replay_segment(segments, queued, handle, limit, on_damage, is_torn=is_torn)
        # Behind the last group of a dead sender stands what is torn, and room.
        segments[handle].end = sound if is_torn else limit
        segments[handle].is_done = not is_ours
        if sound > HEADER_BYTES:
            last = SendersEnd(name.number, sound)
    return last


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
) -> int:
    """Return how much of it counts."""
    window = SegmentReader(lambda size, offset: segments.pread(handle, size, offset), end)
    sound, previous = min(HEADER_BYTES, end), None
    for group in groups(window, segments[handle].mark, HEADER_BYTES):
        if is_room(window, group):
            break
        if previous is not None:
            _apply(queued, handle, previous, on_damage)
            sound = previous.end
        previous = group
    if previous is not None and (previous.is_whole or not is_torn):
        if is_torn:
            # A killed sender, or a failed sync, may have left it in memory only.
            start = 0 if previous.at == HEADER_BYTES else previous.at
            segments.rewrite(handle, segments.pread(handle, previous.end - start, start), start)
        _apply(queued, handle, previous, on_damage)
        sound = previous.end
    return sound


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
        if not queued.come(each.queue_id, each.number, place):
            queued.placed(each.kind, each.queue_id, place)
        return
    try:
        queued.change(each.kind, each.queue_id, each.payload, each.number)
    except (ValueError, KeyError, TypeError, AttributeError, struct.error):
        # A right checksum proves only that nobody changed it.
        on_damage(handle, Damage(each.at, each.at + each.record_bytes, None, 0, each.kind))
        return
    queued.placed(each.kind, each.queue_id, place)
