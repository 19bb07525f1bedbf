"""Limits on connections, time and sessions without a login; and the close of a listener."""

import asyncio
import socket
import tracemalloc
from pathlib import Path

import pytest

from relay.listener import wire
from tests.fakes.certificates import Certificates
from tests.unit.listener.conversation import (
    GOOD,
    TRANSACTION,
    Client,
    Room,
    closing,
    codes,
    leap,
    listening,
    until,
)

FULL = {"clients": ["127.0.0.1/32"], "max_connections": 10}
"""The client that may relay is 127.0.0.1; strangers come from elsewhere in 127/8."""
TOO_MANY = b"421 4.7.0 Too many connections\r\n"
TIMEOUT = b"421 4.4.2 Timeout, closing the connection\r\n"
own_time = pytest.mark.asyncio(loop_factories=["asyncio"])
"""A test cannot move the time of uvloop."""


async def _come(room: Room, *sources: str) -> tuple[list[Client], list[int]]:
    """Connect from each address in turn; return the clients and the code that each one got."""
    came = [await room.connect(source=source) for source in sources]
    return came, codes(b"".join([await client.reply() for client in came]))


def _strangers(number: int) -> list[str]:
    return [f"127.1.0.{each + 1}" for each in range(number)]


@pytest.mark.parametrize(("has_users", "share"), [(False, 4), (True, 20)])
async def test_strangers_have_a_fixed_share_and_one_origin_a_part_of_it(
    users_file: Path, has_users: bool, share: int
) -> None:
    policy = FULL | {"max_connections": 40} | ({"users_file": str(users_file)} if has_users else {})
    async with listening(policy) as room:
        same, told = await _come(room, *["127.7.0.1"] * 20)
        assert told == [220] * min(share, 10) + [421] * (20 - min(share, 10))
        await _come(room, *_strangers(30))
        assert room.listener.admission.total == share
        _, told = await _come(room, *["127.0.0.1"] * (40 - share))
        assert told == [220] * (40 - share)
        for source in ("127.0.0.1", "127.9.0.1"):
            late = await room.connect(source=source)
            assert await late.rest() == TOO_MANY
        assert room.observer.refusals[-1] == ("connect", TOO_MANY.decode().rstrip())

        # A client that leaves makes room for another one.
        assert codes(await same[0].ask(b"QUIT")) == [221]
        await until(lambda: room.listener.admission.total == 39)
        assert (await _come(room, "127.9.0.1"))[1] == [220]


async def test_silent_handshakes_hold_only_the_strangers_share(
    users_file: Path, certificates: Certificates
) -> None:
    async with listening(FULL | certificates.policy("implicit") | {"users_file": str(users_file)}) as room:
        silent = [await room.connect(source=source) for source in _strangers(6)]

        assert await silent[5].rest() == b""
        assert room.observer.refusals == [("connect", TOO_MANY.decode().rstrip())]
        user = await room.connect(source="127.0.0.1")
        await user.start_tls(certificates.ca)
        assert await user.codes(1) == [220]
        for each in silent:
            await each.close()
        await until(lambda: room.listener.admission.total == 1)


@own_time
async def test_a_stranger_has_a_minute_to_log_in_and_a_user_is_no_stranger(users_file: Path) -> None:
    async with listening(FULL | {"clients": [], "users_file": str(users_file)}) as room:
        user = await room.greeted(source="127.0.0.1")
        assert codes(await user.ask(b"AUTH PLAIN " + GOOD)) == [235]
        strangers, _ = await _come(room, *_strangers(30))
        assert room.listener.admission.total == 6
        leap(59)
        assert codes(await user.ask(b"NOOP") + await strangers[0].ask(b"NOOP")) == [250, 250]
        leap(2)
        assert await strangers[0].rest() == TIMEOUT
        assert codes(await user.ask(b"NOOP")) == [250]


async def test_client_that_reads_no_replies_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LINGER_S", 0.1)
    policy = {"timeouts": {"command": "300ms"}, "max_errors": 10_000_000}
    async with listening(policy, "long-replies-" * 20) as room:
        client = await room.connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is one of both directions
        client.writer.transport.set_write_buffer_limits(high=1 << 30)
        client.writer.write(b"EHLO x\r\n" * 20_000)
        tracemalloc.start()
        await until(lambda: room.observer.closed == ["timeout"])
        _, most_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        assert most_bytes < 3 * (wire.READ_AHEAD_BYTES + 256 * 1024)
        client.reset()


