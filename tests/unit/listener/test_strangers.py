"""Clients that may not relay (yet): few, for a short time, and never in the way of who may."""

import ssl
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.fakes.certificates import Certificates
from tests.unit.listener.conversation import TRANSACTION, Client, Room, codes, leap, listening, until
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


@pytest.mark.parametrize(("has_users", "left"), [(False, 9), (True, 5)])
async def test_strangers_keep_no_place_beyond_their_share(
    users_file: Path, has_users: bool, left: int
) -> None:
    policy = FULL | ({"users_file": str(users_file)} if has_users else {})
    async with listening(policy) as room:
        await _strangers(room, 30)
        trusted = [await room.connect(source="127.0.0.1") for _ in range(left)]
        assert codes(b"".join([await client.reply() for client in trusted])) == [220] * left
        for source in ("127.0.0.1", "127.9.0.1"):
            late = await room.connect(source=source)
            assert await late.rest() == b"421 4.7.0 Too many connections\r\n"

        assert room.listener.admission.total == 10


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
        assert room.listener.admission.total == share

        # Whoever leaves makes room for another one.
        assert codes(await same[0].ask(b"QUIT")) == [221]
        await until(lambda: room.listener.admission.total == share - 1)
        late = await room.connect(source="127.9.0.1")
        assert codes(await late.reply()) == [220]


async def test_silent_handshakes_hold_only_the_strangers_share(
    users_file: Path, certificates: Certificates
) -> None:
    tls = {"tls": "implicit", "certificate": str(certificates.cert), "key": str(certificates.key)}
    async with listening(FULL | tls | {"users_file": str(users_file)}) as room:
        silent = [await room.connect(source=f"127.3.0.{number + 1}") for number in range(6)]

        assert await silent[5].rest() == b""
        assert room.observer.refusals == [("connect", "421 4.7.0 Too many connections")]
        user = await room.connect(ssl.create_default_context(cafile=certificates.ca), source="127.0.0.1")
        assert codes(await user.reply()) == [220]
        for each in silent:
            await each.close()
        await until(lambda: room.listener.admission.total == 1)


async def test_a_user_who_logs_in_leaves_the_strangers_share(users_file: Path) -> None:
    policy = {"clients": [], "max_connections": 10, "users_file": str(users_file)}
    async with listening(policy) as room:
        user = await room.greeted(source="127.0.0.1")
        assert codes(await user.ask(b"AUTH PLAIN " + GOOD)) == [235]
        await _strangers(room, 30)
        assert room.listener.admission.total == 6
        await user.send(TRANSACTION + b"x\r\n.\r\n")
        assert codes(b"".join(await user.replies(4))) == [250, 250, 354, 250]


@pytest.mark.asyncio(loop_factories=["asyncio"])  # uvloop's time passes by itself
async def test_a_stranger_has_a_minute_to_log_in(users_file: Path) -> None:
    async with listening(FULL | {"users_file": str(users_file)}) as room:
        user, stranger = await room.greeted(source="127.0.0.2"), await room.greeted(source="127.0.0.3")
        assert codes(await user.ask(b"AUTH PLAIN " + GOOD)) == [235]
        leap(59)
        assert codes(await user.ask(b"NOOP") + await stranger.ask(b"NOOP")) == [250, 250]
        leap(2)
        assert await stranger.rest() == b"421 4.4.2 Timeout, closing the connection\r\n"
        assert codes(await user.ask(b"NOOP")) == [250]


@pytest.mark.parametrize(
    "line", [b"NOOP", b"RSET", b"VRFY x", b"HELP", b"EHLO x", b"HELO x", b"MAIL FROM:<a@b>\r\nRSET"]
)
async def test_commands_without_mail_count_as_errors_after_a_hundred(line: bytes) -> None:
    async with listening({"max_errors": 3}) as room:
        told = await room.say(b"EHLO x\r\n" + (line + b"\r\n") * 200)

        assert codes(told)[-1] == 421
        assert len(codes(told)) == 1 + 100 + 3 + 1
        assert room.observer.closed == ["errors"]
