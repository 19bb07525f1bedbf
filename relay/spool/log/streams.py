"""Reads the streams for the owner of the queue: each group once, from where the checkpoint ends.

While a stream's writer lives, the owner reads up to the position that the lock file announces: those groups
are durable.  A dead writer's stream is read to its end, and so is the sender's own at a start.
Unsound bytes at that end, behind the announced position, are a torn group or preallocated zeros: no client
and no operator was told of them.  All other unsound bytes are damage: they are yielded as a group that is not
whole, with its sound records.  Raises OSError if accepted mail cannot be read; the next call resumes there.
"""

import contextlib
import errno
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from relay.spool.disk.durable import Disk, opened
from relay.spool.log.index import Index, Segment
from relay.spool.log.layout import NAMES, SENDER, LogLayout, SegmentName
from relay.spool.log.record import (
    SEGMENT_HEADER_BYTES,
    Position,
    ReadGroup,
    SegmentReader,
    decode_header,
    decode_position,
    mark_of,
)
from relay.spool.log.writer import StreamEnd

Found = tuple[Segment, ReadGroup]


class Stream:
    def __init__(self, name: str, read: Position) -> None:
        self.name = name
        self.read = read
        self.announced = Position()
        self.has_no_writer = False
        self.is_read_to_end = False
        """Its writer is dead, and all of it was read."""

    @property
    def has_news(self) -> bool:
        """Return whether there may be more to read: while the writer lives, only what it announced."""
        is_announced = self.announced.number > 0
        return self.has_no_writer or (is_announced and self.announced != self.read)


class StreamPart(NamedTuple):
    """The part of a segment that is valid."""

    number: int
    end: int
    torn_from: int | None
    """Unsound bytes at the end, from this offset on, are a torn write and no damage; None: all are damage."""


