"""The listeners' streams, as the sender reads them: each message once, the oldest of all streams first.

Of a stream whose writer lives, what its lock's file announces is read: that is durable, and stays.  Of one
whose writer is dead, everything that is sound is read: what nobody was told of may come or not.  Its last
group is made durable before anything of it is given out, since a killed writer left it in memory only.
A torn group at the end of a dead stream is no damage: its sound messages come, and the rest was never there.
Damage elsewhere is told to `on_damage`.
"""

import contextlib
import enum
import errno
from collections import deque
from collections.abc import Callable, Container, Iterator
from typing import NamedTuple

from relay.spool.disk.durable import SECTOR_BYTES, opened
from relay.spool.disk.os_errors import is_not_now
from relay.spool.interface import Corrupt
from relay.spool.log.index import LogIndex
from relay.spool.log.layout import SENDER, SegmentName, segment_of, stream_of, summary_of
from relay.spool.log.record import HEADER_BYTES, MESSAGES, Record, SegmentHeader, decode_header
from relay.spool.log.segments import SegmentEvent, Segments, place_of
from relay.spool.log.stream_reader import Damage, ReadGroup, groups
from relay.spool.log.stream_writer import POSITION_BYTES, Position, decode_position
from relay.spool.log.summary import Summaries
from relay.spool.root import foreign
from relay.spool.root.quarantine import Quarantine

MOST_READ = 2048
"""Records of a stream that a start reads at once."""
READ_AHEAD = 512
READ_AHEAD_BYTES = 4 * 1024 * 1024
"""So much of a stream is read at once, or as many messages as are to be taken if that is less."""
NOTHING = Position(0, 0, 0)
_MOST_HELD = 64
"""Locks of dead streams without segments, at once."""
_NO_FILE = frozenset({errno.EISDIR, errno.ELOOP, errno.ENXIO})
OnDamage = Callable[[int, Damage], None]
"""Is given the segment."""


class StreamState(enum.Enum):
    LIVING = enum.auto()
    """Its writer lives, as far as we know."""
    DEAD = enum.auto()
    """Its writer is dead, and its segments were listed after that."""
    OVER = enum.auto()
    """Its writer is dead, and all of it was read."""


class StreamEvent(enum.Enum):
    DIE = enum.auto()
    READ_OUT = enum.auto()


STREAM_AFTER: dict[StreamEvent, tuple[StreamState, StreamState]] = {
    StreamEvent.DIE: (StreamState.LIVING, StreamState.DEAD),
    StreamEvent.READ_OUT: (StreamState.DEAD, StreamState.OVER),
}
"""For each event, the state that it ends and the state it leads to; else it changes nothing."""


class Stream:
    def __init__(self, name: str) -> None:
        self.name = name
        self.lock_fd: int | None = None
        self.state = StreamState.LIVING
        """Only `change` sets it."""
        self.numbers: list[int] = []
        """Of its segments, from the one that is read on."""
        self.at = HEADER_BYTES
        self.highest = 0
        self.read = 0
        """Messages that were read."""
        self.is_unheard = False
        """Its writer lived, and a start could not be told how far its mail is accepted.

        No state: what that start missed stays missed, though the writer is heard or dies later.
        """
        self.waiting: deque[tuple[Record, int]] = deque()
        """Messages that were read and not taken, and their places."""

    def change(self, event: StreamEvent) -> None:
        from_state, state = STREAM_AFTER[event]
        if self.state is from_state:
            self.state = state


class _Part(NamedTuple):
    """What is to be read of a segment."""

    handle: int
    end: int
    is_last: bool
    """There is no more of the stream now."""
    may_be_torn: bool
    accepted: int = 0
    """How much of it is known to have been accepted."""


