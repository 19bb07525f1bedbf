"""Foreign text made fit for a log, a report or a terminal."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay.mail.text import MAX_TEXT_CHARACTERS, clean


@given(st.text() | st.binary())
@example("\x9b31m\u2028\x00\t\r\n")
def test_clean_text_is_one_printable_line(text: str | bytes) -> None:
    cleaned = clean(text)

    assert all(" " <= character <= "~" for character in cleaned)
    assert len(cleaned) <= MAX_TEXT_CHARACTERS
    assert clean(cleaned) == cleaned


@pytest.mark.parametrize(
    ("foreign", "expected"),
    [("  two\r\nlines\tand a tab ", "two  lines and a tab"), ("caf\xe9", "caf?"), (b"\xff", "?")],
)
def test_clean_replaces_what_could_break_a_line(foreign: str | bytes, expected: str) -> None:
    assert clean(foreign) == expected
