"""The addresses of a header field, of any text."""

import pytest

from relay.mail.mailboxes import Mailbox, mailboxes


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a@b", [Mailbox("", "a@b", "")]),
        ('"B, A" (x (y)) <@c,@d:a@b>, ,G: e@f;', [Mailbox('"B, A"', "a@b", ""), Mailbox("", "e@f", "")]),
        ("A <a@b> c", [Mailbox("A", "a@b", "c")]),
        ('"A <a@b>', [Mailbox("", "a@b", "")]),
        ("", []),
    ],
)
def test_mailboxes_are_found_as_they_are_written(text: str, found: list[Mailbox]) -> None:
    assert mailboxes(text) == (found, True)


@pytest.mark.parametrize("text", ["a@b (c", "A <a@b"])
def test_a_bracket_that_is_not_closed_is_told(text: str) -> None:
    assert not mailboxes(text)[1]


@pytest.mark.parametrize("piece", ["[", "(", "<", '"', "\\", "[a", "[\\", '"[', "a,", ":"])
def test_a_long_text_is_read_in_linear_time(piece: str) -> None:
    """A quadratic reader takes minutes: the test would hang."""
    found, _ = mailboxes(piece * 1_000_000)
    assert len(found) <= 1_000_000
