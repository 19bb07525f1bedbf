"""Texts are cleaned for display, lists of addresses are read, and messages are found by text."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay.mail.address import mailboxes, matches, parse_search
from relay.mail.text import MAX_TEXT_CHARACTERS, clean


@given(st.text() | st.binary())
@example("\x9b31m\u2028\x00\t\r\n")
def test_clean_text_is_one_printable_line(text: str | bytes) -> None:
    cleaned = clean(text)

    assert all(" " <= character <= "~" for character in cleaned)
    assert len(cleaned) <= MAX_TEXT_CHARACTERS
    assert clean(cleaned) == cleaned


NAMES = (None, "0123456789abcdef", "<1@Here.Example>", "Your Order 17 of May", "4XYZ")
ADDRESSES = (
    *("ann@y.example", "Bob@x.Example.", "BÖB@bücher.example", "a@[192.0.2.1]", "c@[IPv6:::1]"),
    '"d\\e f"@g',
)


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        *((text, True) for text in (
            "BOB@", "@X.EXAMPLE", "<bob@x.example>", "ob@x", ' "bob"@x ', "bob@x.example.", "1@here.example",
            "<1@Here.example>", "order 17", "may your", "ann@Y ORDER", "4xyz", "bÖb",
            "@xn--bcher-kva.example", "a@[IPv6:::ffff:192.0.2.1]", "c@[IPv6:0:0::1]", "f@g")),
        *((text, False) for text in ("order 18", "bob@y", "<2@here.example>")),
    ],
)  # fmt: skip
def test_a_message_is_found_by_parts_of_names_in_any_case_or_spelling(text: str, *, is_found: bool) -> None:
    assert matches(parse_search(text), NAMES, ADDRESSES) is is_found
    assert parse_search(parse_search(text)) == parse_search(text), "passed on, it is the same"


@pytest.mark.parametrize("text", ["", " ", "< >", "<<>>", "a\udcff"])
def test_an_empty_search_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="give an address, a Message-ID, a queue id"):
        parse_search(text)


@pytest.mark.parametrize("piece", ["[", "(", "<", '"', "\\", "[a", "[\\", '"[', "a,", ":"])
def test_a_long_list_is_read_in_linear_time(piece: str) -> None:
    """A quadratic reader takes minutes."""
    found, _ = mailboxes(piece * 50_000)
    assert len(found) <= 50_000
