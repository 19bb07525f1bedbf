"""Dot-stuffing: wherever content is cut, the same octets, and no end but the one at the end."""

import itertools
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay.smtp.dot_stuffing import DotStuffing, DotUnstuffing, UnsendableContent

LINES = st.lists(st.sampled_from([b"", b".", b"..", b".x", b"x.", b"text", b". .", b"\xff\0."]), max_size=8)
CONTENT = LINES.map(lambda lines: b"".join(line + b"\r\n" for line in lines))
PIECES = st.lists(st.sampled_from([b".", b"\r", b"\n", b"\r\n", b"x", b"\0", b"\r\n.\r\n"]), max_size=12)
END_FOR_THE_LENIENT = re.compile(rb"(?:\r\n|\r|\n)\.(?:\r\n|\r|\n)")


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


@given(st.lists(PIECES.map(b"".join), max_size=4))
@example([b"x\n.\nMAIL FROM:<a@b.example>\r\n"])
@example([b"x\r\n.", b"\r\nMAIL FROM:<a@b.example>\r\n"])
@example([b"x\r", b".\r\n"])
@example([b"\r\n.\r", b"\n"])
@example([b"x\r", b"\n.\r\n"])
@example([b"half an end\r"])
@example([b"a\r", b"\r\n"])
@example([b"a\r\n", b"\n"])
def test_no_content_ends_before_its_end(chunks: list[bytes]) -> None:
    content = b"".join(chunks)
    has_only_crlf = re.search(rb"\r(?!\n)|(?<!\r)\n", content) is None
    is_whole = content == b"" or content.endswith(b"\r\n")
    try:
        sent = b"\r\n" + stuffed(*chunks)
    except UnsendableContent:
        assert not (has_only_crlf and is_whole)
        return

    assert has_only_crlf
    assert is_whole
    ends = [match.end() for match in END_FOR_THE_LENIENT.finditer(sent)]
    assert ends == [len(sent)]


@given(st.lists(st.sampled_from([b".", b"..", b"x", b"", b".x"]), max_size=8), st.lists(st.integers(0, 60)))
def test_what_is_stuffed_is_read_as_it_was_at_every_cut(lines: list[bytes], cuts: list[int]) -> None:
    content = b"".join(line + b"\r\n" for line in lines)
    stuffing = DotStuffing()
    sent = stuffing.add(content) + stuffing.finish() + b"QUIT\r\n"
    edges = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    unstuffing, read, rest = DotUnstuffing(), b"", b""
    for start, stop in itertools.pairwise(edges):
        if unstuffing.is_ended:
            rest += sent[start:stop]
        else:
            read += unstuffing.feed(sent[start:stop])

    assert unstuffing.is_ended
    assert read == content
    assert unstuffing.rest + rest == b"QUIT\r\n"


@pytest.mark.parametrize(
    "octets",
    [b"\n.\n", b"\r.\r", b"\n.\r\n", b"\r\n.\n", b"\r\n.\rx", b"\r\n..\r\n", b"x.\r\n", b"\r\n\0.\r\n"],
)
def test_nothing_ends_content_but_a_lone_dot_between_true_line_ends(octets: bytes) -> None:
    unstuffing = DotUnstuffing()
    read = unstuffing.feed(b"x" + octets + b"QUIT\r\n")

    assert not unstuffing.is_ended
    assert read.endswith(b"QUIT")
