"""Standard error that never blocks: text in memory, bounded, and a thread that writes it.

Guarantees: `write` never waits for the reader and never raises, in any thread.  What one call writes stays
whole and in order.  What does not fit MOST_HELD_BYTES is dropped, and its lines are counted.  `drain` waits
for a bounded time.

Not logging's QueueListener: its `stop` waits for the reader without an end, and it writes each line by
itself, for which its thread would have to wait for the interpreter each time.  O_NONBLOCK instead of a thread
would not do: it belongs to the open file description, which other programs share.
"""

import atexit
import contextlib
import io
import os
import select
import sys
import threading
from collections import deque
from typing import TextIO

MOST_HELD_BYTES = 1024 * 1024
"""Some 5,000 lines: a reader that is slow for seconds loses none, one that is stuck costs no memory."""
LAST_WORDS_SECONDS = 1.0
"""How long the end of the program waits for the reader."""


class LogStream(io.TextIOBase):
    def __init__(self, fd: int, most_held_bytes: int = MOST_HELD_BYTES) -> None:
        self.lines_lost = 0
        """Dropped, or not written."""
        self._fd, self._most_held_bytes = fd, most_held_bytes
        # Its lock is reentrant: a finalizer may write while this thread holds it.
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._held_bytes = 0
        """Of what waits and what is being written."""
        # A daemon: the interpreter must not wait for a thread that waits for the reader.
        threading.Thread(target=self._run, name="stderr", daemon=True).start()

    def write(self, text: str) -> int:
        content = text.encode("utf-8", "backslashreplace")
        with self._changed:
            if self._held_bytes + len(content) > self._most_held_bytes:
                self.lines_lost += text.count("\n")
            elif content:
                self._held_bytes += len(content)
                self._waiting.append(content)
                self._changed.notify_all()
        return len(text)

    def drain(self, within_seconds: float = LAST_WORDS_SECONDS) -> bool:
        """Return whether all is written by then."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._held_bytes, within_seconds)

    def fileno(self) -> int:
        return self._fd

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a property there too, which typeshed does not say
        return "utf-8"

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                content = self._waiting.popleft()
                # What waits goes out in one write, as long as a pipe keeps that whole.
                while self._waiting and len(content) + len(self._waiting[0]) <= select.PIPE_BUF:
                    content += self._waiting.popleft()
            left = memoryview(content)
            with contextlib.suppress(OSError):
                while left:
                    left = left[os.write(self._fd, left) :]
            with self._changed:
                self.lines_lost += bytes(left).count(b"\n")
                self._held_bytes -= len(content)
                self._changed.notify_all()


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
