"""Clients that may not relay (yet): few, the first to go, and never in the way of who may."""

import ssl
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.fakes.certificates import Certificates
from tests.unit.listener.conversation import TRANSACTION, Client, Room, codes, listening, until
from tests.unit.listener.test_auth import GOOD

FULL = {"clients": ["127.0.0.1/32"], "max_connections": 10}
"""Strangers come from elsewhere in 127/8; the client that may relay from 127.0.0.1."""


def _origins() -> Iterator[str]:
    return (f"127.1.{number // 250}.{number % 250 + 1}" for number in count())


async def _strangers(room: Room, number: int) -> list[Client]:
    """Connect so many strangers, each from an address of its own, and have the listener see them."""
    origins = _origins()
    came = []
    for _ in range(number):
        came.append(await room.connect(source=next(origins)))
        await came[-1].reply()
    return came


@pytest.mark.parametrize("has_users", [False, True])
async def test_strangers_keep_no_place_from_who_may_relay(users_file: Path, has_users: bool) -> None:
    policy = FULL | ({"users_file": str(users_file)} if has_users else {})
    async with listening(policy) as room:
        await _strangers(room, 30)
        trusted = [await room.connect(source="127.0.0.1") for _ in range(10)]
        assert codes(b"".join([await client.reply() for client in trusted])) == [220] * 10
        late = await room.connect(source="127.0.0.1")
        assert await late.rest() == b"421 4.7.0 Too many connections\r\n"
        stranger = await room.connect(source="127.9.0.1")
        assert await stranger.rest() == b"421 4.7.0 Too many connections\r\n"

        assert room.listener.open_connections == 10


@pytest.mark.parametrize(("has_users", "share"), [(False, 4), (True, 20)])
async def test_strangers_have_a_fixed_share_and_one_origin_a_part_of_it(
    users_file: Path, has_users: bool, share: int
) -> None:
    policy = FULL | {"max_connections": 40} | ({"users_file": str(users_file)} if has_users else {})
    async with listening(policy) as room:
        same = [await room.connect(source="127.7.0.1") for _ in range(20)]
        told = codes(b"".join([await client.reply() for client in same]))
        assert told == [220] * min(share, 10) + [421] * (20 - min(share, 10))
        await _strangers(room, 30)

        assert room.listener.open_connections == share


async def test_stranger_idle_for_longest_is_told_and_closed(users_file: Path) -> None:
    async with listening(FULL | {"users_file": str(users_file)}) as room:
        first, second, *_ = await _strangers(room, 5)
        for _ in range(3):
            # Commands that bring no login nearer are idleness.
            assert codes(await first.ask(b"NOOP")) == [250]
        await room.connect(source="127.9.0.1")
        assert await first.rest() == b"421 4.7.0 Too many connections, this one gives way\r\n"
        assert codes(await second.ask(b"NOOP")) == [250]

        assert room.observer.refusals == [("noop", "421 4.7.0 Too many connections, this one gives way")]
        await until(lambda: room.observer.closed == ["crowded"])


async def test_silent_handshakes_hold_only_the_strangers_share(
    users_file: Path, certificates: Certificates
) -> None:
    tls = {"tls": "implicit", "certificate": str(certificates.cert), "key": str(certificates.key)}
    async with listening(FULL | tls | {"users_file": str(users_file)}) as room:
        silent = [await room.connect(source=f"127.3.0.{number + 1}") for number in range(6)]

        assert await silent[0].rest() == b""
        assert room.observer.refusals == [("connect", "421 4.7.0 Too many connections, this one gives way")]
        assert room.listener.open_connections == 5
        user = await room.connect(ssl.create_default_context(cafile=certificates.ca), source="127.0.0.1")
        assert codes(await user.reply()) == [220]
        for each in silent:
            await each.close()
        await until(lambda: room.listener.open_connections == 1)


async def test_user_logs_in_while_strangers_fill_all_places(users_file: Path) -> None:
    policy = {"clients": [], "max_connections": 10, "users_file": str(users_file)}
    async with listening(policy) as room:
        await _strangers(room, 10)
        user = await room.greeted(source="127.0.0.1")
        assert codes(await user.ask(b"AUTH PLAIN " + GOOD)) == [235]
        await _strangers(room, 30)
        await user.send(TRANSACTION + b"x\r\n.\r\n")
        assert codes(b"".join(await user.replies(4))) == [250, 250, 354, 250]


@pytest.mark.parametrize(
    "line", [b"NOOP", b"RSET", b"VRFY x", b"HELP", b"EHLO x", b"HELO x", b"MAIL FROM:<a@b>\r\nRSET"]
)
async def test_commands_without_mail_count_as_errors_after_a_hundred(line: bytes) -> None:
    async with listening({"max_errors": 3}) as room:
        told = await room.say(b"EHLO x\r\n" + (line + b"\r\n") * 200)

        assert codes(told)[-1] == 421
        assert len(codes(told)) == 1 + 100 + 3 + 1
        assert room.observer.closed == ["errors"]
