"""The recent past on disk: what became of messages, in a few pieces beside the spool.  Synchronous.

`SPOOL.recent/NUMBER` begins with `relay-recent 1 BEGUN_NS`, then a line an ending (`endings`).  Only the
newest piece is added to; the oldest go whole.  It is for people: nothing depends on it, so nothing is
synced.  A crash may lose its tail or spoil lines, which readers count and pass over.

Guarantees: all pieces together have at most `most_bytes`; an ending is gone at most an eighth of `keep_ns`
after it is that old, by the wall clock, once `tidy` is called.  Mode 0600; new mail keeps its headroom; a
file that others may write is not added to.
Assumes: one writer, the holder of the spool's lock; any number of readers.  A line is far shorter than a
piece.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from relay.spool.disk.durable import Disk, opened, why_a_strangers
from relay.spool.root.headroom import NoHeadroom, why_no_room
from relay.telemetry.endings import LONGEST_LINE, PastEnding, decode, is_whole

PIECES = 8
"""Into which the bounds are divided: what goes at once is an eighth."""
_NAME = re.compile(r"[0-9]{10}\Z")
_HEAD = re.compile(rb"relay-recent 1 ([0-9]{1,20})\n")
_HEAD_BYTES = 64
_CHUNK_BYTES = 256 * 1024


class Bounds(Protocol):
    @property
    def keep_ns(self) -> int: ...

    @property
    def most_bytes(self) -> int: ...


class PastFiles:
    """The writer's side.  Methods raise OSError; one call at a time."""

    def __init__(self, folder: str, disk: Disk) -> None:
        self._folder = folder
        self._disk = disk
        self._number: int | None = None
        """Of the piece that is added to; None before the first look."""

    def append(self, lines: Sequence[bytes], bounds: Bounds, now_ns: int) -> None:
        """Add lines.  Raises NoHeadroom where new mail needs the room that is left."""
        self._disk.make_directory(self._folder)
        if (why := why_no_room(self._disk.free(self._folder), sum(map(len, lines)))) is not None:
            raise NoHeadroom(why)
        if self._number is None:
            self._number = max(_numbers(self._disk, self._folder), default=1)
        done = 0
        while done < len(lines):
            added = self._add(self._number, lines[done:], bounds, now_ns)
            if not added:
                self._number += 1
                self.tidy(bounds, now_ns, bounds.most_bytes // PIECES)
            done += added

    def tidy(self, bounds: Bounds, now_ns: int, wanted_bytes: int = 0) -> None:
        """Let go of pieces that are too old, and of the oldest until there is room for more octets."""
        pieces = []
        for number in sorted(_numbers(self._disk, self._folder)):
            with contextlib.suppress(FileNotFoundError), opened(self._disk, self._open(number)) as fd:
                pieces.append((number, self._disk.status(fd)))
        total_bytes = wanted_bytes + sum(status.size_bytes for _, status in pieces)
        for number, status in pieces:
            if total_bytes > bounds.most_bytes or status.modified_at_ns < now_ns - bounds.keep_ns:
                # Crash here: the others go at the next start.
                self._unlink(number)
                total_bytes -= status.size_bytes

    def remove(self) -> None:
        """Let go of all pieces; fine if there are none."""
        for number in _numbers(self._disk, self._folder):
            self._unlink(number)

    def _add(self, number: int, lines: Sequence[bytes], bounds: Bounds, now_ns: int) -> int:
        """Add as many lines as a piece takes; return how many, 0 if it is not to be added to any more."""
        path = _path(self._folder, number)
        with opened(self._disk, self._disk.open_append(path)) as fd:
            size_bytes = self._disk.size(fd)
            if why_a_strangers(self._disk, fd, path) is not None:
                return 0
            if size_bytes == 0:
                begins = b"relay-recent 1 %d\n" % now_ns
            else:
                begun_at_ns = _begun_at_ns(self._disk, fd)
                # Begun by a clock that was ahead, it would not be old for as long as that was.
                if begun_at_ns is None or not 0 <= now_ns - begun_at_ns < bounds.keep_ns // PIECES:
                    return 0
                # A crash, or a full disk, cut the last line off: it must not spoil the next one.
                begins = b"" if self._disk.pread(fd, 1, size_bytes - 1) == b"\n" else b"\n"
            room_bytes = bounds.most_bytes // PIECES - size_bytes - len(begins)
            count = _fitting(lines, room_bytes)
            if count == 0 and size_bytes == 0:
                count = 1  # it fits nowhere better
            if count:
                # Crash here: any part of it may be there.
                self._disk.write_all(fd, begins + b"".join(lines[:count]))
            return count

    def _open(self, number: int) -> int:
        return self._disk.open_read(_path(self._folder, number))

    def _unlink(self, number: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(_path(self._folder, number))


def _fitting(lines: Sequence[bytes], room_bytes: int) -> int:
    for count, line in enumerate(lines):
        room_bytes -= len(line)
        if room_bytes < 0:
            return count
    return len(lines)


class PastReader:
    """Reads what ended, the newest first, also while the writer adds to it.  Never raises for damage."""

    def __init__(self, folder: str, disk: Disk) -> None:
        self._folder = folder
        self._disk = disk
        self.damaged_lines = 0
        """As far as it was read."""
        self.unread: list[str] = []
        """Pieces that could not be read, with why."""
        self.since_ns: int | None = None
        """Wall clock: when the oldest piece was begun; None where there is none, or not read yet."""

    def endings(self, may_be_wanted: Callable[[bytes], bool]) -> Iterator[PastEnding]:
        """Yield what is in lines that may be wanted.  Raises OSError where the folder cannot be read."""
        numbers = sorted(_numbers(self._disk, self._folder), reverse=True)
        for number in numbers:
            try:
                with opened(self._disk, self._disk.open_read(_path(self._folder, number))) as fd:
                    if (begun_at_ns := _begun_at_ns(self._disk, fd)) is None:
                        self.unread.append(f"{number:010}: not of this version")
                        continue
                    self.since_ns = begun_at_ns
                    for line in self._lines(fd, is_newest=number == numbers[0]):
                        if not is_whole(line):
                            self.damaged_lines += 1
                        elif may_be_wanted(line):
                            yield from self._decoded(line)
            except FileNotFoundError:
                continue  # it went meanwhile
            except OSError as error:
                self.unread.append(f"{number:010}: {error.strerror}")

    def _decoded(self, line: bytes) -> Iterator[PastEnding]:
        try:
            yield decode(line)
        except ValueError:
            self.damaged_lines += 1

    def _lines(self, fd: int, *, is_newest: bool) -> Iterator[bytes]:
        """Yield the lines of a piece, the last first, but its head.  Memory is bounded whatever it holds."""
        end, rest, is_tail = self._disk.size(fd), b"", True
        while end > 0:
            start = max(0, end - _CHUNK_BYTES)
            first, *lines = (self._disk.pread(fd, end - start, start) + rest).split(b"\n")
            for line in reversed(lines):
                # The writer may be at its last line.
                if line and not (is_tail and is_newest):
                    yield line
                is_tail = False
            end, rest = start, first
            if len(rest) > LONGEST_LINE and end > 0:
                self.damaged_lines += 1
                rest = b""


def _numbers(disk: Disk, folder: str) -> list[int]:
    try:
        return [int(name) for name in disk.names(folder) if _NAME.match(name)]
    except FileNotFoundError:
        return []


def _path(folder: str, number: int) -> str:
    return f"{folder}/{number:010}"


def _begun_at_ns(disk: Disk, fd: int) -> int | None:
    """Return when a piece was begun; None of what is none of this version."""
    found = _HEAD.match(disk.pread(fd, _HEAD_BYTES, 0))
    return None if found is None else int(found[1])