class Streams:
    def __init__(
        self, disk: Disk, layout: LogLayout, index: Index, positions: Mapping[str, Position]
    ) -> None:
        self._disk = disk
        self._layout = layout
        self._index = index
        self._sender = Stream(SENDER, positions.get(SENDER, Position()))
        self._listeners = {name: Stream(name, read) for name, read in positions.items() if name != SENDER}

    def positions(self) -> dict[str, Position]:
        """Return how far each listener's stream was read."""
        return {name: stream.read for name, stream in self._listeners.items() if stream.read.number}

    def read_new(self, most_bytes: int | None) -> Iterator[Found]:
        """Yield groups of all listeners, about `most_bytes` of each stream; None: all there is.

        Raises OSError for a stream that cannot be read, after it read the others.
        """
        failed: OSError | None = None
        for name in self._listed().keys() - {SENDER}:
            self._listeners.setdefault(name, Stream(name, Position()))
        for stream in [each for each in self._listeners.values() if not each.has_no_writer]:
            try:
                self._observe_writer(stream, is_all=most_bytes is None)
            except OSError as error:
                failed = error
        # List segments after the locks: announced segments exist by now, and dead writers begin no more.
        listed = self._listed()
        for stream in [each for each in self._listeners.values() if not each.is_read_to_end]:
            try:
                yield from self._read_stream(stream, listed.get(stream.name, []), most_bytes)
            except OSError as error:
                failed = error
        if failed is not None:
            raise failed

    def replay_sender(self) -> Iterator[Found]:
        self._sender.has_no_writer = True
        yield from self._read_stream(self._sender, self._listed().get(SENDER, []), None)

    def end_of_sender(self) -> StreamEnd:
        numbers = [name.number for name in self._index.segments if name.stream == SENDER]
        return self._sender.read, max([self._sender.read.number, *numbers])

    def forget_removed(self) -> None:
        """Remove the locks of streams that are read to their end and have no segment.  Raises OSError."""
        there = {name.stream for name in self._index.segments}
        for stream in [each for each in self._listeners.values() if each.is_read_to_end]:
            if stream.name in there:
                continue
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(self._layout.stream_lock(stream.name))
            del self._listeners[stream.name]

    def _listed(self) -> dict[str, list[int]]:
        """Return the numbers of the segments of each stream, in order."""
        numbers: dict[str, list[int]] = {}
        for found in filter(None, map(NAMES.match, sorted(self._disk.names(self._layout.log)))):
            numbers.setdefault(found[1], []).extend([int(found[2])] if found[2] else [])
        return numbers

    def _observe_writer(self, stream: Stream, *, is_all: bool) -> None:
        """Learn whether a stream's writer lives, and how far its mail is accepted.

        Raises OSError, also if all is to be read (`is_all`) while a writer rewrites its announcement.
        """
        path = self._layout.stream_lock(stream.name)
        try:
            fd = self._disk.open_update(path)
        except FileNotFoundError:
            stream.has_no_writer = True
            return
        with opened(self._disk, fd):
            is_dead = self._disk.lock_open(fd)
            raw = self._disk.pread(fd, self._disk.size(fd), 0)
            announced = decode_position(raw) if raw else Position()
        if announced is None and not is_dead and is_all:
            # A start needs these messages to read the sender's stream, and `tidy` to tell orphans.
            raise OSError(
                errno.EAGAIN, f"{path} cannot be decoded: its listener may be rewriting it, try again"
            )
        # An announcement that cannot be decoded leaves the previous one in force.
        stream.has_no_writer, stream.announced = is_dead, stream.announced if announced is None else announced

    def _read_stream(self, stream: Stream, numbers: Sequence[int], most_bytes: int | None) -> Iterator[Found]:
        read_bytes = 0
        for segment, group in self._groups(stream, numbers):
            stream.read = Position(segment.name.number, group.end)
            segment.extend(group.end)
            yield segment, group
            read_bytes += group.end - group.at
            if most_bytes is not None and read_bytes >= most_bytes:
                break
        else:
            stream.is_read_to_end = stream.has_no_writer
        for number in numbers:
            segment = self._index.segment(SegmentName(stream.name, number))
            segment.is_finished = stream.is_read_to_end or number < stream.read.number

    def _groups(self, stream: Stream, numbers: Sequence[int]) -> Iterator[Found]:
        before = stream.read
        for number, end, torn_from in self._parts(stream, numbers) if stream.has_news else ():
            segment = self._index.segment(SegmentName(stream.name, number))
            waiting: list[ReadGroup] = []
            with opened(self._disk, self._disk.open_read(self._layout.segment(segment.name))) as fd:
                if torn_from is not None and stream.name != SENDER:
                    # A killed writer may have synced neither the file nor its name.
                    self._disk.sync(fd)
                    self._disk.sync_directory(self._layout.log)
                reader = SegmentReader(mark_of(segment.name), partial(self._disk.pread, fd), end)
                for group in reader.groups(before.end if number == before.number else 0):
                    waiting.append(group)
                    if group.is_whole:
                        yield from ((segment, each) for each in waiting)
                        waiting = []
            damaged = [each for each in waiting if torn_from is None or each.at < torn_from]
            yield from ((segment, each) for each in damaged)

    def _parts(self, stream: Stream, numbers: Sequence[int]) -> list[StreamPart]:
        """Return the valid parts behind the position that was read, the oldest segment first.

        The header of a segment says how much of the segment before it is valid.  So the loop starts at the
        last segment.  Only the last segment may end with a torn group.
        """
        announced = stream.announced
        parts: list[StreamPart] = []
        counts_before: Position | None = None
        """By the header of the segment behind."""
        for number in reversed(numbers):
            is_announced = stream.has_no_writer or number <= announced.number
            is_void = counts_before is not None and number > counts_before.number
            if is_void or number < stream.read.number or not is_announced:
                continue
            name = SegmentName(stream.name, number)
            with opened(self._disk, self._disk.open_read(self._layout.segment(name))) as fd:
                header, end = (
                    decode_header(name, self._disk.pread(fd, SEGMENT_HEADER_BYTES, 0)),
                    self._disk.size(fd),
                )
            if counts_before is not None:
                parts.append(StreamPart(number, counts_before.end, None))
            elif not stream.has_no_writer and number == announced.number:
                parts.append(StreamPart(number, announced.end, None))
            else:
                parts.append(StreamPart(number, end, announced.end if number == announced.number else 0))
            counts_before = header
        return parts[::-1]
