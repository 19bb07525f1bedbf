"""Who a client is, whether it may relay, and how many of it there may be."""

from ipaddress import ip_network

import pytest

from relay.listener.access import Client


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
    networks = [ip_network("192.0.2.0/24"), ip_network("2001:db8::/32")]

    for host in ("192.0.2.9", "::ffff:192.0.2.9", "2001:db8::9"):
        assert Client.of_peer(host).is_in(networks)
    for host in ("192.0.3.9", "::ffff:192.0.3.9", "2001:db9::9", "::1", "127.0.0.1"):
        assert not Client.of_peer(host).is_in(networks)
    assert not Client.of_peer("127.0.0.1").is_in([])
