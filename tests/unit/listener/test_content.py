"""The decoder of content against a naive one that sees everything at once."""

import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay.listener.content import ContentDecoder
from relay.smtp import replies

END = b"\r\n.\r\n"
MAX_BYTES = 40
MAX_HOPS = 2


def _reference(wire: bytes, *, normalise: bool) -> tuple[bool, str | None, bytes, bytes]:
    """Return whether it ended, why it is refused, the content and the rest, by the words of the RFCs."""
    stream = b"\r\n" + wire
    before, end, rest = stream.partition(END)
    if not end:
        return False, None, b"", b""
    raw = before + b"\r\n"
    content = re.sub(rb"\r\n\.", b"\r\n", raw)
    if normalise:
        content = re.sub(rb"(?<!\r)\n\.\.", b"\n.", content)
        content = re.sub(rb"\r\n|\r|\n", b"\r\n", content)
    content = content[2:]
    if re.match(rb">?From ", content):
        content = b"X-Mailbox-Line: " + content
    elif re.match(rb"[ \t]", content):
        content = b"\r\n" + content
    header = (b"\r\n" + content).partition(b"\r\n\r\n")[0]
    hops = len([line for line in header.split(b"\r\n") if line.lower().startswith(b"received:")])
    if len(content) > MAX_BYTES:
        return True, replies.TOO_BIG, b"", rest
    if re.search(rb"\r(?!\n)|(?<!\r)\n", raw) and not normalise:
        return True, replies.BARE_NEWLINE, b"", rest
    return True, replies.LOOPING if hops > MAX_HOPS else None, content, rest


def _decode(
    pieces: list[bytes], *, normalise: bool, max_bytes: int = MAX_BYTES
) -> tuple[ContentDecoder, bytes, bytes]:
    """Feed the pieces; return the decoder, the content, and what is left when it has ended."""
    decoder = ContentDecoder(max_bytes, MAX_HOPS, normalise=normalise)
    content = late = b""
    for piece in pieces:
        if decoder.is_ended:
            late += piece
        else:
            content += decoder.feed(piece)
    return decoder, content, decoder.rest + late


def _wires() -> st.SearchStrategy[list[bytes]]:
    """Pieces of what a client might send, cut anywhere."""
    tokens = [
        *(b"\r\n", b"\r", b"\n", b"\n.", b".", b"..", b"\r\n.", END, b"\0", b"x", b"\xff", b"Received:"),
        *(b"rEceived: y\r\n", b">", b"From ", b" "),
    ]
    pieces = st.one_of(
        st.sampled_from(tokens), st.binary(max_size=6), st.lists(st.sampled_from(tokens)).map(b"".join)
    )
    return st.lists(pieces, max_size=14)


@given(_wires(), st.booleans())
@example([b"\r", b"\n", b".", b"\r", b"\n"], False)
@example([b"Received:\r\n" * 3 + b"\r\n.\r\n"], False)
@example([b"Received:\r\n" * 2 + b"\r\nReceived:\r\n.\r\n"], False)
def test_decoder_agrees_with_the_reference_at_every_cut(pieces: list[bytes], normalise: bool) -> None:
    is_ended, fault, content, rest = _reference(b"".join(pieces), normalise=normalise)

    decoder, decoded, left = _decode(pieces, normalise=normalise)

    assert decoder.is_ended == is_ended
    if is_ended:
        assert decoder.refusal == fault
        assert left == rest
        if fault is None:
            assert decoded == content
            assert decoder.size_bytes == len(content)


HEADER_LINES = [
    b"Received: x",
    b"rECEIVED:",
    b"Received",
    b"XReceived: y",
    b"",
    b"\tfold",
    b"Subject: \xc3\xa9",
]


@given(st.lists(st.sampled_from(HEADER_LINES), max_size=8), st.lists(st.integers(0, 80), max_size=6))
def test_the_header_is_read_the_same_however_it_is_cut(lines: list[bytes], cuts: list[int]) -> None:
    content = b"".join(line + b"\r\n" for line in (b"To: x", *lines))
    header = lines[: lines.index(b"")] if b"" in lines else lines
    edges = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    decoder = ContentDecoder(10_000, 99, normalise=False)
    for start, stop in pairwise(edges):
        decoder.feed(content[start:stop])
    decoder.feed(b".\r\n")

    assert decoder.hops == sum(line.lower().startswith(b"received:") for line in header)
    assert decoder.has_ascii_header == b"".join(header).isascii()


@pytest.mark.parametrize(
    ("content", "message_id"),
    [
        (b"Message-ID: <1@x>\r\n\r\n", "<1@x>"),
        (b"To: x\r\nmessage-id:\r\n <1@x>\r\n\t(a)\r\nSubject: y\r\n\r\n", "<1@x> (a)"),
        (b"Message-Id: <\xff@x>\r\nMessage-Id: <2@x>\r\n\r\n", "<\ufffd@x>"),
        (b"Message-ID:  \r\n\r\n", None),
        (b"Message-ID: <%s@x>\r\n\r\n" % (b"y" * 2000), "<" + "y" * 997),
        (b"To: x\r\n\r\nMessage-ID: <1@x>\r\n", None),
        (b"X-Message-ID: <1@x>\r\n\r\n", None),
        (b"To: x\r\n" * 10_000 + b"Message-ID: <1@x>\r\n\r\n", None),
        (b"", None),
    ],
)
def test_the_message_id_is_read_from_the_header_however_it_is_cut(
    content: bytes, message_id: str | None
) -> None:
    for size in (1, 7, len(content) + 1):
        decoder = ContentDecoder(1_000_000, 5, normalise=False)
        for begin in range(0, len(content), size):
            decoder.feed(content[begin : begin + size])
        decoder.feed(b".\r\n")
        assert decoder.message_id == message_id
