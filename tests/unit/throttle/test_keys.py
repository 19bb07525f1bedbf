"""What messages are told apart by: what the owner would call the same is the same."""

import pytest

from relay.clock import SECOND_NS
from relay.mail.envelope import Envelope
from relay.throttle.admission import Request, request_for
from relay.throttle.limit import count_at, plain_words
from tests.unit.throttle.limits import PerPeriod, Rise


def _request(
    reverse_path: str = "a@b.example", client: str = "mail[192.0.2.1]", *recipients: str, most: int = 100
) -> Request:
    envelope = Envelope(reverse_path, recipients or ("c@d.example",), 0, client, "here", "ESMTP")
    return request_for(envelope, range(len(envelope.recipients)), most)


@pytest.mark.parametrize(
    ("reverse_path", "sender", "domain"),
    [
        ("a@b.example", "a@b.example", "b.example"),
        ("Alice@B.Example.", "alice@b.example", "b.example"),
        ("ä@bücher.example", "%c3%a4@xn--bcher-kva.example", "xn--bcher-kva.example"),
        ('"a b@c"@d.example', "a%20b@c@d.example", "d.example"),
        ("a@[IPv6:2001:DB8::1]", "a@[ipv6:2001:db8::1]", "[ipv6:2001:db8::1]"),
        ("", "", ""),
        ("postmaster", "postmaster", ""),
    ],
)
def test_senders_and_their_domains(reverse_path: str, sender: str, domain: str) -> None:
    request = _request(reverse_path)

    assert (request.sender, request.sender_domain) == (sender, domain)


@pytest.mark.parametrize(
    ("client", "key"),
    [
        ("mail.example[192.0.2.1]", "192.0.2.1"),
        ("another.name[192.0.2.1]", "192.0.2.1"),
        ("unknown[2001:DB8::1]", "2001:db8::1"),
        ("local", "local"),
    ],
)
def test_a_client_is_its_address_whatever_it_calls_itself(client: str, key: str) -> None:
    assert _request("a@b.example", client).client == key


@pytest.mark.parametrize(("user", "key"), [(None, ""), ("printer", "printer"), ("zoë b", "zo%c3%ab%20b")])
def test_a_user_is_the_name_of_the_login(user: str | None, key: str) -> None:
    envelope = Envelope("a@b.example", ("c@d.example",), 0, "local", "", "ESMTPA", user=user)

    assert request_for(envelope, [0], 1).user == key


def test_each_recipient_has_its_domain_and_one_transaction_its_most() -> None:
    request = _request("a@b.example", "local", "a@x.example", "b@Y.example", "c@x.example.", most=2)

    assert request.recipient_domains == ("x.example", "y.example", "x.example")
    assert (request.recipients, request.largest) == (3, 2)


def test_only_the_recipients_that_are_asked_for_count() -> None:
    envelope = Envelope("a@b.example", ("a@x.example", "b@y.example", "c@z.example"), 0, "local", "", "ESMTP")

    assert request_for(envelope, [2, 0], 9).recipient_domains == ("z.example", "x.example")


def test_domains_that_do_not_fit_the_recipients_are_a_fault() -> None:
    with pytest.raises(ValueError, match="domain"):
        Request(2, recipient_domains=("x.example",))


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (PerPeriod(100, 3600 * SECOND_NS), "100 messages per 1h"),
        (PerPeriod(10, 90 * SECOND_NS, "connections"), "10 connections per 90s"),
        (
            PerPeriod(5, 86400 * SECOND_NS, for_each="sender_domain"),
            "5 messages per 24h for each sender domain",
        ),
        (
            PerPeriod(7, 60 * SECOND_NS, "recipients", "lane", "lists"),
            "7 recipients per 1m for lane lists",
        ),
        (PerPeriod(1 << 30, 86400 * SECOND_NS, "bytes"), "1G per 24h"),
        (
            PerPeriod(9, 86400 * SECOND_NS, rise=Rise(2, 9, 864000 * SECOND_NS)),
            "9 messages per 24h, from 2 over 10d",
        ),
    ],
)
def test_people_read_a_limit_in_the_units_of_a_policy(limit: PerPeriod, words: str) -> None:
    assert plain_words(limit) == words


def test_without_a_ramp_n_is_n() -> None:
    assert (count_at(9, None, 0), count_at(9, Rise(1, 9, 8), 4)) == (9, 5)
