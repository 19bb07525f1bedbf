"""Reports as a list manager reads them: with Mailman's bounce detector, flufl.bounce."""

import email

import pytest
from flufl.bounce import all_failures, scan_message
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.mail.test_report import bounce, delay, failure, warning

ADDRESS = st.from_regex(r"[a-z]{1,8}(\.[a-z]{1,8})?@[a-z]{1,8}\.example", fullmatch=True)


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
