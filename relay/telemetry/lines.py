"""Lines onto a stream, whatever becomes of the stream.

Guarantees: nothing here raises; `lines_lost` counts what could not be written.  Lines
are collected and written together once per turn of the event loop, in writes small
enough that those of several processes on one pipe do not mix.  Writing may block where
whoever reads the stream does not keep up, unless the stream is one of `stderr`, as that of
a relay that runs is.  One thread only.
"""

import os
from collections.abc import Callable
from typing import TextIO

WHOLE_WRITE_BYTES = 4096
"""PIPE_BUF of Linux: what one write puts into a pipe in one piece (pipe(7))."""

LONGEST_LINE = 8000
"""Characters; a reply of 2,000 and two addresses of the longest kind fit."""

CallSoon = Callable[[Callable[[], None]], object]


class LineWriter:
    """Writes lines to one stream."""

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
        """Write what was collected."""
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
    """Return whether the stream is the one that systemd connected to the journal.

    systemd.exec(5), $JOURNAL_STREAM: device and inode are compared, since a child may
    inherit the variable and write elsewhere.
    """
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
