"""What every target asserts: work is bounded (counted, not timed), and errors can be shown."""

import contextlib
import sys
from collections.abc import Iterator
from types import FrameType


class TooMuchWork(BaseException):
    """The work exceeds its bound.  Not an Exception, so that no layer takes it for its own error."""


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
    """Assert that an error can go into a log, a reply or a terminal as it is."""
    text = str(error)
    assert text
    assert text.isascii()
    assert text.isprintable()
