"""What the reply to EHLO promises, and what in it promises nothing."""

import pytest

from relay.smtp.extensions import Extensions, extensions_of
from relay.smtp.reply import Reply


def offered(*lines: str) -> Extensions:
    return extensions_of(Reply(250, None, "", lines))


def test_extensions_are_read_whatever_their_case_and_the_name_of_the_host_is_none() -> None:
    lines = ("starttls", "8bitMIME", "SMTPUTF8", "SIZE 35882577", "auth PLAIN login", "PIPELINING", "DSN")
    assert offered("AUTH=LOGIN", *lines) == Extensions(
        starttls=True,
        mechanisms=frozenset({"plain", "login"}),
        has_size=True,
        max_size_bytes=35882577,
        eight_bit=True,
        smtputf8=True,
        pipelining=True,
        dsn=True,
    )
    assert offered("STARTTLS") == Extensions()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        *((line, Extensions(has_size=True)) for line in ("SIZE", "SIZE 0", "SIZE x", "SIZE -1", "SIZE 1e9")),
        ("AUTH=LOGIN", Extensions(mechanisms=frozenset({"login"}))),
    ],
)
def test_what_has_no_proper_value_promises_nothing(line: str, expected: Extensions) -> None:
    assert offered("host.example", line) == expected
