"""Content over a real socket: what is taken, what is refused, and what it costs."""

import pytest

from relay.listener.session import SPILL_BYTES
from relay.smtp.commands import Refused
from tests.fakes.intake import MemoryIntake
from tests.unit.listener.conversation import TRANSACTION, Client, Room, codes, listening

LOOKALIKES = [
    before + dot + after
    for before in (b"\r\n", b"\n", b"\r", b"\n\r", b"\r\n\0", b"\r\r\n", b"\r\n\r", b"\0")
    for dot in (b".", b"..", b".\0", b". ")
    for after in (b"\r\n", b"\n", b"\r", b"\n\r", b"\r\r\n", b"\0\r\n", b" \r\n")
    if b"\r\n.\r\n" not in before + dot + after
]


async def _sending(room: Room) -> Client:
    """Return a client that was told 354."""
    client = await room.greeted()
    await client.send(TRANSACTION)
    assert codes(b"".join(await client.replies(3))) == [250, 250, 354]
    return client


async def test_no_lookalike_of_the_end_smuggles_a_second_message() -> None:
    """Each in one write, with a whole transaction behind it: one message or none, never two."""
    async with listening({"max_errors": 1000}) as room:
        client = await room.greeted()
        for lookalike in LOOKALIKES:
            before = len(room.intake.accepted)
            smuggled = TRANSACTION.replace(b"a@", b"evil@") + b"spam"
            await client.send(TRANSACTION + b"x" + lookalike + smuggled + b"\r\n.\r\nNOOP\r\n")
            *_, content, noop = await client.replies(5)
            assert noop == b"250 2.0.0 Ok\r\n"
            if content.startswith(b"250 "):
                (message,) = room.intake.accepted[before:]
                assert smuggled in message.received
                assert message.envelope.reverse_path == "a@example.org"
            else:
                assert content.startswith(b"550 5.6.0 ")
                assert len(room.intake.accepted) == before


async def test_bare_newlines_are_mended_for_the_networks_named() -> None:
    async with listening({"normalise_from": ["127.0.0.2", "127.0.1.0/24"]}) as room:
        for source, is_mended in (("127.0.0.1", False), ("127.0.0.2", True), ("127.0.1.9", True)):
            client = await room.greeted(source=source)
            await client.send(TRANSACTION + b"a\nb\n..c\rd\r\n..e\r\n.\r\n")
            *_, told = await client.replies(4)
            assert codes(told) == [250 if is_mended else 550]
        assert [message.received for message in room.intake.accepted] == [b"a\r\nb\r\n.c\r\nd\r\n.e\r\n"] * 2


async def test_intake_without_room_refuses_at_mail() -> None:
    async with listening() as room:
        room.intake.refuses = "452 4.3.1 Insufficient system storage"
        client = await room.greeted()
        assert await client.ask(b"MAIL FROM:<a@b>") == b"452 4.3.1 Insufficient system storage\r\n"
        room.intake.refuses = None
        assert (await client.ask(b"MAIL FROM:<a@b>")).startswith(b"250 ")


async def test_disk_full_at_accept_or_spill_is_the_intakes_reply() -> None:
    async with listening() as room:
        client = await _sending(room)
        room.intake.accept_error = Refused("452 4.3.1 Insufficient system storage")
        assert await client.ask(b"x\r\n.") == b"452 4.3.1 Insufficient system storage\r\n"
        room.intake.discarded.append(room.intake.drafts[-1].queue_id)  # the intake's own doing
        room.intake.spill_error = room.intake.accept_error
        await client.send(TRANSACTION)
        await client.replies(3)
        await client.send(b"x" * (2 * SPILL_BYTES))
        assert await client.ask(b"\r\n.") == b"452 4.3.1 Insufficient system storage\r\n"

        assert room.observer.faults == []
        assert await client.ask(b"NOOP") == b"250 2.0.0 Ok\r\n"


@pytest.mark.parametrize("where", ["accept_error", "spill_error"])
async def test_fault_of_ours_is_451_and_says_nothing(where: str) -> None:
    async with listening() as room:
        client = await _sending(room)
        error = OSError(28, "secret detail")
        setattr(room.intake, where, error)
        await client.send(b"x" * (2 * SPILL_BYTES))
        assert await client.ask(b"\r\n.") == b"451 4.3.0 Internal error, try again later\r\n"
        if where == "accept_error":
            room.intake.discarded.append(room.intake.drafts[-1].queue_id)  # the intake's own doing

        assert await client.rest() == b""
        assert room.observer.faults == [error]


async def test_fault_in_the_middle_of_content_ends_the_session() -> None:
    """What follows could be content: it must not be read as commands."""
    async with listening() as room:
        client = await _sending(room)
        room.intake.drafts[-1].append_error = RuntimeError("secret detail")
        await client.send(b"x" * 200_000 + b"\r\nNOOP\r\n")
        assert await client.rest() == b"451 4.3.0 Internal error, try again later\r\n"
        await client.close()
        await room.until_over()
        assert room.observer.closed == ["fault"]


async def test_stream_without_an_end_is_cut_off_and_never_held() -> None:
    """200 MB offered to a limit of 1 MiB: what is read and what is held stay bounded."""
    offered = 0
    async with listening({"max_size": 1 << 20}, MemoryIntake(keeps_spilled=False)) as room:
        client = await _sending(room)
        block = b"x" * (1 << 20)
        try:
            while offered < 200 * len(block):
                await client.send(block)
                offered += len(block)
        except ConnectionError:
            pass
        told = await client.rest()
        await room.until_over()

        (draft,) = room.intake.drafts
        assert told in (b"", b"552 5.3.4 The message exceeds the size limit\r\n")
        assert offered < 100 * len(block)
        assert draft.spilled_bytes + len(draft.buffer) <= 1 << 20
        assert draft.most_buffered_bytes <= SPILL_BYTES + 512 * 1024
        assert room.observer.closed == ["refused"]


async def test_large_message_is_spilled_in_pieces_and_arrives_whole() -> None:
    content = b"".join(b"%07d .%s\r\n" % (n, b"x" * (n % 300)) for n in range(20_000))
    async with listening() as room:
        client = await _sending(room)
        await client.send(content + b".\r\n")
        assert (await client.reply()).startswith(b"250 ")

        assert room.intake.accepted[0].received == content
        assert room.intake.drafts[0].spilled_bytes > len(content) - 2 * SPILL_BYTES
        assert room.intake.drafts[0].most_buffered_bytes <= SPILL_BYTES + 512 * 1024


@pytest.mark.parametrize("ending", ["half_close", "reset"])
async def test_end_of_input_at_every_octet_crashes_nothing(ending: str) -> None:
    wire = b"EHLO x\r\n" + TRANSACTION + b"a\r\n.\r\nQUIT\r\n"
    whole = wire.index(b"\r\n.\r\n") + 5
    async with listening() as room:
        for length in range(len(wire)):
            before = len(room.intake.accepted)
            client = await room.connect()
            await client.send(wire[:length])
            if ending == "reset":
                client.reset()
            else:
                client.half_close()
                assert (await client.rest()).startswith(b"220 ")
                assert len(room.intake.accepted) - before == (length >= whole)
            await client.close()
            await room.until_over()

        assert room.observer.faults == []
