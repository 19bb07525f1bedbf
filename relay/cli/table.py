"""The one way in which verbs print rows: under columns, and where a terminal is too narrow, below them.

Not for programs, which have `--json`.  Every text is shown as `printable` has it.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from relay.cli.options import printable

_GAP = "  "
_INDENT = " " * 4


def line_width() -> int | None:
    """Return how many columns the reader's terminal has; None where no person reads."""
    if not sys.stdout.isatty():
        return None
    import shutil  # noqa: PLC0415 - with compression, for which no verb in a pipe waits

    return shutil.get_terminal_size().columns


def wrapped(text: str, width: int | None, indent: str = "") -> list[str]:
    """Return a text in lines; a word is broken only where it does not fit alone."""
    text = printable(text)
    if width is None:
        return [f"{indent}{text}"]
    import textwrap  # noqa: PLC0415 - as above

    room = max(width - len(indent), 1)
    return [f"{indent}{line}" for line in textwrap.wrap(text, room, break_on_hyphens=False)]


class Table:
    """Rows under columns, as wide as the first rows need.

    A row that does not fit the terminal becomes a block of lines, one or more for each column; with
    `is_folded` its last column, which then has no width of its own, stands below the others instead.
    """

    def __init__(self, *columns: str, numbers: Sequence[str] = (), is_folded: bool = False) -> None:
        self._columns, self._numbers = columns, numbers
        self._is_folded, self._width = is_folded, line_width()
        self._form = ""

    def lines(self, rows: Iterable[Sequence[object]]) -> Iterator[str]:
        """Yield these rows; in front of the first ones the heading, unless each is a block."""
        cells = [list(map(printable, row)) for row in rows]
        if not self._form:
            wide = [max(map(len, column)) for column in zip(self._columns, *cells, strict=True)]
            if self._is_folded:
                wide[-1] = 0
            self._form = _GAP.join(
                f"{{:{'>' if column in self._numbers else '<'}{width}}}"
                for column, width in zip(self._columns, wide, strict=True)
            )
            if (
                self._is_folded
                or self._width is None
                or len(self._form.format(*self._columns)) <= self._width
            ):
                cells.insert(0, list(self._columns))
        for row in cells:
            line = self._form.format(*row).rstrip()
            if self._width is None or len(line) <= self._width:
                yield line
            elif self._is_folded:
                yield self._form.format(*row[:-1], "").rstrip()
                yield from wrapped(row[-1], self._width, _INDENT)
            else:
                yield from self._block(row, self._width)

    def _block(self, row: Sequence[str], width: int) -> Iterator[str]:
        label_width = max(map(len, self._columns))
        room = max(width - label_width - len(_GAP), 1)
        for column, cell in zip(self._columns, row, strict=True):
            for label, part in zip_longest([column], wrapped(cell, room), fillvalue=""):
                yield f"{label:<{label_width}}{_GAP}{part}"
        yield ""
