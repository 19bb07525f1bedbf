"""Who a client is, whether it may relay, and how many of it there may be."""

from ipaddress import ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.listener.access import Admission, Client, Relaying


@pytest.mark.parametrize(
    ("host", "label", "origin", "is_loopback"),
    [
        ("127.0.0.1", "unknown[127.0.0.1]", "127.0.0.1", True),
        ("::1", "unknown[::1]", "::/64", True),
        ("::ffff:192.0.2.1", "unknown[192.0.2.1]", "192.0.2.1", False),
        ("::ffff:127.0.0.1", "unknown[127.0.0.1]", "127.0.0.1", True),
        ("fe80::1%eth0", "unknown[fe80::1]", "fe80::/64", False),
        ("2001:db8:1:2:3:4:5:6", "unknown[2001:db8:1:2:3:4:5:6]", "2001:db8:1:2::/64", False),
    ],
)
def test_client_is_its_address(host: str, label: str, origin: str, is_loopback: bool) -> None:
    client = Client.of_peer(host)

    assert (str(client), client.origin, client.is_loopback) == (label, origin, is_loopback)


def test_address_mapped_into_ipv6_is_matched_as_ipv4() -> None:
    relaying = Relaying([ip_network("192.0.2.0/24"), ip_network("2001:db8::/32")])

    for host in ("192.0.2.9", "::ffff:192.0.2.9", "2001:db8::9"):
        assert relaying.is_allowed(Client.of_peer(host))
    for host in ("192.0.3.9", "::ffff:192.0.3.9", "2001:db9::9", "::1", "127.0.0.1"):
        assert not relaying.is_allowed(Client.of_peer(host))
    assert not Relaying([]).is_allowed(Client.of_peer("127.0.0.1"))


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=60))
def test_no_more_are_let_in_than_allowed_and_nobody_is_remembered(steps: list[tuple[bool, int]]) -> None:
    admission = Admission(5, 2)
    open_ones: list[Client] = []
    for enters, number in steps:
        client = Client.of_peer(f"192.0.2.{number}")
        if enters:
            is_full = len(open_ones) >= 5 or open_ones.count(client) >= 2
            refusal = admission.enter(client)
            assert (refusal is not None) == is_full
            if refusal is None:
                open_ones.append(client)
        elif client in open_ones:
            admission.leave(client)
            open_ones.remove(client)
        assert admission.total == len(open_ones)
        assert admission.clients == len(set(open_ones))
