"""A refusal of DSN's parameters is told from one of an address."""

import pytest

from relay.smtp.reply import Reply
from relay.verdicts.outcome import is_about_dsn


@pytest.mark.parametrize(
    ("code", "enhanced", "is_about_it"),
    [
        *((555, None, True), (555, "5.5.4", True), (501, "5.5.2", True), (504, "5.5.4", True)),
        *((500, None, True), (501, "5.1.3", False), (501, "5.1.7", False), (550, None, False)),
        *((553, "5.5.4", False), (455, "4.5.0", False)),
    ],
)
def test_a_refusal_of_parameters_is_known_by_its_codes(
    code: int, enhanced: str | None, *, is_about_it: bool
) -> None:
    assert is_about_dsn(Reply(code, enhanced, "what?")) is is_about_it
