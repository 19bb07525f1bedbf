"""A text from stdin becomes a message."""

import tracemalloc
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.submission.composing import Author, NotAnAddress, Submission, submitted

AUTHOR = Author("host.test", "me", None, None, datetime(2026, 11, 23, tzinfo=UTC), "<1@host.test>")
WHOLE = b"From: a@b.test\r\nDate: x\r\nMessage-ID: <y>\r\n"


def compose(text: bytes, *argv: str, author: Author = AUTHOR, takes_header: bool = False) -> Submission:
    return submitted(text, author, argv, takes_header=takes_header)


def test_missing_fields_are_added_on_top() -> None:
    assert compose(b"Subject: x\n\nhello\n", "a@b.test").content == (
        b"From: me@host.test\r\nDate: Mon, 23 Nov 2026 00:00:00 +0000\r\nMessage-ID: <1@host.test>\r\n"
        b"Subject: x\r\n\r\nhello\r\n"
    )


def test_a_whole_message_is_not_changed() -> None:
    text = WHOLE + b"X-Odd :  a\r\n\tb\r\n\r\n.\r\n\xff\xfe\r\n"

    assert compose(text, "a@b.test").content == text


def test_a_text_without_a_header_gets_one() -> None:
    assert compose(b"hello: \nyou", "a@b.test").content.endswith(b">\r\nhello: \r\n\r\nyou\r\n")


@pytest.mark.parametrize("line", [b"From me Mon Nov 23\n", b">From me Mon Nov 23\n"])
def test_the_line_of_an_mbox_becomes_a_field(line: bytes) -> None:
    field = b"X-Mailbox-Line: " + line.replace(b"\n", b"\r\n")

    assert compose(line + WHOLE + b"\nhi\n", "a@b.test").content == field + WHOLE + b"\r\nhi\r\n"


def test_bcc_goes_and_counts_only_where_the_header_is_asked() -> None:
    text = WHOLE + b"To: a@b.test\nBcc: c@d.test,\n e@f.test\n\n"
    without, with_header = compose(text, "x@y.test"), compose(text, "x@y.test", takes_header=True)

    assert without.recipients == ("x@y.test",)
    assert with_header.recipients == ("x@y.test", "a@b.test", "c@d.test", "e@f.test")
    assert without.content == with_header.content == WHOLE + b"To: a@b.test\r\n\r\n"


@pytest.mark.parametrize(
    ("sender", "path"), [(None, "me@host.test"), ("", ""), ("<>", ""), ("x", "x@host.test")]
)
def test_the_sender_is_the_user_unless_named(sender: str | None, path: str) -> None:
    found = compose(b"\n", "a@b.test", author=replace(AUTHOR, sender=sender))
    assert found.reverse_path == path
    assert found.content.startswith(f"From: {path or 'me@host.test'}\r\n".encode())


@pytest.mark.parametrize("line", [b"\n", b"\r", b"\r\n", b"x\n"])
def test_many_short_lines_take_a_few_times_their_size(line: bytes) -> None:
    text = WHOLE + b"\r\n" + line * 100_000
    tracemalloc.start()
    compose(text, "a@b.test")
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 8 * len(text)


def test_one_recipient_that_is_no_address_refuses_the_message() -> None:
    with pytest.raises(NotAnAddress):
        compose(b"To: a@b.test, c d@e.test\n\n", takes_header=True)


def test_the_callers_own_name_is_read_only_where_it_is_used() -> None:
    author = replace(AUTHOR, user="OFFICE\\me", sender="a@b.test")

    assert compose(b"To: c@d.test\n\n", author=author, takes_header=True).reverse_path == "a@b.test"
    for sender in (None, "<>"):
        # No fault of the message: exit code 78, and a drain stops.
        with pytest.raises(ValueError, match="name a sender") as caught:
            compose(b"\n", "c@d.test", author=replace(author, sender=sender))
        assert not isinstance(caught.value, NotAnAddress)


def test_a_second_sender_is_refused() -> None:
    with pytest.raises(NotAnAddress):
        compose(b"\n", "a@b.test", author=replace(AUTHOR, sender="a@b.test, c@d.test"))


@given(st.binary(max_size=60))
def test_the_text_behind_an_empty_line_only_gets_its_crlf(text: bytes) -> None:
    lines = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    expected = b"\r\n".join(lines)

    content = compose(WHOLE + b"\r\n" + text, "a@b.test").content

    assert content in (WHOLE + b"\r\n" + expected, WHOLE + b"\r\n" + expected + b"\r\n")
