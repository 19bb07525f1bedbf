"""Connections that a load balancer passes on: whose they are, and what is no header of one."""

import ssl
import struct
from ipaddress import ip_address

import pytest
from aiosmtpd.proxy_protocol import V2_SIGNATURE

from relay.listener.access import Client
from tests.fakes.certificates import Certificates
from tests.unit.listener.conversation import Room, codes, listening

PROXIES: dict[str, object] = {"proxies": ["127.0.0.1"], "clients": ["192.0.2.0/24", "2001:db8::/32"]}


def header(client: str, *, more: bytes = b"") -> bytes:
    """Return what a balancer begins a connection with, by the letter of its document."""
    source = ip_address(client)
    family, destination = (0x11, "192.0.2.9") if source.version == 4 else (0x21, "2001:db8::9")
    addresses = source.packed + ip_address(destination).packed + struct.pack("!HH", 40000, 25) + more
    return V2_SIGNATURE + bytes([0x21, family]) + struct.pack("!H", len(addresses)) + addresses


def opened(room: Room) -> list[str]:
    return [line.rpartition(" ")[2] for line in room.observer.opened]


def test_the_zone_of_a_link_is_no_part_of_an_address() -> None:
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
async def test_what_is_no_header_ends_the_connection_without_a_word(octets: bytes, why: str) -> None:
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
        # A health check is the balancer's own.
        (V2_SIGNATURE + b"\x20\0\0\0", "127.0.0.1", 550),
    ],
)
async def test_who_may_relay_is_judged_by_the_client_that_is_told(begin: bytes, told: str, code: int) -> None:
    async with listening(PROXIES) as room:
        connection = await room.connect()
        # All in one write: not an octet of the client's may be taken for the header's.
        await connection.send(begin + b"EHLO c.example\r\nMAIL FROM:<a@b>\r\n")
        _, _, reply = await connection.replies(3)

        assert codes(reply) == [code]
        assert opened(room) == [f"unknown[{told}]"]


@pytest.mark.parametrize("told", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
async def test_a_program_on_another_hosts_loopback_is_on_none_of_ours(
    monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    # All of 127/8 is loopback, so that no test can connect from elsewhere: only this answer is changed.
    elsewhere = property(lambda client: client.ip.is_loopback and client.address != "127.0.0.9")
    monkeypatch.setattr(Client, "is_loopback", elsewhere)
    async with listening({"proxies": ["127.0.0.9"], "clients": ["127.0.0.1", "::1"]}) as room:
        connection = await room.connect(source="127.0.0.9")
        await connection.send(header(told) + b"EHLO c.example\r\nMAIL FROM:<a@b>\r\n")
        _, _, reply = await connection.replies(3)

        assert codes(reply) == [550]
        assert opened(room) == ["unknown[127.0.0.9]"]


async def test_of_others_a_header_is_a_bad_command() -> None:
    async with listening({**PROXIES, "proxies": ["192.0.2.9"]}) as room:
        connection = await room.connect()
        await connection.send(header("192.0.2.77"))
        await connection.reply()

        assert codes(await connection.reply())[0] == 500
        assert opened(room) == ["unknown[127.0.0.1]"]


async def test_places_are_counted_by_client_not_by_balancer_and_a_strangers_by_its_network() -> None:
    came = {
        "192.0.2.1": 220, "192.0.2.2": 220, "::ffff:192.0.2.1": 421,
        "2001:db8::1": 220, "2001:db8::2": 220, "2001:db9::1": 220, "2001:db9::2": 421,
    }  # fmt: skip
    async with listening({**PROXIES, "max_connections_per_client": 1}) as room:
        for client, code in came.items():
            connection = await room.connect()
            await connection.send(header(client))
            assert codes(await connection.reply()) == [code], client


async def test_the_header_comes_before_implicit_tls(certificates: Certificates) -> None:
    async with listening(PROXIES | certificates.policy("implicit")) as room:
        plain = await room.connect()
        await plain.send(header("192.0.2.77"))
        await plain.writer.start_tls(
            ssl.create_default_context(cafile=certificates.ca), server_hostname="localhost"
        )

        assert codes(await plain.reply()) == [220]
        assert opened(room) == ["unknown[192.0.2.77]"]
