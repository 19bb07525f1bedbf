"""A stream for standard error that never blocks: it holds text in bounded memory, and a thread writes it.

Guarantees: `write` never waits for the reader and never raises, in any thread.  The text of one call stays
whole and in order.  Text that does not fit MOST_HELD_BYTES is dropped, and its lines are counted.  `drain`
waits for a bounded time.

Why not logging's QueueListener: its `stop` waits for the reader without a limit.  It also writes each line
alone, and its thread would wait for the interpreter each time.  Why not O_NONBLOCK instead of a thread: it
belongs to the open file description, which other programs share.
"""

import atexit
import contextlib
import io
import os
import select
import sys
import threading
from collections import deque

MOST_HELD_BYTES = 1024 * 1024
"""Some 5,000 lines.  A reader that is slow for seconds loses none; a stuck reader costs no more memory."""
GATHERS_SECONDS = 0.03
"""How long the thread collects lines before it writes them.  Whenever it runs, the other threads wait for the
interpreter: a turn for each line cost a tenth of a message's CPU time."""
LAST_WORDS_SECONDS = 1.0
"""How long the end of the program waits for the reader."""


class LogStream(io.TextIOBase):
    encoding = "utf-8"

    def __init__(self, fd: int, most_held_bytes: int = MOST_HELD_BYTES) -> None:
        self.lines_lost = 0
        """Lines that were dropped, or could not be written."""
        self._fd, self._most_held_bytes = fd, most_held_bytes
        # The lock is reentrant: a finalizer may write while this thread holds it.
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._held_bytes = 0
        """Bytes that wait, or are being written."""
        # A daemon thread: the interpreter must not wait for a thread that waits for the reader.
        threading.Thread(target=self._run, name="stderr", daemon=True).start()

    def write(self, text: str) -> int:
        content = text.encode("utf-8", "backslashreplace")
        with self._changed:
            if self._held_bytes + len(content) > self._most_held_bytes:
                self.lines_lost += text.count("\n")
            elif content:
                is_idle = not self._held_bytes
                self._held_bytes += len(content)
                self._waiting.append(content)
                if is_idle:
                    self._changed.notify_all()
        return len(text)

    def drain(self, within_seconds: float = LAST_WORDS_SECONDS) -> bool:
        """Wait until all is written; return False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._held_bytes, within_seconds)

    def fileno(self) -> int:
        return self._fd

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                self._changed.wait(GATHERS_SECONDS)
            while self._waiting:
                self._write_next()

    def _write_next(self) -> None:
        with self._changed:
            content = self._waiting.popleft()
            # Join waiting texts in one write, up to the size that a pipe keeps whole.
            while self._waiting and len(content) + len(self._waiting[0]) <= select.PIPE_BUF:
                content += self._waiting.popleft()
        left = memoryview(content)
        with contextlib.suppress(OSError):
            while left:
                left = left[os.write(self._fd, left) :]
        with self._changed:
            self.lines_lost += bytes(left).count(b"\n")
            self._held_bytes -= len(content)
            if not self._held_bytes:
                self._changed.notify_all()


def divert() -> None:
    """Replace `sys.stderr` by a `LogStream`, so that other code that writes to it does not block either."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # it is closed, or replaced by a test
        stream = LogStream(sys.stderr.fileno())
        sys.stderr = stream
        atexit.register(stream.drain)
