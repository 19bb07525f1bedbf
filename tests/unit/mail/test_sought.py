"""What `relay find` finds by a text, in the queue and in a line of what ended."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay.mail.sought import sought
from relay.telemetry.endings import PastEnding, encode

TEXTS = st.text('abAB.@<>-\\"ßẞéÉxn[]ıİ 1', max_size=12)
ADDRESSES = st.builds(
    "{}@{}".format,
    st.sampled_from(['"B ob"', "bob", "BÖB", '"b\\ob"', "a.b"]),
    st.sampled_from(["x.example", "xn--strae-oqa.example", "straße.example", "X.Example.", "[IPv6:::1]"]),
)


@pytest.mark.parametrize(
    "text", ["bob@x.example", "BOB@", "@X.EXAMPLE", "<bob@x.example>", "ob@x", ' "bob"@x ']
)
def test_an_address_is_found_by_a_part_in_any_case_and_spelling(text: str) -> None:
    assert sought(text).is_in_address(["ann@y.example", "Bob@x.example"])
    assert not sought(text).is_in_address(["ann@y.example"])


@pytest.mark.parametrize("text", ["<1@Here.example>", "1@here.example", "HERE.", "1@h"])
def test_a_message_id_is_found_by_a_part_with_or_without_brackets(text: str) -> None:
    assert sought(text).is_in("<1@Here.Example>")
    assert not sought(text).is_in("<2@th.example>")
    assert not sought(text).is_in(None)


@pytest.mark.parametrize("text", ["", " ", "<>", "< >", "<<>>", "a\udcff"])
def test_nothing_is_not_looked_for(text: str) -> None:
    with pytest.raises(ValueError, match="expected an address, a Message-ID or a queue id"):
        sought(text)


@given(TEXTS, ADDRESSES, TEXTS)
@example("strasse", "a@xn--strae-oqa.example", "")
@example("bob@", '"bob"@x.example', "")
@example("[::1]", "a@[IPv6:::1]", "")
@example("x.example", "a@X.Example.", "")
@example("é", "a@x.example", "<É@x>")
def test_a_line_that_is_passed_over_has_it_in_none_of_its_texts(
    text: str, address: str, message_id: str
) -> None:
    try:
        wanted = sought(text)
    except ValueError:
        return
    line = encode(PastEnding(1, "0123456789abcdef", message_id or None, address, "z@z.example", "relayed"))
    if wanted.is_in(message_id) or wanted.is_in_address([address]) or wanted.is_in("0123456789abcdef"):
        assert wanted.may_be_in(line)


@given(TEXTS)
def test_what_is_looked_for_is_the_same_when_it_is_passed_on(text: str) -> None:
    try:
        wanted = sought(text)
    except ValueError:
        return
    assert sought(wanted.text) == wanted
