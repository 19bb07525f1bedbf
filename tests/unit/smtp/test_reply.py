"""Which octets are a reply, and what of it is shown.  `tests.fuzz.replies` cuts replies anywhere."""

import pytest

from relay.smtp.reply import MAX_LINE_BYTES, MalformedReply, Reply, ReplyParser


def only_reply(octets: bytes) -> Reply:
    parser = ReplyParser()
    parser.feed(octets)
    reply = parser.next_reply()
    assert reply is not None
    assert not parser.held_bytes
    return reply


@pytest.mark.parametrize(
    ("octets", "expected"),
    [
        (b"250 ok\r\n", Reply(250, None, "ok", ("ok",))),
        (b"250\r\n", Reply(250, None, "", ("",))),
        (b"250 \r\n", Reply(250, None, "", ("",))),
        (b"250-\r\n250\r\n", Reply(250, None, "", ("", ""))),
        (b"250-a\r\n250-b\r\n250 c\r\n", Reply(250, None, "a b c", ("a", "b", "c"))),
        (b"550 5.1.1 who?\r\n", Reply(550, "5.1.1", "5.1.1 who?", ("5.1.1 who?",))),
        (b"550 5.1.1\r\n", Reply(550, "5.1.1", "5.1.1", ("5.1.1",))),
        (b"250 caf\xc3\xa9 \x1b[31m\x7f\r\n", Reply(250, None, "caf? ?[31m?", ("caf? ?[31m?",))),
        # A line may end in LF.
        (b"550\n", Reply(550, None, "", ("",))),
        (b"550-5.1.1 no\n550 no\r\n", Reply(550, "5.1.1", "5.1.1 no no", ("5.1.1 no", "no"))),
        (b"550 5.1.1 n\ro\0\r\r\n", Reply(550, "5.1.1", "5.1.1 n o?", ("5.1.1 n o?",))),
    ],
)
def test_a_reply_is_parsed_into_code_enhanced_code_and_lines(octets: bytes, expected: Reply) -> None:
    assert only_reply(octets) == expected


@pytest.mark.parametrize(
    ("octets", "enhanced"),
    [
        *((b"550 4.2.1 contradicts its code\r\n", None), (b"250 5.1.1 contradicts its code\r\n", None)),
        *((b"354 2.0.0 has no class of its own\r\n", None), (b"550 5.1.1000 too long\r\n", None)),
        *((b"550 5.1 too short\r\n", None), (b"550 5.1.1x\r\n", None)),
        (b"452 4.5.3 too many\r\n", "4.5.3"),
        (b"550-5.7.26 first line\r\n550 5.1.1 second\r\n", "5.7.26"),
    ],
)
def test_an_enhanced_code_counts_only_if_it_fits_the_reply(octets: bytes, enhanced: str | None) -> None:
    assert only_reply(octets).enhanced == enhanced


@pytest.mark.parametrize(
    "octets",
    [
        b"250ok\r\n", b"2500 ok\r\n", b" 250 ok\r\n", b"+250 ok\r\n", b"25 ok\r\n", b"25\r\n", b"\r\n",
        b"250\tok\r\n", b"\xb250 ok\r\n", "\uff12\uff15\uff10 ok\r\n".encode(), b"000 zero\r\n",
        b"150 preliminary\r\n", b"199 preliminary\r\n", b"600 beyond\r\n", b"250-a\r\n251 b\r\n",
        b"250-a\r\n550 b\r\n", b"250-a\r\nb\r\n", b"HTTP/1.1 400 Bad Request\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n", b"\x15\x03\x01\x00\x02\x02\n", b"250" + b"x" * MAX_LINE_BYTES,
        b"250-" + b"x" * MAX_LINE_BYTES + b"\r\n550 no\r\n", b"\x15\x03\x03\x00\x02\x02\x28", b"6",
        b"2x", b"250x", b"250-a\r\n25x",
    ],
)  # fmt: skip
def test_anything_but_an_exact_reply_is_malformed(octets: bytes) -> None:
    parser = ReplyParser()
    parser.feed(octets)

    with pytest.raises(MalformedReply) as caught:
        parser.next_reply()

    assert str(caught.value).isprintable()
    assert str(caught.value).isascii()


def test_only_the_first_part_of_a_long_line_is_kept() -> None:
    reply = only_reply(b"250-5 o'clock " + b"x" * 200_000 + b"\r\n250 ok\r\n")

    assert reply.text.startswith("5 o'clock")
    assert sum(map(len, reply.lines)) <= MAX_LINE_BYTES
