"""The segments that there are, and what of each is still needed.

A place is a segment, an offset and a length, packed into one number: of a queued message that is all that is
kept in memory.  Needed of a segment are the messages in it that are queued, what was said of queued messages
in it (`facts`), and the ends that it tells of: as long as the segment that such a message was in may come
back, also after loss of power, its end must be there.  A segment of which nothing is needed can go.

Does not: decide when it goes (`cleaning`).
"""

import contextlib
import enum
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence

from relay.spool.disk.durable import SECTOR_BYTES, Disk, why_a_strangers
from relay.spool.interface import Corrupt
from relay.spool.log.layout import SENDER, LogLayout, SegmentName
from relay.spool.log.record import HEAD_BYTES, HEADER_BYTES, LONGEST_ID, mark_of
from relay.spool.log.stream_reader import ReadGroup, SegmentReader, patient

SEGMENT_BYTES = 16 * 1024 * 1024
"""A segment that is as long is not added to."""
_MOST_OPEN = 16
_OFFSET_BITS = 40
_LENGTH_BITS = 32


def place_of(handle: int, offset: int, length: int) -> int:
    return (handle << _OFFSET_BITS | offset) << _LENGTH_BITS | length


def handle_of(place: int) -> int:
    return place >> (_OFFSET_BITS + _LENGTH_BITS)


def offset_of(place: int) -> int:
    return place >> _LENGTH_BITS & ((1 << _OFFSET_BITS) - 1)


def length_of(place: int) -> int:
    return place & ((1 << _LENGTH_BITS) - 1)


def is_perhaps_long(place: int) -> bool:
    """Return whether the message at a place may have a file of its own: its record has no payload.

    Also of one that has no place yet.
    """
    return length_of(place) <= HEAD_BYTES + LONGEST_ID


class SegmentState(enum.Enum):
    OPEN = enum.auto()
    """It is added to, or has yet to be read."""
    DONE = enum.auto()
    """It goes as soon as nothing of it is needed."""
    KEPT = enum.auto()
    """The sender's: it may say what became of mail that cannot be read now.  The next start looks again."""
    PINNED = enum.auto()
    """Some of it cannot be read, set aside or copied now, and may hold mail.  The next start looks again."""


class SegmentEvent(enum.Enum):
    END = enum.auto()
    """Nothing is added to it from now on, and all that counts of it was read."""
    KEEP = enum.auto()
    PIN = enum.auto()


SEGMENT_AFTER: dict[SegmentEvent, tuple[frozenset[SegmentState], SegmentState]] = {
    SegmentEvent.END: (frozenset({SegmentState.OPEN}), SegmentState.DONE),
    SegmentEvent.KEEP: (frozenset({SegmentState.OPEN, SegmentState.DONE}), SegmentState.KEPT),
    SegmentEvent.PIN: (frozenset(SegmentState), SegmentState.PINNED),
}
"""For each event, the states that it ends and the state it leads to; else it changes nothing.

Of what is kept or pinned nobody asks whether it is added to, and of what is pinned not whether it is kept.
"""


class Segment:
    __slots__ = ("end", "is_damaged", "live_bytes", "mark", "name", "needs", "state")

    def __init__(self, name: SegmentName) -> None:
        self.name = name
        self.mark = mark_of(name)
        self.end = 0
        """How much of it was read, or written by us."""
        self.live_bytes = 0
        self.state = SegmentState.OPEN
        """Only `change` sets it."""
        self.is_damaged = False
        """Damage was met in it, and a start has yet to deal with that durably."""
        self.needs: dict[int, int] = {}
        """By segment of the sender: how many bytes there tell of ends of messages that were in this one."""

    @property
    def may_go(self) -> bool:
        return self.state is SegmentState.DONE

    @property
    def is_pinned(self) -> bool:
        return self.state is SegmentState.PINNED

    @property
    def is_dead(self) -> bool:
        return self.may_go and self.live_bytes == 0

    def change(self, event: SegmentEvent) -> None:
        from_states, state = SEGMENT_AFTER[event]
        if self.state in from_states:
            self.state = state


