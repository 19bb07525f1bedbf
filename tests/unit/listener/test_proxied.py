"""Connections that a load balancer passes on: whose they are, and what is no header of one."""

import contextlib
import socket
import ssl
import struct
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.listener.access import ClientNetworks
from relay.listener.proxied import Proxied
from relay.listener.proxy_header import (
    FIXED_BYTES,
    MOST_BYTES,
    SIGNATURE,
    BadProxyHeader,
    client_of,
    length_of,
)
from tests.fakes.certificates import Certificates
from tests.unit.listener.conversation import Room, codes, listening

PROXIES: dict[str, object] = {"proxies": ["127.0.0.1"], "clients": ["192.0.2.0/24", "2001:db8::/32"]}


def header(client: str, *, more: bytes = b"") -> bytes:
    """Return what a balancer begins a connection with, by the letter of its document."""
    source = ip_address(client)
    family, destination = (0x11, "192.0.2.9") if source.version == 4 else (0x21, "2001:db8::9")
    addresses = source.packed + ip_address(destination).packed + struct.pack("!HH", 40000, 25) + more
    return SIGNATURE + bytes([0x21, family]) + struct.pack("!H", len(addresses)) + addresses


def opened(room: Room) -> list[str]:
    return [line.rpartition(" ")[2] for line in room.observer.opened]


def read(octets: bytes) -> str | None:
    fixed = octets[:FIXED_BYTES]
    return client_of(fixed, octets[FIXED_BYTES : FIXED_BYTES + length_of(fixed)])


@given(st.ip_addresses(), st.binary(max_size=200))
def test_a_header_tells_the_client_whatever_follows(client: object, more: bytes) -> None:
    assert read(header(str(client), more=more)) == str(client)


@given(st.binary(max_size=60), st.integers(0, 27))
def test_octets_are_a_client_or_no_header(octets: bytes, kept: int) -> None:
    told = None
    with contextlib.suppress(BadProxyHeader):
        told = read(header("192.0.2.1")[:kept] + octets)

    assert told is None or str(ip_address(told)) == told


@pytest.mark.parametrize(
    ("octets", "why"),
    [
        (b"EHLO client.example\r\n", "no PROXY header"),
        (b"PROXY TCP4 192.0.2.1 192.0.2.9 40000 25\r\n", "no PROXY header"),
        (b"PROXY UNKNOWN\r\nQUIT\r\n", "no PROXY header"),
        (SIGNATURE + b"\x11\x11\0\x0c" + bytes(12), "version 1"),
        (SIGNATURE + b"\x22\x11\0\x0c" + bytes(12), "command 2"),
        (SIGNATURE + b"\x21\x12\0\x0c" + bytes(12), "transport 2"),
        (SIGNATURE + b"\x21\x31\0\xd8" + bytes(216), "family 3"),
        (SIGNATURE + b"\x21\x00\0\0", "family 0"),
        (SIGNATURE + b"\x21\x11\0\x0b" + bytes(11), "too short"),
        (SIGNATURE + b"\x21\x21\0\x0c" + bytes(12), "too short"),
        (SIGNATURE + b"\x21\x11" + struct.pack("!H", MOST_BYTES + 1), "above"),
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
    ("client", "code"), [("192.0.2.77", 250), ("2001:db8::7", 250), ("198.51.100.1", 550)]
)
async def test_who_may_relay_is_judged_by_the_client_that_is_told(client: str, code: int) -> None:
    async with listening(PROXIES) as room:
        connection = await room.connect()
        # All in one write: not an octet of the client's may be taken for the header's.
        await connection.send(header(client, more=b"\x04\0\x01x") + b"EHLO c.example\r\nMAIL FROM:<a@b>\r\n")
        _, _, reply = await connection.replies(3)

        assert codes(reply) == [code]
        assert opened(room) == [f"unknown[{client}]"]


@pytest.mark.parametrize(
    ("balancer", "told", "client"),
    [
        ("192.0.2.9", "127.0.0.1", "192.0.2.9"),
        ("192.0.2.9", "::1", "192.0.2.9"),
        ("192.0.2.9", "::ffff:127.0.0.1", "192.0.2.9"),
        ("192.0.2.9", "198.51.100.1", "198.51.100.1"),
        ("127.0.0.1", "127.0.0.2", "127.0.0.2"),
        ("::ffff:127.0.0.1", "::1", "::1"),
    ],
)
async def test_a_program_on_another_hosts_loopback_is_on_none_of_ours(
    balancer: str, told: str, client: str
) -> None:
    received: list[str] = []

    async def receive(_: socket.socket, peer: tuple[str, int]) -> None:
        received.append(peer[0])

    networks = ClientNetworks([ip_network("192.0.2.9"), ip_network("127.0.0.1")])
    proxied = Proxied(receive, networks, 1, lambda _, why: pytest.fail(why))
    theirs, accepted = socket.socketpair()
    with theirs, accepted:
        accepted.setblocking(False)
        theirs.sendall(header(told))
        await proxied.receive(accepted, (balancer, 40000))

    assert received == [client]


async def test_of_others_a_header_is_a_bad_command() -> None:
    async with listening({**PROXIES, "proxies": ["192.0.2.9"]}) as room:
        connection = await room.connect()
        await connection.send(header("192.0.2.77"))
        await connection.reply()

        assert codes(await connection.reply())[0] == 500
        assert opened(room) == ["unknown[127.0.0.1]"]


async def test_places_are_counted_by_client_not_by_balancer() -> None:
    async with listening({**PROXIES, "max_connections_per_client": 1}) as room:
        replies = []
        for client in ("192.0.2.1", "192.0.2.2", "192.0.2.1"):
            connection = await room.connect()
            await connection.send(header(client))
            replies.append(await connection.reply())

        assert [codes(reply)[0] for reply in replies] == [220, 220, 421]


async def test_the_header_comes_before_implicit_tls(certificates: Certificates) -> None:
    policy: dict[str, object] = {
        **PROXIES,
        "tls": "implicit",
        "certificate": str(certificates.cert),
        "key": str(certificates.key),
    }
    async with listening(policy) as room:
        plain = await room.connect()
        await plain.send(header("192.0.2.77"))
        context = ssl.create_default_context(cafile=str(certificates.ca))
        await plain.writer.start_tls(context, server_hostname="localhost")

        assert codes(await plain.reply()) == [220]
        assert opened(room) == ["unknown[192.0.2.77]"]


async def test_no_more_connections_wait_for_a_header_than_may_be_open() -> None:
    async with listening({**PROXIES, "max_connections": 2}) as room:
        silent = [await room.connect() for _ in range(2)]
        over = await room.connect()
        assert await over.rest() == b""
        assert "too many" in room.observer.refusals[0][1]
        for each in silent:
            await each.send(header("192.0.2.1"))
            assert codes(await each.reply()) == [220]
