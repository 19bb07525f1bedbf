"""Which lane a message is in: by what its sender, client, recipients and header say."""

import re
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.mail.envelope import Envelope
from relay.queue.lanes import DEFAULT_LANE
from relay.queue.sorting import Sorter, SortingRule, is_like

HEAD = (
    b"Received: from here (unknown [127.0.0.1])\r\n\tby relay.test; today\r\n"
    b"Precedence: Bulk\r\n"
    b"X-Kind:\r\n  password\r\n\t reset\r\n"
    b"Subject: gr\xc3\xbc\xc3\x9fe\r\n"
    b"\r\nPrecedence: list\r\n"
)


def _matches(
    rule: SortingRule,
    reverse_path: str = "a@here.example",
    *recipients: str,
    client: str = "unknown[192.0.2.7]",
    head: bytes = HEAD,
) -> bool:
    envelope = Envelope(reverse_path, recipients or ("b@there.example",), 0, client, "here", "ESMTP")
    return Sorter((rule,)).sort(envelope, lambda: head).lane == rule.lane


@pytest.mark.parametrize(
    ("pattern", "reverse_path", "is_one"),
    [
        ("News@Here.Example", "nEWS@hERE.eXAMPLE.", True),
        ("news@here.example", "news@there.example", False),
        ("@here.example", "anybody@here.example", True),
        ("@here.example", "anybody@sub.here.example", False),
        ("list-*@here.example", "list-bounces+b=there.example@here.example", True),
        ("list-*@here.example", "mylist-bounces@here.example", False),
        ("@bücher.example", "a@xn--bcher-kva.example", True),
        ("<>", "", True),
        ("*", "", True),
    ],
)
def test_a_sender_is_an_address_a_domain_or_a_pattern(pattern: str, reverse_path: str, is_one: bool) -> None:
    assert _matches(SortingRule("lane", senders=(pattern,)), reverse_path) is is_one


@pytest.mark.parametrize(
    ("network", "client", "is_one"),
    [
        ("192.0.2.0/24", "unknown[192.0.2.7]", True),
        ("192.0.2.0/24", "mail.example[192.0.3.7]", False),
        ("192.0.2.0/24", "unknown[::ffff:192.0.2.7]", True),
        ("0.0.0.0/0", "local", False),
    ],
)
def test_a_client_is_where_its_address_is(network: str, client: str, is_one: bool) -> None:
    assert _matches(SortingRule("lane", clients=(ip_network(network),)), client=client) is is_one


def test_every_recipient_has_to_be_in_the_domains_of_the_lane() -> None:
    rule = SortingRule("lane", recipient_domains=("x.example", "*.y.example"))

    assert _matches(rule, "a@b.example", "a@X.example", "b@sub.y.example")
    assert not _matches(rule, "a@b.example", "a@x.example", "b@y.example")


@pytest.mark.parametrize(
    ("name", "pattern", "is_one"),
    [
        ("Precedence", "list", False),  # behind the header it is content
        ("X-KIND", "password reset", True),
        ("Subject", "grüße", True),
        ("List-Id", "*", False),
        ("Received", "*by relay.test*", True),
    ],
)
def test_a_header_field_is_unfolded_and_compared_in_any_case(name: str, pattern: str, is_one: bool) -> None:
    assert _matches(SortingRule("lane", headers=((name, (pattern,)),))) is is_one


@pytest.mark.parametrize(
    ("pattern", "senders"),
    [
        ("news@h.example", ["news@h.example", '"news"@h.example', '"n\\ews"@H.example']),
        ('"news"@h.example', ["news@h.example", '"new\\s"@h.example']),
        ("list-*@h.example", ['"list-a b"@h.example']),
        ("e\u0301@*", ["\u00e9@h.example", "\u00c9@x"]),
        ("@[IPv6:2001:db8::1]", ["a@[IPv6:2001:DB8:0::1]"]),
        ("@bu\u0308cher.example", ["a@xn--bcher-kva.example", "a@B\u00fccher.example"]),
    ],
)
def test_a_sender_is_in_its_lane_however_it_is_spelled(pattern: str, senders: list[str]) -> None:
    rule = SortingRule("lane", senders=(pattern,))

    assert all(_matches(rule, sender) for sender in senders)
    assert not _matches(rule, "news+a@i.example")


def test_more_recipients_than_the_lane_says() -> None:
    rule = SortingRule("lane", recipients_above=2)

    assert not _matches(rule, "a@b.example", "1@x.example", "2@x.example")
    assert _matches(rule, "a@b.example", "1@x.example", "2@x.example", "3@x.example")


def test_the_first_rule_decides_whose_keys_all_match() -> None:
    both = SortingRule("both", senders=("@here.example",), recipients_above=1)
    either = SortingRule("either", senders=("@here.example", "@there.example"))
    sorter = Sorter((both, either))

    def lane(sender: str, count: int) -> str:
        envelope = Envelope(sender, ("b@x.example",) * count, 0, "local", "", "ESMTP")
        return sorter.sort(envelope, lambda: pytest.fail("nothing asks for a header")).lane

    assert [lane("a@here.example", 2), lane("a@here.example", 1)] == ["both", "either"]
    assert [lane("a@there.example", 9), lane("a@else.example", 9)] == ["either", DEFAULT_LANE]


@given(st.text("ab*", max_size=8), st.text("ab", max_size=12))
def test_a_pattern_means_what_a_regular_expression_would_mean(pattern: str, text: str) -> None:
    wanted = ".*".join(map(re.escape, pattern.split("*")))

    assert is_like(pattern, text) == (re.fullmatch(wanted, text) is not None)
