"""Streams as the owner of the queue reads them: each group once, from where the checkpoint ends.

Of a stream whose writer lives, what its lock's file announces is read: that is durable, and stays.  Of one
whose writer is dead, and of our own at a start, everything that is sound is read; what is not at its very end,
and behind what was announced, is a group that a crash tore, or room: nobody was told of it.
Anything else that is not sound is damage.  It comes as a group that is not whole, with what is sound of it.
Raises OSError where the disk does not give what was accepted: it may be asked again, and goes on there.
"""

import contextlib
import errno
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from relay.spool.disk.durable import Disk, opened
from relay.spool.log.checkpoint import Read
from relay.spool.log.index import Index, Segment
from relay.spool.log.layout import SENDER, Layout, SegmentName, segment_of, stream_of
from relay.spool.log.reader import Damage, ReadGroup, SegmentReader
from relay.spool.log.record import HEADER_BYTES, MESSAGES, SegmentHeader, decode_header, mark_of
from relay.spool.log.writer import POSITION_BYTES, Position, decode_position

_NOTHING = Position(0, 0, 0)
_NO_HEADER = ReadGroup(0, HEADER_BYTES, False, [], [Damage(0, HEADER_BYTES)])  # noqa: FBT003
Found = tuple[Segment, ReadGroup]


class Stream:
    __slots__ = ("announced", "at", "is_dead", "is_over", "messages", "name", "number")

    def __init__(self, name: str, read: Read = Read()) -> None:  # noqa: B008 - a value
        self.name = name
        self.number, self.at, self.messages = read
        self.announced = _NOTHING
        self.is_dead = False
        self.is_over = False
        """It is dead, and all of it was read."""

    @property
    def read(self) -> Read:
        return Read(self.number, self.at, self.messages)


class _Part(NamedTuple):
    """What is to be read of a segment."""

    number: int
    end: int
    has_header: bool
    torn_behind: int | None
    """From where on what is not sound is no damage; None: nowhere."""


