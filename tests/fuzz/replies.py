"""Any bytes of an upstream, in any pieces, give the same replies or MalformedReply, in bounded memory."""

from relay.smtp.extensions import Extensions, extensions_of
from relay.smtp.reply import MAX_LINE_BYTES, MAX_REPLY_BYTES, MalformedReply, Reply, ReplyParser
from tests.fuzz.choices import Choices
from tests.fuzz.work import bounded, must_be_shown

TOKENS = [
    b"250 ok\r\n", b"250-a\r\n", b"250 b\r\n", b"354 go\r\n", b"421 bye\r\n", b"550 5.1.1 no\r\n", b"250",
    b" ", b"-", b"\r", b"\n", b"\r\n", b"\0", b"\xff", b"x" * 2040, b"250-SIZE 99999999999999999999\r\n",
    b"250-AUTH PLAIN LOGIN\r\n", b"250-SIZE\r\n", b"250-AUTH=\r\n",
    b"250-auth \r\n", b"999 x\r\n",
]  # fmt: skip
TEXT = b"250-" + b"y" * 1000 + b"\r\n"


def target(raw: bytes) -> None:
    choices = Choices(raw)
    if choices.yes():
        octets = b"".join(choices.pick(TOKENS) for _ in range(choices.number(12)))
        octets = TEXT * (choices.number(40) if choices.number(8) == 7 else 0) + octets
        octets = octets * (choices.number(600) if choices.number(8) == 7 else 1)
        pieces = choices.pieces(choices.spoiled(octets, TOKENS))
    else:
        pieces = choices.rest_in_pieces()

    whole, in_pieces = _read([b"".join(pieces)]), _read(pieces)
    assert in_pieces == whole
    for reply in whole[0]:
        assert 200 <= reply.code <= 599
        assert all(line.isascii() and line.isprintable() for line in (str(reply), *reply.lines))
        extensions = extensions_of(reply)
        assert type(extensions) is Extensions
        assert extensions.max_size_bytes is None or extensions.max_size_bytes > 0


def _read(pieces: list[bytes]) -> tuple[list[Reply], bool]:
    parser, found = ReplyParser(), list[Reply]()
    octets = b"".join(pieces)
    try:
        # The cleaning of text beyond ASCII costs a few calls an octet.
        with bounded(200 + 60 * octets.count(b"\n") + 40 * len(pieces) + 6 * len(octets)):
            for piece in pieces:
                parser.feed(piece)
                while (reply := parser.next_reply()) is not None:
                    found.append(reply)
                assert parser.held_bytes <= MAX_REPLY_BYTES + MAX_LINE_BYTES
    except MalformedReply as error:
        must_be_shown(error)
        return found, True
    return found, False


SEEDS = [
    b"\0\0" + b"250-a\r\n250 b\r\n354 go\r\n",
    b"\0\x06" + b"220 hi\r\n" * 20,
    # The sum of many replies is longer than one reply may be.
    b"\0\x7f" + b"250 ok, and some more of it\r\n" * 2000,
    b"\1\3\0\1\2\0\0\7\0\1",
]
