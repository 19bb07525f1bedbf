"""Reports as a list manager reads them: with Mailman's bounce detector, flufl.bounce."""

import email
from dataclasses import replace

import pytest
from flufl.bounce import all_failures, scan_message
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.mail.test_report import HEADER, bounce, delay, failure, message, returned, warning

ADDRESS = st.from_regex(r"[a-z]{1,8}(\.[a-z]{1,8})?@[a-z]{1,8}\.example", fullmatch=True)


@settings(max_examples=50, deadline=None)
@given(failed=st.lists(ADDRESS, unique=True, max_size=5), late=st.lists(ADDRESS, unique=True, max_size=5))
def test_a_list_manager_scores_exactly_the_failed_recipients(failed: list[str], late: list[str]) -> None:
    late = [address for address in late if address not in failed]
    if not failed and not late:
        return
    content = bounce(*map(failure, failed), *map(delay, late))

    temporary, permanent = all_failures(email.message_from_bytes(content))

    assert permanent == {address.encode() for address in failed}
    assert temporary == {address.encode() for address in late}


def test_a_list_manager_scores_a_warning_as_temporary() -> None:
    found = email.message_from_bytes(warning(delay(), delay(BEYOND_ASCII)))

    assert all_failures(found) == (frozenset({b"alice@example.com"}), frozenset())
    assert scan_message(found) == frozenset()


BEYOND_ASCII = "jürgen@bücher.example"
FORMS_OF_RFC_6533 = {
    "utf-8-addr-xtext": "utf-8; j\\x{FC}rgen@b\\x{FC}cher.example",
    "utf-8-address": f"utf-8; {BEYOND_ASCII}",
    "of the older type": f"rfc822; {BEYOND_ASCII}",
}


@pytest.mark.parametrize("field", ["Final-Recipient", "Original-Recipient"])
@pytest.mark.parametrize("form", FORMS_OF_RFC_6533)
def test_a_list_manager_takes_no_address_beyond_ascii(field: str, form: str) -> None:
    """So none of ours is better for it: what flufl.bounce returns is ASCII.

    The one form that it would take, `rfc822` with an ASCII spelling, names somebody else.
    """
    ours = b"Final-Recipient: utf-8; j\\x{FC}rgen@b\\x{FC}cher.example"
    content = bounce(failure(BEYOND_ASCII))
    assert ours in content

    other = content.replace(ours, f"{field}: {FORMS_OF_RFC_6533[form]}".encode())

    assert all_failures(email.message_from_bytes(other)) == (frozenset(), frozenset())


@given(failed=st.lists(ADDRESS, unique=True, min_size=1, max_size=5), at=st.integers(0, 5))
def test_a_recipient_beyond_ascii_takes_nothing_from_others(failed: list[str], at: int) -> None:
    content = bounce(*map(failure, [*failed[:at], BEYOND_ASCII, *failed[at:]]))

    assert all_failures(email.message_from_bytes(content))[1] == {address.encode() for address in failed}


GUESSED_AT = [
    "550 Your message could not be delivered to bob@example.com",
    "550 here is your list of failed recipients <bob@example.com>",
    "550 Message could not be delivered to some recipients. Recipient: [SMTP:bob@example.com]",
    "550 Delivery has failed [bob@example.com]",
    "550 this is the Postfix program at host <bob@example.com>:",
    "550 Hi. This is the qmail-send program at x. <bob@example.com>:",
    "550 The following addresses had delivery problems: <bob@example.com>",
]


@pytest.mark.parametrize("is_warning", [False, True])
@pytest.mark.parametrize("words", GUESSED_AT)
def test_a_list_manager_without_an_address_scores_nobody_else(words: str, is_warning: bool) -> None:
    """It guesses then, at whatever the text and the returned header hold."""
    header = HEADER + f"Subject: {words}\r\nTo: <carol@example.com>\r\n".encode()
    for recipient, diagnostic, about in (
        (BEYOND_ASCII, words, message()),
        (BEYOND_ASCII, None, message(header=header)),
        ("\ud800@example.com", words, message()),
    ):
        late = replace(delay(recipient), diagnostic=diagnostic)
        lost = replace(failure(recipient), diagnostic=diagnostic)
        content = warning(late, about=about) if is_warning else bounce(lost, about=about)

        assert all_failures(email.message_from_bytes(content)) == (frozenset(), frozenset())
        assert returned(content) == about.header
