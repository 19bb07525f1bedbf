"""Standard error that never blocks: a bounded buffer, and a thread that writes it.

Guarantees: `write` never blocks, even if the reader is stuck.  Lines that do not fit into
MOST_HELD_BYTES are dropped and counted; once the reader reads again, a line in their place says
how many are missing.  Lines keep their order and stay whole, also where several
threads write.  `drain` waits for a bounded time; what a reader does not take by then is lost.

`divert` puts it in the place of `sys.stderr`, so that whatever else writes there (asyncio,
aiohttp, an exception in a thread, the last words of the command line) does not block either.

O_NONBLOCK instead of a thread would not do: it belongs to the open file description, which
other programs share.

`LineWriter` collects lines and writes them together once per turn of the event loop, in writes
small enough that those of several processes on one pipe do not mix.  It never raises; `lines_lost`
counts what could not be written.  One thread only.
"""

import atexit
import io
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TextIO

WHOLE_WRITE_BYTES = 4096
"""PIPE_BUF of Linux: what one write puts into a pipe in one piece (pipe(7))."""

LONGEST_LINE = 8000
"""Characters; a reply of 2,000 and two addresses of the longest kind fit."""

CallSoon = Callable[[Callable[[], None]], object]
MOST_HELD_BYTES = 1024 * 1024
"""Some 5,000 lines: a reader that is slow for seconds loses none, one that is stuck costs no memory."""
MOST_PARTIAL_CHARACTERS = 64 * 1024
"""Of a line without an end."""
LAST_WORDS_SECONDS = 1.0
"""How long the end of the program waits for the reader."""


class _Lines(NamedTuple):
    """Whole lines, encoded: one write each."""

    content: bytes
    number: int


def _told(count: int) -> str:
    return f"{count} log lines were dropped here: nobody read them"


class UnwaitingStream(io.TextIOBase):
    """A text stream onto a descriptor.  From any thread."""

    def __init__(self, fd: int, *, most_held_bytes: int = MOST_HELD_BYTES) -> None:
        self.tell_gap: Callable[[int], str] = _told
        """Makes the line for a gap of so many lines; called in the thread that writes."""
        self._fd = fd
        self._most_held_bytes = most_held_bytes
        self._waiting: deque[_Lines | int] = deque()
        """What is not written yet, in order; a number stands for so many lines that were dropped."""
        self._held_bytes = 0
        self._partial = ""
        self._dropped = 0
        self._failed = 0
        self._is_cut = False
        """The last line was not written to its end."""
        self._is_idle = True
        """All that was taken is written."""
        # Reentrant: what the collector finds may write while we hold it.
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        self._drained = threading.Condition(lock)
        # A daemon: the interpreter must not wait for a thread that waits for the reader.
        self._thread = threading.Thread(target=self._run, name="stderr", daemon=True)
        self._thread.start()

    @property
    def lines_lost(self) -> int:
        return self._dropped + self._failed

    def write(self, text: str) -> int:
        """Take text; lines go out once they are whole.  Never blocks and never raises."""
        with self._changed:
            whole, newline, rest = (self._partial + text).rpartition("\n")
            if len(rest) > MOST_PARTIAL_CHARACTERS:
                whole, newline, rest = f"{whole}{newline}{rest}", "\n", ""
            self._partial = rest
            if newline:
                self._add(whole + newline)
        return len(text)

    def drain(self, within_seconds: float = LAST_WORDS_SECONDS) -> bool:
        """Wait no longer than that; return whether all is written."""
        with self._changed:
            if self._partial:
                self._add(self._partial + "\n")
                self._partial = ""
            return self._drained.wait_for(lambda: self._is_idle, within_seconds)

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a property there too, which typeshed does not say
        return "utf-8"

    def _add(self, whole: str) -> None:
        content, count = whole.encode("utf-8", "backslashreplace"), whole.count("\n")
        if self._held_bytes + len(content) <= self._most_held_bytes:
            self._waiting.append(_Lines(content, number=count))
            self._held_bytes += len(content)
        else:
            self._dropped += count
            if self._waiting and isinstance(gap := self._waiting[-1], int):
                self._waiting[-1] = gap + count
            else:
                self._waiting.append(count)
        self._is_idle = False
        self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                first = self._waiting.popleft()
                lines = first if isinstance(first, int) else self._together(first)
            self._put(self._gap(lines) if isinstance(lines, int) else lines)
            with self._changed:
                self._held_bytes -= 0 if isinstance(lines, int) else len(lines.content)
                self._is_idle = not self._waiting
                if self._is_idle:
                    self._drained.notify_all()

    def _together(self, lines: _Lines) -> _Lines:
        """Put the lines behind these into the same write."""
        chunks, number, size_bytes = [lines.content], lines.number, len(lines.content)
        while self._waiting and isinstance(behind := self._waiting[0], _Lines):
            size_bytes += len(behind.content)
            if size_bytes > WHOLE_WRITE_BYTES:
                break
            self._waiting.popleft()
            chunks.append(behind.content)
            number += behind.number
        return _Lines(b"".join(chunks), number)

    def _gap(self, count: int) -> _Lines:
        try:
            told = self.tell_gap(count)
        except Exception:  # noqa: BLE001 - this thread must not end because of a line
            told = _told(count)
        return _Lines(f"{told}\n".encode("utf-8", "backslashreplace"), number=0)

    def _put(self, lines: _Lines) -> None:
        """Write lines in one write where that can be: several processes share what we write to."""
        left = memoryview(b"\n" + lines.content if self._is_cut else lines.content)
        self._is_cut = False
        while left:
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:
                # A process that shares the descriptor set O_NONBLOCK: wait as a blocking write does.
                _wait_until_writable(self._fd)
            except OSError:
                # Gone, full, broken: the next line may find it well again, and begins as a line.
                self._is_cut = len(left) < len(lines.content)
                self._failed += lines.number
                return


