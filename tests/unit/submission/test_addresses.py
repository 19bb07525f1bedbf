"""Addresses as people and programs write them."""

from email.utils import getaddresses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.submission.composing import NotAnAddress, addresses_in

HOST = "host.test"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a@b.test", ["a@b.test"]),
        ("root", ["root@host.test"]),
        ("a@b.test, c@d.test,", ["a@b.test", "c@d.test"]),
        ("A B <a@b.test>", ["a@b.test"]),
        ('"B, A <x@y.test>" <a@b.test>', ["a@b.test"]),
        ("a@b.test (A, B (c) \\) <d@e.test>)", ["a@b.test"]),
        ("friends: a@b.test, C <c@d.test>;, e@f.test", ["a@b.test", "c@d.test", "e@f.test"]),
        ("undisclosed-recipients:;", []),
        ("a@[IPv6:::1]", ["a@[IPv6:::1]"]),
        ('"a b"@c.test', ['"a b"@c.test']),
        ("ö@b.test", ["ö@b.test"]),
        ("a@b.test, a@b.test", ["a@b.test"]),
        ("", []),
    ],
)
def test_addresses_are_found_as_they_are_written(text: str, found: list[str]) -> None:
    assert addresses_in(text, HOST) == found


@pytest.mark.parametrize(
    "text",
    ["a b@c.test", "<a@b.test> <c@d.test>", "<a@b.test> c@d.test", "<>", "A <a@b.test", "(a@b.test", "a@b@c"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(NotAnAddress):
        addresses_in(text, HOST)


def test_an_octet_outside_utf8_is_no_part_of_an_address() -> None:
    with pytest.raises(NotAnAddress):
        addresses_in(b"a\xff@b.test".decode("utf-8", "replace"), HOST)


_MEMBERS = st.one_of(
    st.from_regex(r"[a-z.+]{1,8}@[a-z_]{1,8}\.test", fullmatch=True),
    st.from_regex(r"[A-Z ]{0,5}<[a-z]{1,8}@\[192\.0\.2\.[1-9]\]>", fullmatch=True),
    st.from_regex(r'"[a-z,<>@:; ]{0,8}(\\")?" <"[a-z ]{1,8}"@b\.test>', fullmatch=True),
    st.from_regex(r"[a-z]{1,8}@b\.test \([a-z,<>@:; ]{0,8}(\([a-z]\))?\)", fullmatch=True),
    st.from_regex(r"[A-Z]{1,5}: [a-z]{1,8}@c\.test, D <[a-z]{1,8}@c\.test>;", fullmatch=True),
)


@given(st.lists(_MEMBERS, max_size=6))
def test_a_list_is_read_as_python_reads_it(members: list[str]) -> None:
    text = ", ".join(members)
    expected = [address for _, address in getaddresses([text]) if address]

    assert addresses_in(text, HOST) == list(dict.fromkeys(expected))


@given(st.text(max_size=40))
def test_any_text_is_a_list_of_addresses_or_refused(text: str) -> None:
    try:
        found = addresses_in(text, None)
    except NotAnAddress:
        return
    assert all(address in text for address in found)
