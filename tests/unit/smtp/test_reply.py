"""Replies: what is one, what is none, and what may be shown of it."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay.smtp.reply import MAX_LINE_BYTES, MAX_REPLY_BYTES, MalformedReply, Reply, ReplyParser

CODES = st.integers(200, 599)
PRINTABLE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=60)
ANY_TEXT = st.binary(max_size=60).map(lambda raw: raw.translate(None, b"\r\n\0"))

NEARLY = st.lists(st.sampled_from([b"250", b" ", b"-", b"ok", b"\r\n", b"\r", b"\n", b"5", b"\0"])).map(
    b"".join
)


def encoded(code: int, texts: list[bytes]) -> bytes:
    last = len(texts) - 1
    return b"".join(b"%d%c%s\r\n" % (code, b" -"[index != last], text) for index, text in enumerate(texts))


def only_reply(octets: bytes) -> Reply:
    parser = ReplyParser()
    parser.feed(octets)
    reply = parser.next_reply()
    assert reply is not None
    assert parser.is_empty
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
        (b"571 5.7.1 no\r\n", Reply(571, "5.7.1", "5.7.1 no", ("5.7.1 no",))),
        (b"250 caf\xc3\xa9 \x1b[31m\x7f\r\n", Reply(250, None, "caf? ?[31m?", ("caf? ?[31m?",))),
    ],
)
def test_reply_is_taken_apart(octets: bytes, expected: Reply) -> None:
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
def test_enhanced_code_counts_only_where_it_fits(octets: bytes, enhanced: str | None) -> None:
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
def test_what_is_not_exactly_a_reply_is_malformed(octets: bytes) -> None:
    parser = ReplyParser()
    parser.feed(octets)

    with pytest.raises(MalformedReply) as caught:
        parser.next_reply()

    assert str(caught.value).isprintable()
    assert str(caught.value).isascii()


def test_of_a_line_without_end_a_part_is_kept() -> None:
    parser = ReplyParser()
    parser.feed(b"250-5 o'clock ")
    for _ in range(200):
        parser.feed(b"x" * 1000)
        assert parser.next_reply() is None
    parser.feed(b"\r\n250 ok\r\n")
    reply = parser.next_reply()

    assert reply is not None
    assert reply.code == 250
    assert reply.text.startswith("5 o'clock")
    assert sum(map(len, reply.lines)) <= MAX_LINE_BYTES
    assert parser.is_empty


@pytest.mark.parametrize(
    ("octets", "lines"),
    [
        (b"550 5.1.1 no\n", ("5.1.1 no",)),
        (b"550-5.1.1 no\n550 no\r\n", ("5.1.1 no", "no")),
        (b"550\n", ("",)),
        (b"550 5.1.1 n\ro\0\r\r\n", ("5.1.1 n o?",)),
    ],
)
def test_a_line_may_end_in_lf_and_its_text_may_be_anything(octets: bytes, lines: tuple[str, ...]) -> None:
    reply = only_reply(octets)

    assert (reply.code, reply.lines) == (550, lines)


def test_any_number_of_replies_may_follow_each_other() -> None:
    parser = ReplyParser()
    line = b"250 " + b"x" * 1000 + b"\r\n"
    for _ in range(3 * MAX_REPLY_BYTES // len(line)):
        parser.feed(line)
        assert parser.next_reply() is not None

    assert parser.is_empty


@pytest.mark.parametrize("octets", [b"2", b"250", b"250 ok", b"250 ok\r", b"250-ok\r\n", b"250-a\r\n250 b"])
def test_half_a_reply_is_no_reply_and_not_nothing(octets: bytes) -> None:
    parser = ReplyParser()
    parser.feed(octets)

    assert parser.next_reply() is None
    assert not parser.is_empty


@given(CODES, st.lists(ANY_TEXT, min_size=1, max_size=4), st.data())
def test_where_the_network_cuts_a_reply_makes_no_difference(
    code: int, texts: list[bytes], data: st.DataObject
) -> None:
    texts[0] += data.draw(st.sampled_from([b"", b"x" * (MAX_LINE_BYTES - 5), b"x" * 2 * MAX_LINE_BYTES]))
    octets = encoded(code, texts)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(octets)), max_size=8)))
    parser, found = ReplyParser(), []
    for start, end in itertools.pairwise([0, *cuts, len(octets)]):
        parser.feed(octets[start:end])
        found += [reply] if (reply := parser.next_reply()) else []

    assert found == [only_reply(octets)]
    assert parser.is_empty
    assert found[0].code == code
    assert found[0].is_positive + found[0].is_transient + found[0].is_permanent == (code // 100 != 3)


@given(st.binary(max_size=200) | NEARLY)
@example(b"250-a\r\n250 b\r\n250 c\r\n")
def test_any_octets_are_replies_or_malformed_and_nothing_else(octets: bytes) -> None:
    parser, said = ReplyParser(), []
    try:
        parser.feed(octets)
        while reply := parser.next_reply():
            assert 200 <= reply.code <= 599
            said.append(str(reply))
    except MalformedReply as error:
        said.append(str(error))

    assert all(text.isascii() and text.isprintable() for text in said)
