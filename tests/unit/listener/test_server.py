"""A listener's start and end."""

import asyncio

from relay.smtp import replies
from tests.unit.listener.conversation import TRANSACTION, codes, listening, until


async def test_close_tells_idle_sessions_421_and_lets_no_new_ones_in() -> None:
    async with listening() as room:
        idle = await room.greeted()
        await idle.ask(b"MAIL FROM:<a@b>")
        closing = asyncio.create_task(room.listener.close(30))
        assert await idle.rest() == b"421 4.3.2 The service is shutting down\r\n"
        await idle.close()
        await closing

        assert room.observer.closed == ["shutdown"]
        try:
            await room.connect()
        except ConnectionRefusedError:
            return
        raise AssertionError("somebody still listens")


async def test_content_in_flight_is_taken_before_the_close() -> None:
    async with listening() as room:
        client = await room.greeted()
        await client.send(TRANSACTION + b"one\r\n")
        await client.replies(3)
        closing = asyncio.create_task(room.listener.close(30))
        await until(lambda: all(session.is_stopping for session in room.listener.sessions))
        await client.send(b"two\r\n.\r\n" + TRANSACTION)
        told = await client.rest()
        await client.close()
        await closing

        assert codes(told) == [250, 421]
        assert [message.received for message in room.intake.accepted] == [b"one\r\ntwo\r\n"]


async def test_at_a_close_a_250_comes_alone_and_421_answers_what_follows() -> None:
    """Clients that take two replies in one read for one (dma) would send the message again."""
    async with listening() as room:
        client = await room.greeted()
        await client.send(TRANSACTION + b"one\r\n")
        await client.replies(3)
        room.intake.gate.clear()
        await client.send(b".\r\n")
        await room.intake.is_accepting.wait()
        closing = asyncio.create_task(room.listener.close(30))
        await until(lambda: all(session.is_stopping for session in room.listener.sessions))
        room.intake.gate.set()
        taken = await client.reader.read(65536)
        assert codes(taken) == [250]
        assert codes(await client.ask(b"MAIL FROM:<a@b>") + await client.rest()) == [421]
        await client.close()
        await closing


async def test_at_a_close_421_answers_mail_and_not_the_hello_before_it() -> None:
    """Some clients take any refusal of EHLO for one of the message for good (dma)."""
    async with listening() as room:
        clients = [await room.connect() for _ in range(3)]
        for client in clients:
            await client.reply()
        closing = asyncio.create_task(room.listener.close(30))
        await until(lambda: all(session.is_stopping for session in room.listener.sessions))
        told = [
            await client.ask(hello) + await client.ask(command) + await client.rest()
            for client, hello, command in zip(
                clients,
                (b"EHLO a.example", b"HELO a.example", b"EHLO a.example"),
                (b"MAIL FROM:<a@b>", b"MAIL FROM:<a@b>", b"QUIT"),
                strict=True,
            )
        ]
        for client in clients:
            await client.close()
        await closing

        assert [codes(each) for each in told] == [[250, 421], [250, 421], [250, 221]]
        assert sorted(room.observer.closed) == ["quit", "shutdown", "shutdown"]
        assert room.observer.refusals == [("mail", replies.CLOSING)] * 2


async def test_deadline_of_the_close_cuts_off_what_is_left() -> None:
    async with listening() as room:
        receiving = await room.greeted()
        await receiving.send(TRANSACTION + b"one\r\n")
        await receiving.replies(3)
        storing = await room.greeted()
        room.intake.gate.clear()
        await storing.send(TRANSACTION + b"x\r\n.\r\n")
        await room.intake.is_accepting.wait()
        await room.listener.close(0)
        # Its accept was cancelled: from then on the draft is the intake's affair.
        room.intake.discarded.append(room.intake.drafts[1].queue_id)

        assert room.sessions == []
        assert room.intake.accepted == []
        assert sorted(room.observer.closed) == ["shutdown", "shutdown"]
        assert b"250 2.0.0" not in await storing.rest()
