"""Clients that may not relay (yet): few, the first to go, and never in the way of who may."""

import asyncio
import contextlib
import os
import ssl
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from relay.listener import session as session_module
from relay.listener.session import ClientSession
from tests.fakes.certificates import Certificates
from tests.unit.listener.conversation import TRANSACTION, Client, Room, codes, listening, until
from tests.unit.listener.test_auth import GOOD, WRONG

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


async def test_strangers_hold_few_places_where_they_cannot_log_in() -> None:
    async with listening(FULL | {"max_connections": 40}) as room:
        await _strangers(room, 30)

        assert room.listener.open_connections == 4


async def test_stranger_idle_for_longest_is_told_and_closed(users_file: Path) -> None:
    async with listening(FULL | {"users_file": str(users_file)}) as room:
        first, second, *_ = await _strangers(room, 10)
        for _ in range(3):
            # Commands that bring no login nearer are idleness.
            assert codes(await first.ask(b"NOOP")) == [250]
        await room.connect(source="127.0.0.1")
        assert await first.rest() == b"421 4.7.0 Too many connections, this one gives way\r\n"
        assert codes(await second.ask(b"NOOP")) == [250]

        assert room.observer.refusals == [("noop", "421 4.7.0 Too many connections, this one gives way")]
        await until(lambda: room.observer.closed == ["crowded"])


async def test_password_is_a_step_and_who_took_none_since_goes_first(users_file: Path) -> None:
    async with listening(FULL | {"users_file": str(users_file)}) as room:
        guesses = await room.greeted(source="127.9.0.1")
        idle, *_ = await _strangers(room, 9)
        assert codes(await guesses.ask(b"AUTH PLAIN " + WRONG)) == [535]
        await room.greeted(source="127.0.0.1")
        assert codes(await idle.rest()) == [421]
        assert codes(await guesses.ask(b"NOOP")) == [250]


async def test_origin_with_most_strangers_gives_way_first(users_file: Path) -> None:
    async with listening(FULL | {"users_file": str(users_file)}) as room:
        oldest = await room.greeted(source="127.1.0.1")
        for _ in range(30):
            await (await room.connect(source="127.2.0.1")).reply()
        assert codes(await oldest.ask(b"NOOP")) == [250]


async def test_user_logs_in_while_strangers_fill_all_places(users_file: Path) -> None:
    policy = {"clients": [], "max_connections": 10, "users_file": str(users_file)}
    async with listening(policy) as room:
        await _strangers(room, 10)
        user = await room.greeted(source="127.0.0.1")
        assert codes(await user.ask(b"AUTH PLAIN " + GOOD)) == [235]
        await _strangers(room, 30)
        await user.send(TRANSACTION + b"x\r\n.\r\n")
        assert codes(b"".join(await user.replies(4))) == [250, 250, 354, 250]


async def test_stranger_in_its_handshake_gives_way(certificates: Certificates) -> None:
    policy = FULL | {"certificate": str(certificates.cert), "key": str(certificates.key)}
    async with listening(policy | {"tls": "implicit"}) as room:
        silent = await room.connect(source="127.1.0.1")
        await until(lambda: room.listener.open_connections == 1)
        other = await room.connect(source="127.1.0.2")
        assert await silent.rest() == b""
        assert [reply for _, reply in room.observer.refusals] == [
            "421 4.7.0 Too many connections, this one gives way"
        ]
        other.reset()
        await until(lambda: room.listener.open_connections == 0)
    async with listening(policy) as room:
        shaking = await room.greeted(source="127.1.0.1")
        await shaking.ask(b"STARTTLS")
        await room.connect(source="127.1.0.2")
        assert await shaking.rest() == b""


async def test_stranger_under_tls_is_told_before_it_is_closed(certificates: Certificates) -> None:
    policy = FULL | {"certificate": str(certificates.cert), "key": str(certificates.key), "tls": "implicit"}
    async with listening(policy) as room:
        context = ssl.create_default_context(cafile=certificates.ca)
        first = await room.connect(context, source="127.1.0.1")
        assert codes(await first.reply()) == [220]
        second = await room.connect(context, source="127.1.0.2")
        assert codes(await second.reply()) == [220]
        assert await first.rest() == b"421 4.7.0 Too many connections, this one gives way\r\n"
        await until(lambda: room.observer.closed == ["crowded"])


