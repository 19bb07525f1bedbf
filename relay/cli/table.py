"""The one way in which verbs print rows: under columns, and where a terminal is too narrow, below them.

Not for programs, which have `--json`.  Every text is shown as `printable` has it.
"""

import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

import click

from relay.cli.options import printable

_GAP = "  "
_INDENT = " " * 4


class Styled(NamedTuple):
    text: str
    colour: str = ""


Cell = str | int | Styled


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

    return textwrap.wrap(
        text,
        max(width, len(indent) + 1),
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )


class Table:
    """Rows under columns, as wide as the first rows need.

    A row that does not fit the terminal becomes a block of lines, one or more for each column; with
    `is_folded` its last column, which then has no width of its own, stands below the others instead.
    """

    def __init__(self, *columns: str, numbers: Sequence[str] = (), is_folded: bool = False) -> None:
        self._columns, self._is_number = columns, [column in numbers for column in columns]
        self._is_folded, self._width = is_folded, line_width()
        self._wide: list[int] = []

    def lines(self, rows: Iterable[Sequence[Cell]]) -> Iterator[str]:
        """Yield these rows; in front of the first ones the heading, if a row may stand under it."""
        if not self._wide:
            rows = list(rows)
            columns = zip(self._columns, *rows, strict=True)
            self._wide = [max(_cells(printable(_text(cell))) for cell in column) for column in columns]
            if self._is_folded:
                self._wide[-1] = 0
            if self._fits(sum(self._wide) + len(_GAP) * (len(self._wide) - 1)):
                yield _GAP.join(self._padded(self._columns)).rstrip()
        for row in rows:
            padded = self._padded(row)
            line = _GAP.join(padded).rstrip()
            if self._width is None or self._fits(_cells(click.unstyle(line))):
                yield line
            elif self._is_folded:
                yield _GAP.join(padded[:-1]).rstrip()
                yield from wrapped(_text(row[-1]), self._width, _INDENT)
            else:
                yield from self._block(row)

    def _padded(self, row: Sequence[Cell]) -> list[str]:
        padded = []
        for cell, wide, is_number in zip(row, self._wide, self._is_number, strict=True):
            shown = printable(_text(cell))
            if not shown.isascii():
                wide += len(shown) - _cells(shown)  # noqa: PLW2901 - what it takes in characters
            text = shown.rjust(wide) if is_number else shown.ljust(wide)
            padded.append(text.replace(shown, _styled(shown, cell), 1) if isinstance(cell, Styled) else text)
        return padded

    def _block(self, row: Sequence[Cell]) -> Iterator[str]:
        label_width = max(map(len, self._columns))
        room = max((self._width or 0) - label_width - len(_GAP), 1)
        for column, cell in zip(self._columns, row, strict=True):
            for label, part in zip_longest([column], wrapped(_text(cell), room), fillvalue=""):
                yield f"{label:<{label_width}}{_GAP}{_styled(part, cell)}"
        yield ""

    def _fits(self, width: int) -> bool:
        return self._width is None or width <= self._width


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell.text if isinstance(cell, Styled) else str(cell)


def _styled(text: str, cell: Cell) -> str:
    return click.style(text, fg=cell.colour) if isinstance(cell, Styled) and cell.colour else text


def _cells(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(each) in "WF" for each in text)
    return len(text) + wide - sum(unicodedata.combining(each) > 0 for each in text)