def _wait_until_writable(fd: int) -> None:
    waiting = select.poll()
    waiting.register(fd, select.POLLOUT)
    waiting.poll()


def divert() -> UnwaitingStream | None:
    """Return None where there is no standard error."""
    if isinstance(sys.stderr, UnwaitingStream):
        return sys.stderr
    try:
        stream = UnwaitingStream(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):
        return None  # closed, or a test's
    sys.stderr = stream
    atexit.register(stream.drain)
    return stream


def drain(stream: TextIO) -> None:
    """Give the last words of a program that ends at once a moment to be read."""
    if isinstance(stream, UnwaitingStream):
        stream.drain()


class LineWriter:
    def __init__(self, stream: TextIO) -> None:
        self.lines_lost = 0
        self._stream = stream
        self._collected: list[str] = []
        self._call_soon: CallSoon | None = None
        self._is_flush_due = False

    def collect(self, call_soon: CallSoon | None) -> None:
        """Write once per turn of a loop, given its `call_soon`; None: write each line at once."""
        self._call_soon = call_soon
        self.flush()

    def add(self, line: str, *, is_urgent: bool) -> None:
        """Add a line, without its end; an urgent one is written now, and all before it."""
        self._collected.append(line + "\n")
        if self._call_soon is None or is_urgent:
            self.flush()
        elif not self._is_flush_due:
            try:
                self._call_soon(self.flush)
                self._is_flush_due = True
            except RuntimeError:  # the loop is closed already
                self.flush()

    def flush(self) -> None:
        lines, self._collected, self._is_flush_due = self._collected, [], False
        chunk: list[str] = []
        size_bytes = 0
        for line in lines:
            line_bytes = len(line.encode("utf-8", "replace"))
            if chunk and size_bytes + line_bytes > WHOLE_WRITE_BYTES:
                self._put(chunk)
                chunk, size_bytes = [], 0
            chunk.append(line)
            size_bytes += line_bytes
        if chunk:
            self._put(chunk)

    def _put(self, lines: list[str]) -> None:
        try:
            self._stream.write("".join(lines))
            self._stream.flush()
        except (OSError, ValueError):  # gone, full, closed, or an encoding that lacks a character
            self.lines_lost += len(lines)


def one_line(text: str) -> str:
    """Return foreign text on one line, without anything that is not printable, cut to LONGEST_LINE."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " if c in "\t\r\n" else "?" for c in text)
    return text[:LONGEST_LINE]


def is_journal(stream: TextIO) -> bool:
    """Compare device and inode (systemd.exec(5)): a child may inherit the variable and write elsewhere."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