async def test_guess_of_a_stranger_that_gives_way_is_given_back(
    monkeypatch: pytest.MonkeyPatch, users_file: Path
) -> None:
    async with listening(FULL | {"users_file": str(users_file)}) as room:
        reception = room.listener._reception
        asked = asyncio.Event()
        unanswered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def never(_name: str, _password: str) -> bool:
            asked.set()
            return await unanswered

        monkeypatch.setattr(reception.users, "verify", never)
        stranger = await room.greeted(source="127.9.0.1")
        await stranger.send(b"AUTH PLAIN " + GOOD + b"\r\n")
        await asked.wait()
        others = await _strangers(room, 9)
        # The nine came later; that a password was handed over was a step, and is longest ago.
        await room.greeted(source="127.0.0.1")
        assert codes(await stranger.rest()) == [421]
        assert codes(await others[0].ask(b"NOOP")) == [250]
        await until(lambda: not reception.guesses.back_off._begun)
        assert len(reception.guesses.back_off) == 0


@pytest.mark.parametrize("is_before", [False, True])
async def test_stranger_gives_way_in_the_turn_in_which_tls_begins(
    monkeypatch: pytest.MonkeyPatch, certificates: Certificates, is_before: bool
) -> None:
    """Another connection may come before the first step of the session's coroutine."""
    policy = FULL | {"certificate": str(certificates.cert), "key": str(certificates.key), "tls": "implicit"}
    begin = ClientSession.connection_made

    def begin_and_give_way(session: ClientSession, transport: asyncio.BaseTransport) -> None:
        place = session._admitted
        if place is None or place.client.address != "127.1.0.1":
            begin(session, transport)
            return
        # As `enter` has it for a newcomer.
        session._reception.admission.leave(place)
        if is_before:
            place.give_way()
        begin(session, transport)
        if not is_before:
            place.give_way()

    monkeypatch.setattr(ClientSession, "connection_made", begin_and_give_way)
    async with listening(policy) as room:
        context = ssl.create_default_context(cafile=certificates.ca)
        stranger = await room.connect(context, source="127.1.0.1")
        told = await stranger.rest()
        assert is_before or codes(told)[-1:] == [421]
        await room.until_over()
        await until(lambda: not room.sessions)
        trusted = await room.connect(context, source="127.0.0.1")
        assert codes(await trusted.reply()) == [220]
        assert room.listener.open_connections == 1
        assert room.observer.faults == []


@contextlib.contextmanager
def _descriptors_below(ceiling: int) -> Iterator[None]:
    """Hold all descriptors below a number, as files of messages might."""
    held = [os.dup(0)]
    while held[-1] < ceiling:
        held.append(os.dup(0))
    try:
        yield
    finally:
        for fd in held:
            os.close(fd)


@pytest.mark.parametrize("tls", ["starttls", "implicit"])
async def test_stranger_keeps_no_descriptor_from_who_may_relay(certificates: Certificates, tls: str) -> None:
    offered = {"certificate": str(certificates.cert), "key": str(certificates.key), "tls": tls}
    context = ssl.create_default_context(cafile=certificates.ca) if tls == "implicit" else None
    ceiling = 400
    async with listening(FULL | {"max_connections": 30} | offered, ceiling=ceiling) as room:
        strangers = [await room.connect(context, source=f"127.1.0.{n}") for n in (1, 2)]
        for stranger in strangers:
            await stranger.reply()
        with _descriptors_below(ceiling):
            trusted = await room.connect(context, source="127.0.0.1")
            assert codes(await trusted.reply()) == [220]
            assert codes(await strangers[0].rest()) == [421]
        with _descriptors_below(ceiling):
            newest = await room.connect(context, source="127.1.0.3")
            assert codes(await newest.reply()) == [220]
            assert codes(await strangers[1].rest()) == [421]
        assert codes(await trusted.ask(b"NOOP")) == [250]
        assert room.listener.open_connections == 2


