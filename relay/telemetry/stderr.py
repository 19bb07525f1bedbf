"""Standard error that never blocks: a bounded buffer, and a thread that writes it.

Guarantees: `write` never blocks, even if the reader is stuck.  Lines that do not fit into
MOST_HELD_BYTES are dropped and counted; once the reader reads again, a line in their place says
how many are missing.  Lines keep their order and stay whole, also where several
threads write.  `drain` waits for a bounded time; what a reader does not take by then is lost.
Logging's QueueListener promises neither: its `stop` waits for the reader without an end, and a
bounded queue, whose lock is not reentrant, may stop whoever writes from a finalizer.

`divert` puts it in the place of `sys.stderr`, so that whatever else writes there (asyncio,
aiohttp, an exception in a thread, the last words of the command line) does not block either.

O_NONBLOCK instead of a thread would not do: it belongs to the open file description, which
other programs share.
"""

import atexit
import io
import os
import select
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TextIO

LONGEST_LINE = 8000
"""Characters; a reply of 2,000 and two addresses of the longest kind fit."""

MOST_HELD_BYTES = 1024 * 1024
"""Some 5,000 lines: a reader that is slow for seconds loses none, one that is stuck costs no memory."""
MOST_PARTIAL_CHARACTERS = 64 * 1024
"""Of a line without an end."""
LAST_WORDS_SECONDS = 1.0
"""How long the end of the program waits for the reader."""


def _told(count: int) -> str:
    return f"{count} log lines were dropped here: nobody read them"


class UnwaitingStream(io.TextIOBase):
    """A text stream onto a descriptor.  From any thread."""

    def __init__(self, fd: int, *, most_held_bytes: int = MOST_HELD_BYTES) -> None:
        self.tell_gap: Callable[[int], str] = _told
        """Makes the line for a gap of so many lines; called in any thread."""
        self.lines_lost = 0
        self._fd = fd
        self._most_held_bytes = most_held_bytes
        # Lock and queue are reentrant: what the collector finds may write while we hold them.
        self._lock = threading.RLock()
        self._queue: SimpleQueue[bytes | threading.Event] = SimpleQueue()
        """Whole lines; an event is set once all before it is written."""
        self._held_bytes = 0
        self._gap = 0
        """Lines that were dropped behind all that is in the queue."""
        self._partial = ""
        self._is_cut = False
        """The last line was not written to its end."""
        # A daemon: the interpreter must not wait for a thread that waits for the reader.
        threading.Thread(target=self._run, name="stderr", daemon=True).start()

    def write(self, text: str) -> int:
        """Take text; lines go out once they are whole.  Never blocks and never raises."""
        with self._lock:
            whole, newline, rest = (self._partial + text).rpartition("\n")
            if len(rest) > MOST_PARTIAL_CHARACTERS:
                whole, newline, rest = f"{whole}{newline}{rest}", "\n", ""
            self._partial = rest
            if newline:
                self._add(whole + newline)
        return len(text)

    def drain(self, within_seconds: float = LAST_WORDS_SECONDS) -> bool:
        """Wait no longer than that; return whether all is written."""
        is_written = threading.Event()
        with self._lock:
            if self._partial:
                self._add(self._partial + "\n")
                self._partial = ""
            self._tell_gap()
            self._queue.put(is_written)
        return is_written.wait(within_seconds)

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
        content = whole.encode("utf-8", "backslashreplace")
        if self._held_bytes + len(content) <= self._most_held_bytes:
            self._tell_gap()
            self._hold(content)
            return
        self._gap += whole.count("\n")
        self.lines_lost += whole.count("\n")
        if not self._held_bytes:
            self._tell_gap()

    def _hold(self, content: bytes) -> None:
        self._held_bytes += len(content)
        self._queue.put(content)

    def _tell_gap(self) -> None:
        count, self._gap = self._gap, 0
        if not count:
            return
        try:
            told = self.tell_gap(count)
        except Exception:  # noqa: BLE001 - whoever writes to a log is not told of its faults
            told = _told(count)
        self._hold(f"{told}\n".encode("utf-8", "backslashreplace"))

    def _run(self) -> None:
        ahead: bytes | threading.Event | None = None
        while True:
            content, ahead = ahead or self._queue.get(), None
            if isinstance(content, threading.Event):
                content.set()
                continue
            # What waits goes out in one write, as long as a pipe keeps that whole.
            while not self._queue.empty():
                ahead = self._queue.get()
                if isinstance(ahead, threading.Event) or len(content) + len(ahead) > select.PIPE_BUF:
                    break
                content, ahead = content + ahead, None
            lost = self._put(content)
            with self._lock:
                self.lines_lost += lost
                self._held_bytes -= len(content)
                if not self._held_bytes:
                    self._tell_gap()

    def _put(self, content: bytes) -> int:
        """Write lines in one write where that can be: several processes share what we write to.

        Return how many were not written, or not to their end.
        """
        left = memoryview(b"\n" + content if self._is_cut else content)
        self._is_cut = False
        while left:
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:
                # A process that shares the descriptor set O_NONBLOCK: wait as a blocking write does.
                _wait_until_writable(self._fd)
            except OSError:
                # Gone, full, broken: the next line may find it well again, and begins as a line.
                self._is_cut = len(left) < len(content)
                return bytes(left).count(b"\n")
        return 0


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
