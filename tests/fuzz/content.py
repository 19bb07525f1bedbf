"""Content both ways: what we take in we can send, and what we send is read as it was, however it is cut."""

from relay.listener.content import ContentDecoder
from relay.smtp.dot_stuffing import DotStuffing, UnsendableContent
from tests.fuzz.choices import Choices
from tests.fuzz.work import bounded

MAX_BYTES, MAX_HOPS = 4000, 3
TOKENS = [
    b"\r\n", b".", b"\r", b"\n", b"\r\n.\r\n", b"\r\n..\r\n", b"\n.\n", b"\n.\r\n", b"\r\n.\n", b"\r.\r",
    b"\r\n.\r", b"\0", b"\r\n\0.\r\n", b"x", b"Received: x\r\n", b"\r\n\r\n", b"\xff" * 100,
    b"MAIL FROM:<a@b>\r\n",
]  # fmt: skip


def target(raw: bytes) -> None:
    choices = Choices(raw)
    normalise = choices.yes()
    if choices.yes():
        wire = choices.spoiled(b"".join(choices.pick(TOKENS) for _ in range(choices.number(40))), TOKENS)
        pieces = choices.pieces(wire)
    else:
        pieces = choices.rest_in_pieces()
        wire = b"".join(pieces)

    content, fault, rest = _decoded([wire], normalise=normalise)
    assert _decoded(pieces, normalise=normalise) == (content, fault, rest)
    if content is None or fault is not None:
        _refused_or_ended(wire)
        return
    # What was accepted can be sent, and the next one reads the same, with no end but the one at the end.
    sent = _stuffed([content])
    assert sent is not None
    assert _stuffed(choices.pieces(content)) == sent
    assert _decoded(choices.pieces(sent), normalise=False) == (content, None, b"")


def _decoded(pieces: list[bytes], *, normalise: bool) -> tuple[bytes | None, str | None, bytes]:
    """Return content (None without an end), what is wrong with it, and what came behind it."""
    decoder = ContentDecoder(MAX_BYTES, MAX_HOPS, normalise=normalise)
    content, left = b"", list(pieces)
    with bounded(200 + 100 * len(pieces)):
        while left and not decoder.is_ended:
            content += decoder.feed(left.pop(0))
    if not decoder.is_ended:
        return None, None, b""
    return (None if decoder.refusal else content), decoder.refusal, decoder.rest + b"".join(left)


def _stuffed(pieces: list[bytes]) -> bytes | None:
    stuffing = DotStuffing()
    with bounded(100 + 40 * len(pieces)):
        try:
            return b"".join([*map(stuffing.add, pieces), stuffing.finish()])
        except UnsendableContent:
            return None


def _refused_or_ended(octets: bytes) -> None:
    sent = _stuffed([octets])
    lines = octets.split(b"\r\n")
    are_lines = lines.pop() == b"" and not any(b"\r" in line or b"\n" in line for line in lines)
    assert (sent is not None) == are_lines
    if sent is not None:
        assert sent.find(b"\r\n.\r\n") in (-1, len(sent) - 5)


SEEDS = [
    b"\0\0\x02" + b"Subject: x\r\n\r\n..dot\r\n.\r\nQUIT\r\n",
    b"\1\0\0" + b"a\nb\rc\r\n.\n.\r\n.\r\n",
    b"\0\0\0" + b"x\r\n\0.\r\n\r\n.\r\n",
    b"\0\1\7\0\1\2\3\4\5\6",
]
