"""The lane of a message, by its sender, client, recipients and header."""

import re
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.mail.envelope import Envelope
from relay.queue.queued import DEFAULT_LANE
from relay.queue.sorting import Conditions, Sorter, is_like

HEAD = (
    b"Received: from here (unknown [127.0.0.1])\r\n\tby relay.test; today\r\n"
    b"Precedence: Bulk\r\n"
    b"X-Kind:\r\n  password\r\n\t reset\r\n"
    b"Subject: gr\xc3\xbc\xc3\x9fe\r\n"
    b"\r\nPrecedence: list\r\n"
)


def mail(
    reverse_path: str = "a@here.example", *recipients: str, client: str = "unknown[192.0.2.7]"
) -> Envelope:
    return Envelope(reverse_path, recipients or ("b@there.example",), 0, client, "here", "ESMTP")


def of(*senders: str) -> Conditions:
    return Conditions(senders)


def at(network: str) -> Conditions:
    return Conditions(client=(ip_network(network),))


def field(name: str, pattern: str) -> Conditions:
    return Conditions(header={name: (pattern,)})


TO = Conditions(recipient_domain=("x.example", "*.y.example"))
MANY = Conditions(recipients_above=2)


@pytest.mark.parametrize(
    ("rule", "envelope", "is_one"),
    [
        # A sender is an address, a domain or a pattern; its spelling does not matter.
        (of("News@Here.Example"), mail("nEWS@hERE.eXAMPLE."), True),
        (of("news@here.example"), mail("news@there.example"), False),
        (of("news@here.example"), mail('"n\\ews"@Here.example'), True),
        (of('"news"@here.example'), mail("news@here.example"), True),
        (of("@here.example"), mail("anybody@here.example"), True),
        (of("@here.example"), mail("anybody@sub.here.example"), False),
        (of("@[IPv6:2001:db8::1]"), mail("a@[IPv6:2001:DB8:0::1]"), True),
        (of("list-*@here.example"), mail("list-bounces+b=there.example@here.example"), True),
        (of("list-*@here.example"), mail('"list-a b"@here.example'), True),
        (of("list-*@here.example"), mail("mylist-bounces@here.example"), False),
        (of("@b\u00fccher.example"), mail("a@xn--bcher-kva.example"), True),
        (of("@bu\u0308cher.example"), mail("a@B\u00fccher.example"), True),
        (of("e\u0301@*"), mail("\u00c9@x"), True),
        (of("<>"), mail(""), True),
        (of("*"), mail(""), True),
        # A client matches by its address.
        (at("192.0.2.0/24"), mail(), True),
        (at("192.0.2.0/24"), mail(client="mail.example[192.0.3.7]"), False),
        (at("192.0.2.0/24"), mail(client="unknown[::ffff:192.0.2.7]"), True),
        (at("0.0.0.0/0"), mail(client="local"), False),
        # Every recipient has to be in the domains of the lane.
        (TO, mail("a@b.example", "a@X.example", "b@sub.y.example"), True),
        (TO, mail("a@b.example", "a@x.example", "b@y.example"), False),
        (MANY, mail("a@b.example", "1@x.example", "2@x.example"), False),
        (MANY, mail("a@b.example", "1@x.example", "2@x.example", "3@x.example"), True),
        # A header field is unfolded and compared in any case.  Lines behind the header do not count.
        (field("Precedence", "list"), mail(), False),
        (field("X-KIND", "password reset"), mail(), True),
        (field("Subject", "grüße"), mail(), True),
        (field("List-Id", "*"), mail(), False),
        (field("Received", "*by relay.test*"), mail(), True),
    ],
)
def test_the_matching_rule_gives_the_lane(rule: Conditions, envelope: Envelope, *, is_one: bool) -> None:
    assert Sorter((("lane", rule),)).sort(envelope, lambda: HEAD).lane == ("lane" if is_one else DEFAULT_LANE)


def test_the_first_rule_whose_keys_all_match_decides() -> None:
    both, either = (
        Conditions(("@here.example",), recipients_above=1),
        Conditions(("@here.example", "@there.example")),
    )
    sorter = Sorter((("both", both), ("either", either)))

    def lane(sender: str, count: int) -> str:
        envelope = mail(sender, *("b@x.example",) * count)
        return sorter.sort(envelope, lambda: pytest.fail("nothing asks for a header")).lane

    assert [lane("a@here.example", 2), lane("a@here.example", 1)] == ["both", "either"]
    assert [lane("a@there.example", 9), lane("a@else.example", 9)] == ["either", DEFAULT_LANE]


@given(st.text("ab*[?]!\n", max_size=8), st.text("ab[?]!\n", max_size=12))
def test_a_pattern_matches_as_a_regular_expression_would(pattern: str, text: str) -> None:
    wanted = ".*".join(map(re.escape, pattern.split("*")))

    assert is_like(pattern, text) == (re.fullmatch(wanted, text, re.DOTALL) is not None)