@pytest.mark.parametrize(
    ("phase", "sent", "replied"),
    [
        ("command", b"EHLO x\r\n", [220, 250]),
        ("command", b"EHLO x\r\nMAIL FR", [220, 250]),
        ("command", b"EHLO x\r\n" + TRANSACTION + b"x\r\n.\r\n", [220, 250, 250, 250, 354, 250]),
        ("content", b"EHLO x\r\n" + TRANSACTION + b"x\r\n.\r", [220, 250, 250, 250, 354]),
        ("transfer", b"EHLO x\r\n" + TRANSACTION, [220, 250, 250, 250, 354]),
        ("session", b"EHLO x\r\n", [220, 250]),
    ],
)
@own_time
async def test_a_silent_client_gets_421_after_the_timeout_of_its_phase(
    phase: str, sent: bytes, replied: list[int]
) -> None:
    timeouts = dict.fromkeys(("command", "content", "transfer", "session"), "1d") | {phase: "1000s"}
    async with listening({"timeouts": timeouts}) as room:
        client = await room.connect()
        await client.send(sent)
        assert await client.codes(len(replied)) == replied
        leap(1001)

        assert await client.rest() == TIMEOUT
        await client.close()
        await room.until_over()
        assert room.observer.closed == ["timeout"]


@own_time
async def test_a_session_does_not_time_out_while_its_message_is_stored() -> None:
    async with listening() as room:
        room.intake.gate.clear()
        client, other = await room.connect(), await room.greeted()
        await client.send(b"EHLO x\r\n" + TRANSACTION + b"x\r\n.\r\n")
        await room.intake.is_accepting.wait()
        leap(86400)
        assert codes(await other.rest()) == [421]
        room.intake.gate.set()

        assert codes(await client.rest()) == [220, 250, 250, 250, 354, 250, 421]


async def test_trickled_content_ends_at_the_transfer_timeout() -> None:
    async with listening({"timeouts": {"transfer": "100ms"}}) as room:
        client = await room.sending()
        reading = asyncio.create_task(client.rest())
        while not reading.done():
            client.writer.write(b"x")
            await asyncio.sleep(0)

        assert codes(reading.result()) == [421]
        assert room.intake.accepted == []


async def test_close_sends_421_to_idle_sessions_and_accepts_no_new_ones() -> None:
    async with listening() as room:
        idle = await room.greeted()
        await idle.ask(b"MAIL FROM:<a@b>")
        ended = asyncio.create_task(room.listener.close(30))
        assert await idle.rest() == b"421 4.3.2 The service is shutting down\r\n"
        await idle.close()
        await ended

        assert room.observer.closed == ["shutdown"]
        with pytest.raises(ConnectionRefusedError):
            await room.connect()


async def test_at_a_close_content_in_flight_gets_250_and_only_the_next_command_gets_421() -> None:
    """A client that takes two replies in one read for one (dma) would send the message again."""
    async with listening() as room:
        client = await room.sending()
        await client.send(b"one\r\n")
        async with closing(room):
            await client.send(b"two\r\n.\r\n")
            assert codes(await client.reader.read(65536)) == [250]
            assert codes(await client.ask(b"MAIL FROM:<a@b>") + await client.rest()) == [421]
            await client.close()
        assert [message.received for message in room.intake.accepted] == [b"one\r\ntwo\r\n"]


async def test_at_a_close_421_answers_mail_and_not_the_hello_before_it() -> None:
    """Some clients (dma) return the message for good if EHLO is refused."""
    async with listening() as room:
        clients, _ = await _come(room, *["127.0.0.1"] * 3)
        commands = [(b"EHLO a", b"MAIL FROM:<a@b>"), (b"HELO a", b"MAIL FROM:<a@b>"), (b"EHLO a", b"QUIT")]
        async with closing(room):
            told = []
            for client, (hello, command) in zip(clients, commands, strict=True):
                told.append(codes(await client.ask(hello) + await client.ask(command) + await client.rest()))
                await client.close()

        assert told == [[250, 421], [250, 421], [250, 221]]
        assert sorted(room.observer.closed) == ["quit", "shutdown", "shutdown"]
        assert [phase for phase, _ in room.observer.refusals] == ["mail", "mail"]


# A socket that the kernel gave in the very step of the close is closed by its destructor.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_close_at_any_step_of_an_accept_causes_no_fault() -> None:
    for steps in range(8):
        async with listening() as room:
            address = room.listener.address
            with socket.create_connection((address.host, address.port)):
                for _ in range(steps):
                    await asyncio.sleep(0)
                await room.listener.close(0)

            assert room.observer.faults == []
            assert room.sessions == []


async def test_the_deadline_of_the_close_aborts_the_sessions_that_are_left() -> None:
    async with listening() as room:
        receiving, storing = await room.sending(), await room.sending()
        await receiving.send(b"one\r\n")
        room.intake.gate.clear()
        await storing.send(b"x\r\n.\r\n")
        await room.intake.is_accepting.wait()
        await room.listener.close(0)

        assert room.sessions == []
        assert room.intake.accepted == []
        assert sorted(room.observer.closed) == ["shutdown", "shutdown"]
        assert b"250 2.0.0" not in await storing.rest()
