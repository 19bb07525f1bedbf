"""Room: segments of which nothing is needed go, and what lives in a mostly dead one is copied forward.

Bound: all segments that are not added to are at most twice what is needed of them and two segments more.  So
a held message pins no segment for long, and a byte is copied only when at least as many died.
Guarantees: what is copied is durable before its segment goes; that a segment is gone is durable before
anything is let go that only it needed.  Crash here, between copy and removal: the copy counts.
"""

import contextlib
from collections import Counter

from relay.mail.envelope import QueueId
from relay.spool.disk.os_errors import is_our_own_lack
from relay.spool.faults import faults
from relay.spool.identity import subject_of
from relay.spool.interface import Corrupt
from relay.spool.log import facts as said
from relay.spool.log import segments as of_segments
from relay.spool.log.index import LogIndex
from relay.spool.log.journal import Journal
from relay.spool.log.record import HEAD_BYTES, HEADER_BYTES, INLINE, MESSAGES, MOVED, MOVED_LONG, New, Record
from relay.spool.log.segments import SegmentEvent, Segments, handle_of, offset_of
from relay.spool.log.stream_reader import SegmentReader, pieces
from relay.spool.log.streams import Streams
from relay.spool.message import notes

_COPIED_AT_ONCE = 4 * 1024 * 1024


class Cleaner:
    def __init__(self, segments: Segments, queued: LogIndex, journal: Journal, streams: Streams) -> None:
        self._segments = segments
        self._queued = queued
        self._journal = journal
        self._streams = streams

    def remove_dead(self) -> int:
        """Remove segments of which nothing is needed; return how many."""
        removed = 0
        while dead := [handle for handle, segment in self._segments if segment.is_dead]:
            with faults("removal"):
                self._segments.remove(dead)
            removed += len(dead)
        if removed:
            with faults("removal"):
                self._streams.forget_removed({segment.name.stream for _, segment in self._segments})
        return removed

    @property
    def is_crowded(self) -> bool:
        return self._segments.done_bytes > 2 * self._segments.live_bytes + 2 * of_segments.SEGMENT_BYTES

    def clean(self) -> None:
        """Copy what lives in the segment with the least of it: it is crowded, and nothing is pending."""
        done = [(h, s) for h, s in self._segments if s.may_go and s.live_bytes < s.end]
        handle, segment = min(done, key=lambda each: each[1].live_bytes / each[1].end)
        try:
            is_all = self._copy(handle)
        except OSError as error:
            if is_our_own_lack(error):
                return  # the next commit tries it again
            is_all = False
        except Corrupt:
            is_all = False
        if not is_all:
            # What is not there to be copied: it is met when it is loaded, or by the next start.
            segment.change(SegmentEvent.PIN)
        self.remove_dead()

    def _copy(self, handle: int) -> bool:
        """Copy what lives in a segment.  Return False where damage is between: then the segment stays."""
        segment = self._segments[handle]
        window = self._segments.window(handle, segment.end)
        records: list[New] = []
        said_anew: set[QueueId] = set()
        copied: Counter[int] = Counter()
        size, ends, is_all = 0, 0, True
        for each in pieces(window, segment.mark, HEADER_BYTES):
            if not isinstance(each, Record):
                is_all = False
                continue
            some = self._of(handle, each, said_anew)
            records += some
            size += sum(len(new.payload) for new in some)
            ends += sum(HEAD_BYTES + len(new.queue_id) for new in some if new.kind == said.GONE)
            if size > _COPIED_AT_ONCE:
                copied[self._journal.write(records)] += ends
                records, size, ends = [], 0, 0
        if records:
            copied[self._journal.write(records)] += ends
        if is_all:
            self._segments.hand_over_needs(handle, copied)
        return is_all

    def _of(self, handle: int, each: Record, said_anew: set[QueueId]) -> list[New]:
        """Return what is to be written of a record that is still needed."""
        queue_id = each.queue_id
        place = self._queued.places.get(queue_id)
        if each.kind in MESSAGES:
            if place is None or handle_of(place) != handle or offset_of(place) != each.at:
                return []
            kind = MOVED if each.kind in INLINE else MOVED_LONG
            moved = New(kind, queue_id, each.payload, each.number)
            if queue_id not in self._queued.facts:
                return [moved]
            # A start reads the sender's stream in its order, and knows of no message before it comes.
            said_anew.add(queue_id)
            return [moved, self.said_anew(queue_id)]
        if each.kind in (said.FINISHED, said.GONE, said.ASIDE):
            return self._end_of(handle, each)
        facts = self._queued.facts.get(queue_id)
        if facts is None or queue_id in said_anew or all(handle_of(p) != handle for p in facts.places):
            return []
        said_anew.add(queue_id)
        return [self.said_anew(queue_id)]

    def _end_of(self, handle: int, each: Record) -> list[New]:
        """Return an end again as long as what it is about may come back: counted already."""
        records: list[New] = []
        if self._is_needed_end(handle, each):
            records.append(New(said.GONE, each.queue_id, b"", said.recipients_of_end(each)))
        subject = subject_of(each.queue_id)
        facts = None if subject is None else self._queued.facts.get(subject)
        if subject is not None and facts is not None and any(handle_of(p) == handle for p in facts.places):
            # It tells of a report that must not be published again.
            records.append(self.said_anew(subject))
        return records

    def _is_needed_end(self, handle: int, each: Record) -> bool:
        return each.queue_id not in self._queued.places and any(
            handle in segment.needs for _, segment in self._segments
        )

    def said_anew(self, queue_id: QueueId) -> New:
        """Return all that was said of a message, as one record."""
        facts = self._queued.facts_of(queue_id)
        raw = notes.shortened(self.notes_of(queue_id))
        return New(said.SNAPSHOT, queue_id, said.encode_snapshot(facts, raw))

    def notes_of(self, queue_id: QueueId) -> bytes:
        """Return the notes about a message as they were written.

        Raises OSError only for a lack of our own: what cannot be read, asked twice, is left out, as it must
        not hold up the report, which then says less.
        """
        facts = self._queued.facts.get(queue_id)
        its = [] if facts is None else facts.notes
        return b"\n".join([note if isinstance(note, bytes) else self._read_notes(note) for note in its])

    def _read_notes(self, place: int) -> bytes:
        for _ in range(2):
            try:
                return self._notes_at(place)
            except OSError as error:
                if is_our_own_lack(error):
                    raise
        return b""

    def _notes_at(self, place: int) -> bytes:
        with contextlib.suppress(Corrupt):
            handle = handle_of(place)
            raw = self._segments.pread(handle, of_segments.length_of(place), offset_of(place))
            window = SegmentReader(lambda size, offset: raw[offset : offset + size], len(raw))
            found = next(pieces(window, self._segments[handle].mark, 0))
            if isinstance(found, Record):
                return found.payload
        return b""