class Streams:
    def __init__(self, disk: Disk, layout: Layout, index: Index, positions: Mapping[str, Read]) -> None:
        self._disk = disk
        self._layout = layout
        self._index = index
        self.sender = Stream(SENDER, positions.get(SENDER, Read()))
        self.highest = 0
        """Number of any segment of our own stream."""
        self._streams = {name: Stream(name, read) for name, read in positions.items() if name != SENDER}

    def positions(self) -> dict[str, Read]:
        return {name: stream.read for name, stream in self._streams.items() if stream.number}

    @property
    def unread(self) -> int:
        """Return how many messages are announced and not read, as of the last look."""
        alive = [stream for stream in self._streams.values() if not stream.is_over]
        return sum(max(0, stream.announced.messages - stream.messages) for stream in alive)

    def listen(self, most_bytes: int | None) -> Iterator[Found]:
        """Yield groups of all listeners, of each so many bytes at once; None: all there is."""
        for name in self._listed():
            self._streams.setdefault(name, Stream(name))
        for stream in [stream for stream in self._streams.values() if not stream.is_dead]:
            self._hear(stream)
        # Only now: what is announced is there, and a writer that is dead by now begins no segment any more.
        listed = self._listed()
        failed: OSError | None = None
        for stream in [stream for stream in self._streams.values() if not stream.is_over]:
            try:
                yield from self._read(stream, listed.get(stream.name, []), most_bytes)
            except OSError as error:
                failed = error
        if failed is not None:
            raise failed

    def _read(self, stream: Stream, numbers: Sequence[int], most_bytes: int | None) -> Iterator[Found]:
        read_bytes = 0
        is_all = True
        for segment, group in self._groups(stream, numbers):
            stream.messages += sum(each.kind in MESSAGES for each in group.records)
            yield segment, group
            read_bytes += group.end - group.at
            if most_bytes is not None and read_bytes >= most_bytes:
                is_all = False
                break
        stream.is_over = stream.is_dead and is_all
        self._mark_done(stream, numbers)

    def replay_sender(self) -> Iterator[Found]:
        """Yield the groups of our own stream."""
        numbers = self._listed(of_sender=True).get(SENDER, [])
        self.sender.is_dead = self.sender.is_over = True
        yield from self._groups(self.sender, numbers)
        self.highest = max([self.sender.number, *numbers])
        self._mark_done(self.sender, numbers)

    def forget_removed(self) -> None:
        """Let go of streams that are over and have no segment left.  Raises OSError."""
        there = {name.stream for name in self._index.segments}
        for name in [name for name, each in self._streams.items() if each.is_over and name not in there]:
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(self._layout.stream_lock(name))
            del self._streams[name]

    def _listed(self, *, of_sender: bool = False) -> dict[str, list[int]]:
        """Return the streams that there are, and the numbers of their segments in order."""
        numbers: dict[str, list[int]] = {}
        for name in self._disk.names(self._layout.log):
            if (segment := segment_of(name)) is not None:
                numbers.setdefault(segment.stream, []).append(segment.number)
            elif (locked := stream_of(name)) is not None:
                numbers.setdefault(locked, [])
        return {name: sorted(its) for name, its in numbers.items() if (name == SENDER) is of_sender}

    def _hear(self, stream: Stream) -> None:
        """Learn whether a stream's writer lives, and how far its mail is accepted.  Raises OSError."""
        path = self._layout.stream_lock(stream.name)
        try:
            fd = self._disk.open_update(path)
        except FileNotFoundError:
            stream.is_dead = True
            return
        with opened(self._disk, fd):
            is_dead = self._disk.lock_open(fd)
            raw = self._disk.pread(fd, POSITION_BYTES, 0)
            if is_dead and not (stream.number or self._listed()[stream.name]):
                # While we hold it: who was about to begin this stream begins another one.
                self._disk.unlink(path)
                del self._streams[stream.name]
        announced = decode_position(raw)
        if announced is None and raw and not is_dead:
            # A start that took it for nothing would not know of whom our own stream speaks.
            raise OSError(errno.EAGAIN, "a listener is just announcing its mail")
        stream.is_dead, stream.announced = is_dead, announced or _NOTHING

    def _groups(self, stream: Stream, numbers: Sequence[int]) -> Iterator[Found]:
        if not stream.is_dead and stream.announced[:2] in ((0, 0), (stream.number, stream.at)):
            return
        for number, end, has_header, torn_behind in self._parts(stream, numbers):
            segment = self._index.segment(SegmentName(stream.name, number))
            is_new = number != stream.number
            waiting = [_NO_HEADER] if is_new and not has_header else []
            with opened(self._disk, self._disk.open_read(self._layout.segment(segment.name))) as fd:
                if torn_behind is not None and stream is not self.sender:
                    # A killed writer may have left it in memory only.
                    self._disk.sync(fd)
                window = SegmentReader(partial(self._pread, fd), segment.mark, end)
                for group in window.groups(HEADER_BYTES if is_new else stream.at):
                    waiting.append(group)
                    if group.is_whole:
                        yield from self._passed(stream, segment, waiting)
                        waiting = []
            damaged = [each for each in waiting if torn_behind is None or each.at < torn_behind]
            yield from self._passed(stream, segment, damaged)

    @staticmethod
    def _passed(stream: Stream, segment: Segment, found: Sequence[ReadGroup]) -> Iterator[Found]:
        for group in found:
            stream.number, stream.at, segment.end = segment.name.number, group.end, group.end
            yield segment, group

    def _parts(self, stream: Stream, numbers: Sequence[int]) -> list[_Part]:
        """Return what counts of the segments from where the stream was read to, the oldest first.

        Each says how much of the one before it does, and that segments between the two do not.
        """
        announced = stream.announced
        parts: list[_Part] = []
        after: SegmentHeader | None = None
        for number in reversed(numbers):
            is_void = after is not None and number > after.before
            if is_void or number < stream.number or not (stream.is_dead or number <= announced.number):
                continue
            name = SegmentName(stream.name, number)
            header, end = self._header(name)
            torn_behind: int | None = announced.end if number == announced.number else 0
            if after is not None or not (stream.is_dead or number < announced.number):
                end, torn_behind = announced.end if after is None else after.before_end, None
            if header is None and torn_behind == 0 and not self._has_group(name, end):
                continue  # torn when it was begun
            parts.append(_Part(number, end, header is not None, torn_behind))
            after = header
        return parts[::-1]

    def _header(self, name: SegmentName) -> tuple[SegmentHeader | None, int]:
        """Return a segment's header, None where that is damaged, and its length."""
        with opened(self._disk, self._disk.open_read(self._layout.segment(name))) as fd:
            return decode_header(name, self._disk.pread(fd, HEADER_BYTES, 0)), self._disk.size(fd)

    def _has_group(self, name: SegmentName, end: int) -> bool:
        with opened(self._disk, self._disk.open_read(self._layout.segment(name))) as fd:
            window = SegmentReader(partial(self._pread, fd), mark_of(name), end)
            return any(group.is_whole for group in window.groups(HEADER_BYTES))

    def _pread(self, fd: int, size: int, at: int) -> bytes:
        return self._disk.pread(fd, size, at)

    def _mark_done(self, stream: Stream, numbers: Sequence[int]) -> None:
        for number in numbers:
            segment = self._index.segment(SegmentName(stream.name, number))
            segment.end = segment.end or self._disk.length(self._layout.segment(segment.name)) or 0
            segment.is_done = stream.is_over or number < stream.number
