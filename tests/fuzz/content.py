"""Content in and out, cut anywhere: the relay reads it as the RFCs say, and can send it unchanged."""

import re
from dataclasses import dataclass

from relay.listener.content import ContentDecoder
from relay.mail.header import message_id_of
from relay.smtp import replies
from relay.smtp.dot_stuffing import DotStuffing, UnsendableContent
from tests.fuzz.choices import Choices
from tests.fuzz.work import bounded

MAX_BYTES, MAX_HOPS = 300, 2
END = b"\r\n.\r\n"
TOKENS = [
    b"\r\n", b".", b"..", b"\r", b"\n", END, b"\r\n..\r\n", b"\n.\n", b"\n.\r\n", b"\r\n.\n", b"\r.\r",
    b"\n.", b"\r\n.\r", b"\r\n.", b"\0", b"\r\n\0.\r\n", b"x", b"Received: x\r\n", b"rEceived:", b"\r\n\r\n",
    b"\xff" * 70, b"MAIL FROM:<a@b>\r\n", b">", b"From ", b" ", b"message-ID: <1@x>\r\n",
]  # fmt: skip


@dataclass
class Read:
    """What the decoder knows of a message at its end."""

    refusal: str | None
    content: bytes
    rest: bytes
    hops: int
    has_ascii_header: bool
    message_id: str | None


def target(raw: bytes) -> None:
    choices = Choices(raw)
    normalise = choices.yes()
    if choices.yes():
        wire = choices.spoiled(b"".join(choices.pick(TOKENS) for _ in range(choices.number(40))), TOKENS)
        pieces = choices.pieces(wire)
    else:
        pieces = choices.rest_in_pieces()
        wire = b"".join(pieces)

    expected, read = _expected(wire, normalise=normalise), _decoded(pieces, normalise=normalise)
    if expected is None or read is None or expected.refusal:
        assert (read and (read.refusal, read.rest)) == (expected and (expected.refusal, expected.rest))
        _refused_or_ended(wire)
        return
    assert read == expected
    # Accepted content can be sent; the next server reads the same, and finds its end only at the end.
    sent = re.sub(rb"(?m)^\.", b"..", read.content) + b".\r\n"
    for cut in (b".*", b".", b"[^\r]*\r?"):
        assert _stuffed(re.findall(b"(?s)" + cut, read.content)) == sent
    again = _decoded(choices.pieces(sent), normalise=False)
    assert again is not None
    assert (again.content, again.refusal, again.rest) == (read.content, None, b"")


def _expected(wire: bytes, *, normalise: bool) -> Read | None:
    """Return what the RFCs say of the message; None if it has no end."""
    before, end, rest = (b"\r\n" + wire).partition(END)
    if not end:
        return None
    stuffed = before + b"\r\n"
    content = re.sub(rb"\r\n\.", b"\r\n", stuffed)
    if normalise:
        content = re.sub(rb"(?<!\r)\n\.\.", b"\n.", content)
        content = re.sub(rb"\r\n|\r|\n", b"\r\n", content)
    content = content[2:]
    if re.match(rb">?From ", content):
        content = b"X-Mailbox-Line: " + content
    elif re.match(rb"[ \t]", content):
        content = b"\r\n" + content
    header = (b"\r\n" + content).partition(b"\r\n\r\n")[0]
    hops = len(re.findall(rb"(?i)\r\nreceived:", header))
    refusal = replies.LOOPING if hops > MAX_HOPS else None
    if re.search(rb"\r(?!\n)|(?<!\r)\n", stuffed) and not normalise:
        refusal = replies.BARE_NEWLINE
    if len(content) > MAX_BYTES:
        refusal = replies.TOO_BIG
    return Read(refusal, content, rest, hops, header.isascii(), message_id_of(content))


def _decoded(pieces: list[bytes], *, normalise: bool) -> Read | None:
    decoder = ContentDecoder(MAX_BYTES, MAX_HOPS, normalise=normalise)
    content, left = b"", list(pieces)
    with bounded(200 + 100 * len(pieces)):
        while left and not decoder.is_ended:
            content += decoder.feed(left.pop(0))
    if not decoder.is_ended:
        return None
    assert decoder.refusal or decoder.size_bytes == len(content)
    known = decoder.hops, decoder.has_ascii_header, decoder.message_id
    return Read(decoder.refusal, content, decoder.rest + b"".join(left), *known)


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
        assert sent.find(END) in (-1, len(sent) - 5)


SEEDS = [
    b"\0\0\x02" + b"Subject: x\r\n\r\n..dot\r\n.\r\nQUIT\r\n",
    b"\1\0\0" + b"a\nb\rc\r\n.\n.\r\n.\r\n",
    b"\1\0\1" + b"a\n..b\n...c\n.\r\n.\r\n",
    b"\0\0\0" + b"x\r\n\0.\r\n\r\n.\r\n",
    b"\0\0\0" + b"\r\n.\r\n",
    b"\0\0\x04" + b"Received:\r\n" * 3 + b".\r\n",
    b"\0\0\0" + b"Received:\r\n" * 2 + b"\r\nReceived:\r\n.\r\n",
    b"\0\0\0" + b"XReceived: y\r\nMessage-ID:\r\n <1@x>\r\n\t(a)\r\n\r\n\xff\r\n.\r\n",
    b"\0\0\0" + b" x\r\nTo: \xff\r\n\r\n.\r\n",
    b"\0\0\0" + b">From x\r\n" + b"y" * MAX_BYTES + b"\r\n.\r\n",
    b"\0\0\x7f" + b"y" * (MAX_BYTES - 2) + b"\r\n.\r\n",
    b"\0\1\7\0\1\2\3\4\5\6",
]