class Segments:
    def __init__(self, disk: Disk, layout: LogLayout) -> None:
        self.disk = disk
        self.layout = layout
        self._all: dict[int, Segment] = {}
        self._handles: dict[SegmentName, int] = {}
        self._last = 0
        self._fds: OrderedDict[int, int] = OrderedDict()

    def __iter__(self) -> Iterator[tuple[int, Segment]]:
        return iter(list(self._all.items()))

    def add(self, name: SegmentName) -> int:
        if (known := self._handles.get(name)) is not None:
            return known
        self._last += 1
        self._all[self._last], self._handles[name] = Segment(name), self._last
        return self._last

    def __contains__(self, handle: int) -> bool:
        return handle in self._all

    def __getitem__(self, handle: int) -> Segment:
        return self._all[handle]

    def handle(self, name: SegmentName) -> int:
        return self._handles[name]

    def path(self, handle: int) -> str:
        return self.layout.segment(self._all[handle].name)

    @property
    def live_bytes(self) -> int:
        return sum(segment.live_bytes for segment in self._all.values())

    @property
    def done_bytes(self) -> int:
        """Return how long all are together that could be removed: nothing is added to them."""
        return sum(each.end for each in self._all.values() if each.may_go)

    def keep(self, place: int) -> None:
        """Need what is at a place."""
        self._all[handle_of(place)].live_bytes += length_of(place)

    def let_go(self, place: int) -> None:
        """Need what is at a place no more."""
        self._all[handle_of(place)].live_bytes -= length_of(place)

    def end(self, message: int, told_at: int) -> None:
        """Let a message go; the place that tells of its end is needed while its segment may come back."""
        self.let_go(message)
        segment, teller = self._all[handle_of(message)], handle_of(told_at)
        if handle_of(message) != teller:
            segment.needs[teller] = segment.needs.get(teller, 0) + length_of(told_at)
            self.keep(told_at)

    def hand_over_needs(self, teller: int, copied: Mapping[int, int]) -> None:
        """Let others tell of all ends that a segment told of and that are still needed.

        `copied`: into which, and how many bytes of ends.  Whose, nobody knows: all are needed now, else
        they would be copied again at once.  Also those tell that end copies in it, which are its messages.
        """
        needing = {of: of.needs.pop(teller) for of in self._all.values() if teller in of.needs}
        total = sum(needing.values())
        for segment, size in needing.items():
            self._all[teller].live_bytes -= size
            shares = dict.fromkeys(self._all[teller].needs, size)
            shares |= {other: max(1, ends * size // total) for other, ends in copied.items()}
            for other, share in shares.items():
                segment.needs[other] = segment.needs.get(other, 0) + share
                self._all[other].live_bytes += share

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        """Read some of a segment.  Raises OSError, and Corrupt for a file of others."""
        return self.disk.pread(self._fd(handle), size, offset)

    def window(
        self, handle: int, end: int, on_unreadable: Callable[[int], None] | None = None
    ) -> SegmentReader:
        """Return what reads a segment up to `end`, with zeros for sectors that `on_unreadable` is told of."""

        def read(size: int, offset: int) -> bytes:
            return self.pread(handle, size, offset)

        return SegmentReader(read if on_unreadable is None else patient(read, on_unreadable), end)

    def size(self, handle: int) -> int:
        return self.disk.size(self._fd(handle))

    def remove(self, handles: Sequence[int]) -> None:
        """Remove segments durably.  Raises OSError; those that are gone by then go again."""
        for handle in handles:
            name = self._all[handle].name
            # Others may have put a folder there.
            with contextlib.suppress(OSError):
                self.disk.unlink(self.layout.summary(name))
            # Crash here: some are gone, some are not; of none anything is needed.
            with contextlib.suppress(FileNotFoundError):
                self.disk.unlink(self.layout.segment(name))
        self.disk.sync_directory(self.layout.log)
        for handle in handles:
            self._forget(handle)

    def _forget(self, handle: int) -> None:
        """Forget a segment whose removal is durable: what it needed is needed no more."""
        segment = self._all.pop(handle)
        del self._handles[segment.name]
        self._close(handle)
        for teller, size in segment.needs.items():
            # Being needed, it was not removed before.
            self._all[teller].live_bytes -= size

    def close(self) -> None:
        for handle in list(self._fds):
            self._close(handle)

    def _fd(self, handle: int) -> int:
        fd = self._fds.get(handle)
        if fd is None:
            path = self.path(handle)
            fd = self._open(path)
            if (why := why_a_strangers(self.disk, fd, path)) is not None:
                self.disk.close(fd)
                raise Corrupt(why)
            self._fds[handle] = fd
            if len(self._fds) > _MOST_OPEN:
                _, oldest = self._fds.popitem(last=False)
                self.disk.close(oldest)
        else:
            self._fds.move_to_end(handle)
        return fd

    def _open(self, path: str) -> int:
        # What can be read and not written would be made durable by nobody.
        return self.disk.open_update(path)

    def _close(self, handle: int) -> None:
        if (fd := self._fds.pop(handle, None)) is not None:
            with contextlib.suppress(OSError):
                self.disk.close(fd)

    def make_durable(self, handle: int, last: ReadGroup, unreadable: Sequence[int] = ()) -> None:
        """Make durable the last group that was read: a killed writer or a failed sync left it in memory."""
        start = 0 if last.at == HEADER_BYTES else last.at
        is_whole = not any(start < at + SECTOR_BYTES and at < last.end for at in unreadable)
        content = self.pread(handle, last.end - start, start) if is_whole else b""
        self._rewrite(handle, content, start)

    def _rewrite(self, handle: int, content: bytes, offset: int) -> None:
        fd = self._fd(handle)
        if content:
            # Crash here: the same bytes as before.
            self.disk.write_at(fd, content, offset)
        self.disk.sync(fd)


def is_senders(name: SegmentName) -> bool:
    return name.stream == SENDER