async def test_without_strangers_the_descriptors_of_the_disk_are_kept() -> None:
    ceiling = 400
    async with listening(FULL, ceiling=ceiling) as room:
        trusted = await room.greeted(source="127.0.0.1")
        with _descriptors_below(ceiling):
            for source in ("127.0.0.1", "127.1.0.1"):
                late = await room.connect(source=source)
                assert codes(await late.rest()) == [421]
        assert codes(await trusted.ask(b"NOOP")) == [250]


async def test_stranger_waits_a_minute_and_who_may_relay_five(users_file: Path) -> None:
    async with listening(FULL | {"users_file": str(users_file)}) as room:
        now = asyncio.get_running_loop().time()
        stranger = await room.greeted(source="127.1.0.1")
        (session,) = room.sessions
        await until(lambda: session.deadline <= now + 3600)
        assert session.deadline <= asyncio.get_running_loop().time() + 60
        await stranger.ask(b"AUTH PLAIN " + GOOD)
        await until(lambda: now + 290 < session.deadline < now + 3600)


async def test_session_of_a_stranger_ends_after_two_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(FULL) as room:
        stranger = await room.greeted(source="127.1.0.1")
        trusted = await room.greeted(source="127.0.0.1")
        loop = asyncio.get_running_loop()
        later = loop.time() + 121
        monkeypatch.setattr(loop, "time", lambda: later, raising=False)
        assert codes(await stranger.ask(b"NOOP") + await stranger.rest()) == [250, 421]
        assert codes(await trusted.ask(b"NOOP")) == [250]


@pytest.mark.parametrize(
    "line", [b"NOOP", b"RSET", b"VRFY x", b"HELP", b"EHLO x", b"HELO x", b"MAIL FROM:<a@b>\r\nRSET"]
)
async def test_commands_without_mail_count_as_errors_after_a_hundred(line: bytes) -> None:
    async with listening({"max_errors": 3}) as room:
        told = await room.say(b"EHLO x\r\n" + (line + b"\r\n") * 200)

        assert codes(told)[-1] == 421
        assert len(codes(told)) == 1 + 100 + 3 + 1
        assert room.observer.closed == ["errors"]


@pytest.mark.parametrize("line", [b"NOOP", b"RCPT TO:<a@b>"])
async def test_stranger_has_ten_commands(monkeypatch: pytest.MonkeyPatch, line: bytes) -> None:
    monkeypatch.setattr(session_module, "STRANGERS_PAUSE_S", 0)
    async with listening(FULL | {"max_errors": 12}) as room:
        stranger = await room.greeted(source="127.1.0.1")
        await stranger.send((line + b"\r\n") * 30)
        told = codes(await stranger.rest())
        # Refused each time they are errors themselves, and twice none.
        assert len(told) == (9 + 12 if line == b"NOOP" else 12) + 1
        assert told[-1] == 421


async def test_stranger_that_has_to_pause_gives_way(
    monkeypatch: pytest.MonkeyPatch, users_file: Path
) -> None:
    monkeypatch.setattr(session_module, "STRANGERS_PAUSE_S", 3600)
    async with listening(FULL | {"users_file": str(users_file)}) as room:
        stranger = await room.greeted(source="127.1.0.1")
        await stranger.send(b"NOOP\r\n" * 20)
        assert codes(b"".join(await stranger.replies(10))) == [250] * 10
        await _strangers(room, 9)
        await room.greeted(source="127.0.0.1")
        # The others of the twenty were not read, and the one after the tenth not obeyed.
        assert codes(await stranger.rest()) == [421]


async def test_accepted_message_forgives_the_commands_before_it() -> None:
    async with listening({"max_errors": 1}) as room:
        client = await room.greeted()
        for _ in range(3):
            await client.send(b"NOOP\r\n" * 98 + TRANSACTION + b"x\r\n.\r\n")
            assert codes(b"".join(await client.replies(102)))[-1] == 250


async def test_pipelined_commands_take_turns_with_others() -> None:
    async with listening({"max_errors": 1_000_000}) as room:
        client = await room.greeted()
        await client.send(b"EXPN x\r\n" * 5000)
        most, before = 0, 0
        while len(room.observer.refusals) < 5000:
            await asyncio.sleep(0)
            most = max(most, len(room.observer.refusals) - before)
            before = len(room.observer.refusals)
        await client.replies(5000)

        assert 0 < most <= 8
