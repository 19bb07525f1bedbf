"""The addresses of a header field; what lists have, tests/unit/submission/test_addresses.py shows."""

import pytest

from relay.mail.mailboxes import Mailbox, mailboxes


def test_mailboxes_are_found_as_they_are_written() -> None:
    assert mailboxes('"B, A" (x (y)) <@c,@d:a@b>, ,G: e@f;, C <g@h> i, "D <j@k>') == (
        [
            Mailbox('"B, A"', "a@b", ""),
            Mailbox("", "e@f", ""),
            Mailbox("C", "g@h", "i"),
            Mailbox("", "j@k", ""),
        ],
        True,
    )


@pytest.mark.parametrize("piece", ["[", "(", "<", '"', "\\", "[a", "[\\", '"[', "a,", ":"])
def test_a_long_text_is_read_in_linear_time(piece: str) -> None:
    """A quadratic reader takes minutes: the test would hang."""
    found, _ = mailboxes(piece * 1_000_000)
    assert len(found) <= 1_000_000
