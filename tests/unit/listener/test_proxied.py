"""Connections through a load balancer: the client that the PROXY header names, and malformed headers."""

import struct
from ipaddress import ip_address

import pytest
from aiosmtpd.proxy_protocol import V2_SIGNATURE

from relay.listener.access import Client
from tests.fakes.certificates import Certificates
from tests.unit.listener.conversation import Room, listening

PROXIES: dict[str, object] = {"proxies": ["127.0.0.1"], "clients": ["192.0.2.0/24", "2001:db8::/32"]}


def header(client: str, *, more: bytes = b"") -> bytes:
    """Return a PROXY v2 header for this client, made by the letter of the specification."""
    source = ip_address(client)
    family, destination = (0x11, "192.0.2.9") if source.version == 4 else (0x21, "2001:db8::9")
    addresses = source.packed + ip_address(destination).packed + struct.pack("!HH", 40000, 25) + more
    return V2_SIGNATURE + bytes([0x21, family]) + struct.pack("!H", len(addresses)) + addresses


def opened(room: Room) -> list[str]:
    return [line.rpartition(" ")[2] for line in room.observer.opened]


def test_the_zone_of_a_link_local_address_is_dropped() -> None:
    assert str(Client.of_peer("fe80::1%eth0")) == "unknown[fe80::1]"


@pytest.mark.parametrize(
    ("octets", "why"),
    [
        (b"EHLO client.example\r\n", "unrecognized signature"),
        (b"PROX", "ended inside"),
        (b"PROXY UNKNOWN\r\n", "expected TCP"),
        (b"PROXY TCP4 " + b"1" * 5000, "too long"),
        (V2_SIGNATURE + b"\x21\x12\0\x0c" + bytes(12), "expected TCP"),
        (V2_SIGNATURE + b"\x21\x11\0\xff" + bytes(12), "ended inside"),
    ],
)
async def test_a_malformed_proxy_header_ends_the_connection_without_a_reply(octets: bytes, why: str) -> None:
    async with listening(PROXIES) as room:
        client = await room.connect()
        await client.send(octets)
        client.half_close()

        assert await client.rest() == b""
        (refusal,) = room.observer.refusals
        assert refusal[0] == "connect"
        assert why in refusal[1]
        assert not room.observer.opened


@pytest.mark.parametrize(
    ("begin", "told", "code"),
    [
        (header("192.0.2.77", more=b"\x04\0\x01x"), "192.0.2.77", 250),
        (header("2001:db8::7"), "2001:db8::7", 250),
        (header("::ffff:192.0.2.77"), "192.0.2.77", 250),
        (header("2001:db9::7"), "2001:db9::7", 550),
        (b"PROXY TCP4 192.0.2.77 192.0.2.9 40000 25\r\n", "192.0.2.77", 250),
        (b"PROXY TCP6 2001:db8::7 2001:db8::9 40000 25\r\n", "2001:db8::7", 250),
        # A health check counts as the balancer's own connection.
        (V2_SIGNATURE + b"\x20\0\0\0", "127.0.0.1", 550),
    ],
)
async def test_the_client_in_the_header_decides_who_may_relay(begin: bytes, told: str, code: int) -> None:
    async with listening(PROXIES) as room:
        connection = await room.connect()
        # All in one write: no octet of the client may be read as part of the header.
        await connection.send(begin + b"EHLO c.example\r\nMAIL FROM:<a@b>\r\n")

        assert await connection.codes(3) == [220, 250, code]
        assert opened(room) == [f"unknown[{told}]"]


@pytest.mark.parametrize("told", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
async def test_a_loopback_address_in_the_header_of_another_host_may_not_relay(
    monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    # All of 127/8 is loopback, so no test can connect from another host: change this one answer.
    elsewhere = property(lambda client: client.ip.is_loopback and client.address != "127.0.0.9")
    monkeypatch.setattr(Client, "is_loopback", elsewhere)
    async with listening({"proxies": ["127.0.0.9"], "clients": ["127.0.0.1", "::1"]}) as room:
        connection = await room.connect(source="127.0.0.9")
        await connection.send(header(told) + b"EHLO c.example\r\nMAIL FROM:<a@b>\r\n")

        assert await connection.codes(3) == [220, 250, 550]
        assert opened(room) == ["unknown[127.0.0.9]"]


async def test_a_proxy_header_of_a_client_that_is_no_proxy_is_a_bad_command() -> None:
    async with listening({**PROXIES, "proxies": ["192.0.2.9"]}) as room:
        connection = await room.connect()
        await connection.send(header("192.0.2.77"))

        assert await connection.codes(2) == [220, 500]
        assert opened(room) == ["unknown[127.0.0.1]"]


async def test_connections_count_by_client_not_by_balancer_and_a_strangers_by_network() -> None:
    came = {
        "192.0.2.1": 220, "192.0.2.2": 220, "::ffff:192.0.2.1": 421,
        "2001:db8::1": 220, "2001:db8::2": 220, "2001:db9::1": 220, "2001:db9::2": 421,
    }  # fmt: skip
    async with listening({**PROXIES, "max_connections_per_client": 1}) as room:
        for client, code in came.items():
            connection = await room.connect()
            await connection.send(header(client))
            assert await connection.codes(1) == [code], client


async def test_the_proxy_header_comes_before_implicit_tls(certificates: Certificates) -> None:
    async with listening(PROXIES | certificates.policy("implicit")) as room:
        plain = await room.connect()
        await plain.send(header("192.0.2.77"))
        await plain.start_tls(certificates.ca)

        assert await plain.codes(1) == [220]
        assert opened(room) == ["unknown[192.0.2.77]"]
