"""Dot-stuffing: wherever content is cut, the same octets.

What ends content, what is refused, and that what is stuffed is read as it was: tests/fuzz/content.
"""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from relay.smtp.dot_stuffing import DotStuffing

LINES = st.lists(st.sampled_from([b"", b".", b"..", b".x", b"x.", b"text", b". .", b"\xff\0."]), max_size=8)
CONTENT = LINES.map(lambda lines: b"".join(line + b"\r\n" for line in lines))


def naive(content: bytes) -> bytes:
    lines = content.split(b"\r\n")[:-1]
    return b"".join((b"." if line.startswith(b".") else b"") + line + b"\r\n" for line in lines) + b".\r\n"


def stuffed(*chunks: bytes) -> bytes:
    stuffing = DotStuffing()
    return b"".join(map(stuffing.add, chunks)) + stuffing.finish()


@given(CONTENT, st.data())
def test_any_cuts_give_what_the_naive_way_gives(content: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=6)))
    chunks = [content[start:end] for start, end in itertools.pairwise([0, *cuts, len(content)])]

    assert stuffed(*chunks) == naive(content)