class Streams:
    def __init__(
        self,
        segments: Segments,
        queued: LogIndex,
        *,
        aside: Quarantine,
        summaries: Summaries,
        on_damage: OnDamage,
    ) -> None:
        self._disk, self._layout = segments.disk, segments.layout
        self._segments = segments
        self._queued = queued
        self._aside = aside
        self._summaries = summaries
        self._on_damage = on_damage
        self._streams: dict[str, Stream] = {}
        self._is_starting = False
        self.senders: list[int] = []
        """Numbers of the sender's own segments, as the folder had them last."""

    def close(self) -> None:
        for stream in self._streams.values():
            self._let_go(stream)

    @property
    def are_read(self) -> bool:
        """Whether a start read all that there was of each stream."""
        return not any(stream.is_unheard for stream in self._streams.values())

    @property
    def waiting(self) -> int:
        """Return how many messages were accepted and not taken, as far as their streams say."""
        self._refresh()
        count = 0
        for stream in self._streams.values():
            position = None if stream.state is StreamState.OVER else self._position(stream)
            unread = max(0, position.messages - stream.read) if position is not None else 0
            count += len(stream.waiting) + unread
        return count

    def take(self, most: int) -> list[Record]:
        """Return messages that are in the queue from now on, the oldest first by their ids."""
        self._refresh()
        for stream in list(self._streams.values()):
            if len(stream.waiting) < most:
                self._read(stream, most)
        taken: list[Record] = []
        while len(taken) < most:
            ready = [stream for stream in self._streams.values() if stream.waiting]
            if not ready:
                break
            first = min(ready, key=lambda stream: stream.waiting[0][0].queue_id)
            if len(ready) == 1:
                while first.waiting and len(taken) < most:
                    taken.append(first.waiting.popleft()[0])
            else:
                taken.append(first.waiting.popleft()[0])
        return taken

    def drain(self, on_step: Callable[[], None]) -> None:
        """Read everything there is into the queue."""
        self._is_starting = True
        self._refresh()
        for stream in list(self._streams.values()):
            before: tuple[int, int, int] | None = None
            while (now := (stream.read, stream.at, len(stream.numbers))) != before:
                before = now
                self._read(stream, MOST_READ)
                stream.waiting.clear()
                on_step()
        self._is_starting = False

    def forget_removed(self, there: Container[str]) -> None:
        """Let go of streams that are over and have no segment left; `there` are those that have."""
        for name, stream in list(self._streams.items()):
            if stream.state is StreamState.OVER and not stream.waiting and name not in there:
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(self._layout.stream_lock(name))
                self._let_go(stream)
                del self._streams[name]

    def _refresh(self) -> None:
        """Learn of streams, and of the segments of those that are known."""
        self._list()
        dead: list[Stream] = []
        # One that is over holds no lock.
        held = sum(
            each.state is StreamState.DEAD and each.lock_fd is not None for each in self._streams.values()
        )
        for stream in self._streams.values():
            if stream.state is not StreamState.LIVING or (held == _MOST_HELD and not stream.highest):
                continue
            if not self._has_died(stream):
                continue
            dead.append(stream)
            if stream.highest:
                # Nobody can begin a stream that has segments: its lock need not be held.
                self._let_go(stream)
            else:
                held += stream.lock_fd is not None
        if dead:
            # Since the names were read a writer may have begun another segment, and died then.
            self._list()
            for stream in dead:
                stream.change(StreamEvent.DIE)

    def _list(self) -> None:
        numbers: dict[str, list[int]] = {}
        names = set(self._disk.names(self._layout.log))
        for name in names:
            if (segment := segment_of(name)) is not None:
                numbers.setdefault(segment.stream, []).append(segment.number)
            elif (locked := stream_of(name)) is not None:
                numbers.setdefault(locked, [])
            elif summary_of(name) is None and not self._is_ours(name):
                self._aside.move(f"{self._layout.log}/{name}", foreign.NOT_OUR_NAME, "log-")
        if self._is_starting:
            self._remove_orphaned_summaries(names)
        senders = sorted(numbers.pop(SENDER, []))
        self.senders = [
            n for n in senders if not self._is_starting or self._is_usable(SegmentName(SENDER, n))
        ]
        for name, its in numbers.items():
            stream = self._streams.setdefault(name, Stream(name))
            if stream.state is not StreamState.OVER:
                known = stream.highest
                new = sorted(n for n in its if n > known and self._is_usable(SegmentName(name, n)))
                stream.numbers += new
                stream.highest = max([known, *new])
                for number in new:
                    self._segments.add(SegmentName(name, number))

    def _is_usable(self, name: SegmentName) -> bool:
        """Return whether a segment is a file of ours; anything else in its place goes to corrupt/."""
        path = self._layout.segment(name)
        try:
            why = foreign.why_not_ours(self._disk, path, lambda _disk, _fd: True, self._disk.open_update)
        except OSError as error:
            if not is_not_now(error):
                raise
            return True
        if why is not None:
            self._aside.move(path, why, "log-")
        return why is None

    def _remove_orphaned_summaries(self, names: set[str]) -> None:
        for name in names:
            if self._is_ours(name) and name.removesuffix(".new").removesuffix(".sum") not in names:
                # Crash here: they go the next time.
                with contextlib.suppress(OSError):
                    self._disk.unlink(f"{self._layout.log}/{name}")

    def _is_ours(self, name: str) -> bool:
        return summary_of(name.removesuffix(".new")) is not None

    def _read(self, stream: Stream, most: int) -> None:
        """Read on until so many messages wait, or there are no more now."""
        if stream.state is StreamState.OVER or (announced := self._announced(stream)) == NOTHING:
            return
        while stream.numbers and len(stream.waiting) < most:
            try:
                part = self._part(stream, announced)
                if stream.at == HEADER_BYTES and self._is_starting:
                    self._read_summary(stream, part)
                is_all = self._read_part(stream, part, most)
            except Corrupt as why:
                self._pass_over(stream, str(why))
                continue
            if not is_all:
                return
            if part.is_last and announced is not None:
                # Those that ended before a start are in no segment any more.
                stream.read = announced.messages
                return
            self._segments[part.handle].change(SegmentEvent.END)
            del stream.numbers[0]
            stream.at = HEADER_BYTES
        if announced is None and not stream.numbers:
            if stream.highest:
                # Crash here: its names may not be durable; the next start finds the stream as dead.
                self._disk.sync_directory(self._layout.log)
            else:
                if stream.lock_fd is not None:
                    # While we hold it: who made this file, and has yet to lock it, sees that it is gone.
                    with contextlib.suppress(FileNotFoundError):
                        self._disk.unlink(self._layout.stream_lock(stream.name))
                del self._streams[stream.name]
            stream.change(StreamEvent.READ_OUT)
            self._let_go(stream)

    def _pass_over(self, stream: Stream, why: str) -> None:
        """Leave a segment that others changed since it was listed: the next start sets it aside."""
        handle = self._segments.handle(SegmentName(stream.name, stream.numbers.pop(0)))
        stream.at = HEADER_BYTES
        self._segments[handle].change(SegmentEvent.PIN)
        name = self._segments.path(handle).rpartition("/")[2]
        self._aside.tell_once(name, f"cannot be read, and is left: {why}")

    def _read_summary(self, stream: Stream, part: "_Part") -> None:
        """Begin behind what a segment's summary tells of, if it has one."""
        found = self._summaries.read(part.handle)
        if found is None or found.covers > part.end:
            return
        for row in found.rows:
            place = place_of(part.handle, row.at, row.record_bytes)
            self._queued.come(row.queue_id, row.recipients, place)
        stream.at = self._segments[part.handle].end = found.covers

    def _part(self, stream: Stream, announced: Position | None) -> "_Part":
        handle = self._segments.handle(SegmentName(stream.name, stream.numbers[0]))
        if announced is not None and stream.numbers[0] == announced.number:
            return _Part(handle, announced.end, is_last=True, may_be_torn=False)
        end = self._segments.size(handle)
        if len(stream.numbers) == 1:
            # What the dead writer announced was durable before: if it is not sound, that is damage.
            last = self._position(stream) if announced is None else None
            accepted = 0
            if last is not None and last.number >= stream.numbers[0]:
                # Of one before its last, which is gone, all was.
                accepted = last.end if last.number == stream.numbers[0] else end
            self._tell_lost_end(handle, accepted, end)
            return _Part(handle, end, is_last=True, may_be_torn=announced is None, accepted=accepted)
        header = read_header(self._segments, SegmentName(stream.name, stream.numbers[1]))
        if header is not None and header.before == stream.numbers[0]:
            self._tell_lost_end(handle, header.before_end, end)
            end = min(end, header.before_end)
        return _Part(handle, end, is_last=False, may_be_torn=False)

    def _tell_lost_end(self, handle: int, accepted: int, end: int) -> None:
        """Tell of a segment that is shorter than what was accepted: nothing is there to set aside."""
        if accepted > end:
            name = self._segments.path(handle).rpartition("/")[2]
            self._aside.tell_once(name, f"lost its end: {accepted} octets were accepted, {end} are there")

    def _read_part(self, stream: Stream, part: "_Part", most: int) -> bool:
        """Read on in a segment; return whether that is all there is of it."""
        segment = self._segments[part.handle]
        unreadable: list[int] = []
        window = self._segments.window(part.handle, part.end, unreadable.append)
        found, is_all = _some(groups(window, segment.mark, stream.at), max(most, READ_AHEAD))
        if part.may_be_torn and is_all and found:
            self._segments.make_durable(part.handle, found[-1], unreadable)
        if unreadable:
            segment.change(SegmentEvent.PIN)
            name = self._segments.path(part.handle).rpartition("/")[2]
            self._aside.tell_once(name, "cannot be read, and is left: the disk does not give a sector of it")
        for group in found:
            for each in group.records:
                if each.kind in MESSAGES:
                    self._come(stream, part.handle, each)
            is_torn = part.may_be_torn and is_all and group is found[-1] and group.end > part.accepted
            for damage in () if is_torn else group.damages:
                if not any(damage.at < at + SECTOR_BYTES and at < damage.end for at in unreadable):
                    self._on_damage(part.handle, damage)
            stream.at = segment.end = group.end
        return is_all

    def _come(self, stream: Stream, handle: int, each: Record) -> None:
        place = place_of(handle, each.at, each.record_bytes)
        stream.read += 1
        if self._queued.come(each.queue_id, each.number, place):
            stream.waiting.append((each, place))

    def _has_died(self, stream: Stream) -> bool:
        """Return whether a stream's writer is dead; from then on we hold its lock."""
        path, why = self._layout.stream_lock(stream.name), None
        if stream.lock_fd is None:
            try:
                stream.lock_fd = self._disk.open_update(path)
            except FileNotFoundError:
                return True
            except OSError as error:
                if is_not_now(error):
                    # Nobody knows whether its writer lives, or how far its mail is accepted: it is unheard.
                    self._aside.leave(path, f"cannot be read, and is left: {error.strerror}")
                    return False
                # Of one that may be a writer's, and that we may not open, nobody knows whether it lives.
                if error.errno not in _NO_FILE:
                    raise
                why = foreign.why_unusable(error)
            else:
                self._aside.forget(path)
        if stream.lock_fd is not None and not self._disk.lock_open(stream.lock_fd):
            return False
        if why is None and stream.lock_fd is not None:
            why = self._why_no_lock(stream.lock_fd)
        if why is not None:
            self._aside.move(path, why, "log-")
            self._let_go(stream)
        return True

    def _why_no_lock(self, fd: int) -> str | None:
        try:
            is_ours = len(self._disk.pread(fd, POSITION_BYTES + 1, 0)) <= POSITION_BYTES
        except OSError as error:
            return None if is_not_now(error) else foreign.why_unusable(error)
        return None if is_ours else "not written by us"

    def _announced(self, stream: Stream) -> Position | None:
        """Return how far a stream's writer says that its mail is accepted; None: it is dead."""
        announced = None if stream.state is StreamState.DEAD else self._position(stream) or NOTHING
        if self._is_starting:
            stream.is_unheard = announced == NOTHING and stream.highest > 0
        return announced

    def _position(self, stream: Stream) -> Position | None:
        """Return None also where the disk does not give it: it is needed by no restart."""
        try:
            if stream.lock_fd is None:
                path = self._layout.stream_lock(stream.name)
                with opened(self._disk, self._disk.open_read(path)) as fd:
                    return decode_position(self._disk.pread(fd, POSITION_BYTES, 0))
            return decode_position(self._disk.pread(stream.lock_fd, POSITION_BYTES, 0))
        except OSError as error:
            if not (isinstance(error, FileNotFoundError) or is_not_now(error)):
                raise
            return None

    def _let_go(self, stream: Stream) -> None:
        if stream.lock_fd is not None:
            with contextlib.suppress(OSError):
                self._disk.close(stream.lock_fd)
            stream.lock_fd = None


def _some(found: Iterator[ReadGroup], most: int) -> tuple[list[ReadGroup], bool]:
    """Return groups with about so many records, or so many bytes; and whether that is all."""
    some: list[ReadGroup] = []
    count = 0
    for group in found:
        if count >= most or (some and group.at - some[0].at >= READ_AHEAD_BYTES):
            return some, False
        some.append(group)
        count += len(group.records)
    return some, True


def read_header(segments: Segments, name: SegmentName) -> SegmentHeader | None:
    handle = segments.handle(name)
    with contextlib.suppress(Corrupt):
        return decode_header(name, segments.pread(handle, HEADER_BYTES, 0))
    return None
