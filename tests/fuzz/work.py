"""Bounded work, counted and not timed, and errors that can be shown: what every target asks."""

import contextlib
import sys
from collections.abc import Iterator
from types import FrameType


class TooMuchWork(BaseException):
    """More than the input is worth.  Not an Exception, so that no layer can take it for its own."""


@contextlib.contextmanager
def bounded(calls: int) -> Iterator[None]:
    """Raise TooMuchWork when the block makes more calls than this, of Python's or C's functions."""
    left = calls

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal left
        left -= event in ("call", "c_call")
        if left < 0:
            sys.setprofile(None)
            raise TooMuchWork(f"more than {calls} calls")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)


def must_be_shown(error: Exception) -> None:
    """Refuse an error that could not go into a log, a reply or a terminal as it is."""
    text = str(error)
    assert text
    assert text.isascii()
    assert text.isprintable()
