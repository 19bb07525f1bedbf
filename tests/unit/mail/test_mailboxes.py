"""The time that the addresses of a header take; what they are, the tests of rewriting and submission show."""

import pytest

from relay.mail.mailboxes import mailboxes


@pytest.mark.parametrize("piece", ["[", "(", "<", '"', "\\", "[a", "[\\", '"[', "a,", ":"])
def test_a_long_text_is_read_in_linear_time(piece: str) -> None:
    """A quadratic reader takes minutes: the test would hang."""
    found, _ = mailboxes(piece * 1_000_000)
    assert len(found) <= 1_000_000
