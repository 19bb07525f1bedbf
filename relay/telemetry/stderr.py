"""Standard error that never blocks: a bounded queue, and a thread that writes it.

Guarantees: `write` never waits for the reader and never raises, in any thread.  Lines stay whole and in
order.  Lines beyond MOST_HELD_BYTES are dropped and counted; a line in their place says how many are missing,
at the latest once all else is written.  `drain` waits for a bounded time.

Not logging's QueueListener: its `stop` waits for the reader without an end, and each line would be a
LogRecord, which takes longer than all else here.  O_NONBLOCK instead of a thread would not do: it belongs
to the open file description, which other programs share.
"""

import atexit
import contextlib
import io
import os
import select
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TextIO

MOST_HELD_BYTES = 1024 * 1024
"""Some 5,000 lines: a reader that is slow for seconds loses none, one that is stuck costs no memory."""
MOST_PARTIAL_CHARACTERS = 64 * 1024
"""Of a line without an end."""
LAST_WORDS_SECONDS = 1.0
"""How long the end of the program waits for the reader."""


class LogStream(io.TextIOBase):
    def __init__(self, fd: int, most_held_bytes: int = MOST_HELD_BYTES) -> None:
        self.tell_gap: Callable[[int], str] = "{} log lines were dropped".format
        """Makes the line for so many that are missing; called in any thread."""
        self._fd, self._most_held_bytes = fd, most_held_bytes
        # Lock and queue are reentrant: a finalizer may write while this thread holds them.
        self._lock = threading.RLock()
        self._queue: SimpleQueue[bytes | threading.Event] = SimpleQueue()
        """Whole lines; an event is set once all before it is written."""
        self._partial = ""
        self._gap = self._dropped = self._unwritten = 0
        """Lines: dropped since the last one that fitted, dropped in all, and not written."""
        self._is_cut = False
        """The last line was not written to its end."""
        self._taken_bytes = self._written_bytes = 0
        """Under the lock."""
        # A daemon: the interpreter must not wait for a thread that waits for the reader.
        threading.Thread(target=self._run, name="stderr", daemon=True).start()

    @property
    def lines_lost(self) -> int:
        return self._dropped + self._unwritten

    def write(self, text: str) -> int:
        """Take text; lines go out once they are whole."""
        with self._lock:
            whole, newline, self._partial = (self._partial + text).rpartition("\n")
            if newline:
                self._add(whole + newline)
            if len(self._partial) > MOST_PARTIAL_CHARACTERS:
                self._end_line()
        return len(text)

    def drain(self, within_seconds: float = LAST_WORDS_SECONDS) -> bool:
        """Return whether all is written by then."""
        is_written = threading.Event()
        with self._lock:
            self._end_line()
        self._queue.put(is_written)
        return is_written.wait(within_seconds)

    def fileno(self) -> int:
        return self._fd

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a property there too, which typeshed does not say
        return "utf-8"

    def _end_line(self) -> None:
        if self._partial:
            self._add(f"{self._partial}\n")
            self._partial = ""

    def _add(self, lines: str) -> None:
        if self._gap:
            lines = f"{self.tell_gap(self._gap)}\n{lines}"
        content = lines.encode("utf-8", "backslashreplace")
        if self._taken_bytes - self._written_bytes + len(content) > self._most_held_bytes:
            missing = lines.count("\n") - bool(self._gap)
            self._gap += missing
            self._dropped += missing
            return
        self._gap = 0
        self._taken_bytes += len(content)
        self._queue.put(content)

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
            self._put(content)
            with self._lock:
                self._written_bytes += len(content)
                if self._gap and self._taken_bytes == self._written_bytes:
                    self._add("")  # the gap alone: nothing may come for hours

    def _put(self, content: bytes) -> None:
        """Write lines in one write where that can be: several processes share what we write to."""
        whole = b"\n" + content if self._is_cut else content
        left = memoryview(whole)
        while left:
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:
                # A process that shares the descriptor set O_NONBLOCK: wait as a blocking write does.
                select.select([], [self._fd], [])
            except OSError:
                # Gone, full, broken: the next line may find it well again, and begins as a line.
                self._is_cut = self._is_cut or len(left) < len(whole)
                self._unwritten += bytes(left).count(b"\n")
                return
        self._is_cut = False


def divert() -> None:
    """Put a `LogStream` in the place of `sys.stderr`, so that nothing else that writes there waits either."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or a test's
        stream = LogStream(sys.stderr.fileno())
        sys.stderr = stream
        atexit.register(stream.drain)


def drain(stream: TextIO) -> None:
    """Give the last words of a program that ends at once a moment to be read."""
    if isinstance(stream, LogStream):
        stream.drain()


def is_journal(stream: TextIO) -> bool:
    """Compare device and inode (systemd.exec(5)): a child may inherit the variable and write elsewhere."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
