"""Reports as a list manager reads them: with Mailman's bounce detector, flufl.bounce."""

import email

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
