"""What the reply to EHLO promises, and what in it promises nothing."""

import pytest

from relay.smtp.extensions import Extensions, extensions_of
from relay.smtp.reply import ReplyParser


def offered(*lines: str) -> Extensions:
    parser = ReplyParser()
    lines = ("host.example greets you", *lines)
    parser.feed("".join(f"250-{line}\r\n" for line in lines[:-1]).encode())
    parser.feed(f"250 {lines[-1]}\r\n".encode())
    reply = parser.next_reply()
    assert reply is not None
    return extensions_of(reply)


def test_a_host_that_offers_nothing_offers_nothing() -> None:
    assert offered() == Extensions()


def test_the_name_of_the_host_is_no_extension() -> None:
    parser = ReplyParser()
    parser.feed(b"250 STARTTLS\r\n")
    reply = parser.next_reply()
    assert reply is not None

    assert extensions_of(reply) == Extensions()


def test_extensions_are_read_whatever_their_case() -> None:
    assert offered(
        "starttls", "8bitMIME", "SMTPUTF8", "SIZE 35882577", "auth PLAIN login", "LIMITS RCPTMAX=20 MAILMAX=5"
    ) == Extensions(
        starttls=True,
        mechanisms=frozenset({"plain", "login"}),
        has_size=True,
        max_size_bytes=35882577,
        eight_bit=True,
        smtputf8=True,
        max_recipients=20,
        max_transactions=5,
    )


@pytest.mark.parametrize("line", ["SIZE", "SIZE 0", "SIZE unlimited", "SIZE -1", "SIZE 1e9"])
def test_size_without_a_number_is_no_maximum(line: str) -> None:
    assert offered(line) == Extensions(has_size=True)


def test_old_style_auth_counts() -> None:
    assert offered("AUTH=LOGIN", "AUTH PLAIN").mechanisms == {"login", "plain"}


@pytest.mark.parametrize(
    "word", ["RCPTMAX=0", "RCPTMAX=", "RCPTMAX=x", "RCPTMAX", "RCPTMAX=1234567", "RCPTMAX=-1"]
)
def test_a_limit_that_is_none_by_rfc_9422_is_ignored(word: str) -> None:
    assert offered(f"LIMITS {word} MAILMAX=7") == Extensions(max_transactions=7)
