"""What `relay find` finds by a text, in the queue and among what ended."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.mail.sought import sought, words_of

WORDS = words_of(
    (None, "0123456789abcdef", "<1@Here.Example>", "Your Order 17 of May", "4XYZ"),
    ("ann@y.example", "Bob@x.Example.", "BÖB@bücher.example", "a@[192.0.2.1]", "c@[IPv6:::1]", '"d\\e f"@g'),
)


@pytest.mark.parametrize(
    "text",
    [
        *("BOB@", "@X.EXAMPLE", "<bob@x.example>", "ob@x", ' "bob"@x ', "bob@x.example.", "1@here.example"),
        *("<1@Here.example>", "order 17", "may your", "ann@Y ORDER", "4xyz", "bÖb", "@xn--bcher-kva.example"),
        *("a@[IPv6:::ffff:192.0.2.1]", "c@[IPv6:0:0::1]", "f@g"),
    ],
)
def test_a_message_is_found_by_parts_in_any_case_and_spelling(text: str) -> None:
    assert sought(text).is_in(WORDS)


@pytest.mark.parametrize("text", ["order 18", "bob@y", "<2@here.example>"])
def test_each_word_must_be_in_the_message(text: str) -> None:
    assert not sought(text).is_in(WORDS)


@pytest.mark.parametrize("text", ["", " ", "< >", "<<>>", "a\udcff"])
def test_nothing_is_not_looked_for(text: str) -> None:
    with pytest.raises(ValueError, match="expected an address, a Message-ID, a queue id"):
        sought(text)


@given(st.text('abAB.@<>-\\"ßẞéÉxn[]ıİ 1', max_size=12))
def test_what_is_looked_for_is_the_same_when_it_is_passed_on(text: str) -> None:
    try:
        wanted = sought(text)
    except ValueError:
        return
    assert sought(wanted.text) == wanted
