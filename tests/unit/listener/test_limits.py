"""What a client may not do without end: connect, name recipients, err, send long lines, wait."""

import asyncio
import tracemalloc

import pytest

from relay.listener import wire
from tests.unit.listener.conversation import TRANSACTION, codes, leap, listening, until


async def test_connections_in_all_are_limited_and_freed_again() -> None:
    async with listening({"max_connections": 2}) as room:
        first, _ = [await room.greeted() for _ in range(2)]
        refused = await room.connect()
        assert await refused.rest() == b"421 4.7.0 Too many connections\r\n"
        await first.ask(b"QUIT")
        await first.rest()
        await first.close()
        await until(lambda: room.listener.admission.total == 1)
        await room.greeted()

        assert room.observer.refusals == [("connect", "421 4.7.0 Too many connections")]


async def test_recipients_above_the_limit_are_for_the_next_transaction() -> None:
    """RFC 5321, 4.5.3.1.10; the session must survive it, and 50,000 of them at once."""
    async with listening({"max_recipients": 100, "max_errors": 5}) as room:
        client = await room.greeted()
        recipients = b"".join(b"RCPT TO:<user%d@example.org>\r\n" % n for n in range(50_000))
        wire = b"MAIL FROM:<a@b>\r\n" + recipients + b"DATA\r\n.\r\nQUIT\r\n"
        sending = asyncio.create_task(client.send(wire))
        told = await client.rest()
        await sending
        assert told == (
            b"250 2.1.0 Ok\r\n"
            + b"250 2.1.5 Ok\r\n" * 100
            + b"452 4.5.3 Too many recipients\r\n" * 49_900
            + b"354 End with <CRLF>.<CRLF>\r\n250 2.0.0 Ok: queued as 0000000000000000\r\n221 2.0.0 Bye\r\n"
        )

        (message,) = room.intake.accepted
        assert message.envelope.recipients == tuple(f"user{n}@example.org" for n in range(100))


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        (b"NOOP " + b"x" * 2043, b"250 "),
        (b"NOOP " + b"x" * 2044, b"500 5.5.2 The command line is too long"),
        (b"NOOP " + b"x" * 1_000_000, b"500 5.5.2 The command line is too long"),
        (b"NOOP\nRSET", b"500 5.5.2 A command must end in CRLF"),
        (b"NOOP\n", b"500 5.5.2 A command must end in CRLF"),
        (b"NOOP\r", b"500 5.5.2 A command must end in CRLF"),
        (b"\rNOOP", b"500 5.5.2 A command must end in CRLF"),
        (b"MAIL FROM:<a@b>\rRCPT TO:<c@d>", b"500 5.5.2 A command must end in CRLF"),
        (b"NO\0OP", b"500 5.5.2 A command must end in CRLF"),
        (b"\0", b"500 5.5.2 A command must end in CRLF"),
        (b"NOOP\x7f", b"500 5.5.2 A command must end in CRLF"),
        (b"NOOP \t", b"250 "),
    ],
)
async def test_line_that_is_no_command_ends_the_session_at_every_cut(line: bytes, reply: bytes) -> None:
    async with listening() as room:
        wire = line + b"\r\nVRFY x\r\n"
        cuts = range(1, len(wire)) if len(wire) < 100 else (1, 2048, 2049, 2050, len(wire) - 9)
        for cut in cuts:
            client = await room.greeted()
            await client.send(wire[:cut])
            await asyncio.sleep(0)
            await client.send(wire[cut:])
            client.half_close()
            told = await client.rest()
            assert told.startswith(reply)
            assert codes(told) == ([250, 252] if reply == b"250 " else [500])
            await client.close()


async def test_client_that_reads_no_replies_fills_no_memory() -> None:
    async with listening({"timeouts": {"command": "300ms"}, "max_errors": 10_000_000}) as room:
        client = await room.connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is one of both directions
        client.writer.transport.set_write_buffer_limits(high=1 << 30)
        client.writer.write(b"EHLO x\r\n" * 2_000_000)
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
@pytest.mark.asyncio(loop_factories=["asyncio"])  # uvloop's time passes by itself
async def test_silent_client_is_told_421_after_the_time_of_its_phase(
    phase: str, sent: bytes, replied: list[int]
) -> None:
    timeouts = {
        name: "1000s" if name == phase else "1d" for name in ("command", "content", "transfer", "session")
    }
    async with listening({"timeouts": timeouts}) as room:
        client = await room.connect()
        await client.send(sent)
        assert codes(b"".join(await client.replies(len(replied)))) == replied
        leap(1001)

        assert await client.rest() == b"421 4.4.2 Timeout, closing the connection\r\n"
        await client.close()
        await room.until_over()
        assert room.observer.closed == ["timeout"]


@pytest.mark.asyncio(loop_factories=["asyncio"])  # uvloop's time passes by itself
async def test_session_is_not_timed_out_while_we_store() -> None:
    async with listening() as room:
        room.intake.gate.clear()
        client, other = await room.connect(), await room.greeted()
        await client.send(b"EHLO x\r\n" + TRANSACTION + b"x\r\n.\r\n")
        await room.intake.is_accepting.wait()
        leap(86400)
        assert codes(await other.rest()) == [421]
        room.intake.gate.set()

        assert codes(await client.rest()) == [220, 250, 250, 250, 354, 250, 421]


async def test_trickled_content_does_not_outlive_the_transfer() -> None:
    async with listening({"timeouts": {"transfer": "100ms"}}) as room:
        client = await room.greeted()
        await client.send(TRANSACTION)
        await client.replies(3)
        reading = asyncio.create_task(client.rest())
        while not reading.done():
            client.writer.write(b"x")
            await asyncio.sleep(0)

        assert codes(reading.result()) == [421]
        assert room.intake.accepted == []
