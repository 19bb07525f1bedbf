"""What `relay find` finds by a text, in the queue and among what ended."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.mail.sought import sought, words_of

TEXTS = st.text('abAB.@<>-\\"ßẞéÉxn[]ıİ 1', max_size=12)


@pytest.mark.parametrize(
    "text", ["bob@x.example", "BOB@", "@X.EXAMPLE", "<bob@x.example>", "ob@x", ' "bob"@x ']
)
def test_an_address_is_found_by_a_part_in_any_case_and_spelling(text: str) -> None:
    assert sought(text).is_in(words_of((), ["ann@y.example", "Bob@x.example"]))
    assert not sought(text).is_in(words_of((), ["ann@y.example"]))


@pytest.mark.parametrize("text", ["<1@Here.example>", "1@here.example", "HERE.", "1@h"])
def test_a_message_id_is_found_by_a_part_with_or_without_brackets(text: str) -> None:
    assert sought(text).is_in(words_of([None, "<1@Here.Example>"], []))
    assert not sought(text).is_in(words_of(["<2@th.example>"], []))


@pytest.mark.parametrize("text", ["", " ", "<>", "< >", "<<>>", "a\udcff"])
def test_nothing_is_not_looked_for(text: str) -> None:
    with pytest.raises(ValueError, match="expected an address, a Message-ID, a queue id"):
        sought(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        *(("strasse", "a@xn--strae-oqa.example"), ("straße.example", "A@XN--STRAE-OQA.example")),
        *(("bob@", '"bob"@x.example'), ("bob@", '"b\\ob"@x.example'), ("@x.example", "bob@X.Example.")),
        *(("bob@x.example.", "bob@x.example"), ("a@[IPv6:::ffff:192.0.2.1]", "a@[192.0.2.1]")),
        *(("a@[IPv6:0:0::1]", "a@[IPv6:::1]"), ("bÖb", "BÖB@x.example")),
    ],
)
def test_an_address_is_found_in_another_spelling(text: str, address: str) -> None:
    assert sought(text).is_in(words_of(("0123456789abcdef",), [address]))


def test_of_several_words_each_is_somewhere_in_the_message() -> None:
    words = words_of(("0123456789abcdef", "<1@x>", "Your Order 17 of May", "4XYZ"), ("ann@x.example",))

    for text in ("order 17", "may your", "ann@X ORDER", "4xyz", "<ann@x.example>"):
        assert sought(text).is_in(words)
    assert not sought("order 18").is_in(words)


@given(TEXTS)
def test_what_is_looked_for_is_the_same_when_it_is_passed_on(text: str) -> None:
    try:
        wanted = sought(text)
    except ValueError:
        return
    assert sought(wanted.text) == wanted
