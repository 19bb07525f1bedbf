"""Content on its way out: streamed, held back, cut short, broken; never changed, never ended too early."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from relay.mail.envelope import Shape
from relay.smtp.dot_stuffing import UnsendableContent
from relay.upstream.timeouts import Timeouts
from relay.upstream.transaction import Transaction
from relay.verdicts.verdict import Verdict
from tests.fakes.smarthost import DEAF, SILENCE, During, Script, Smarthost, Turn, Until
from tests.unit.upstream.sessions import RECIPIENTS, SENDER, SOON_S, account, connected, transaction, verdicts

RELAYED, DEFER, BOUNCE, PAUSE = Verdict.RELAYED, Verdict.DEFER, Verdict.BOUNCE, Verdict.PAUSE
LINE = b"0123456789" * 7 + b"\r\n"


async def test_content_waits_for_an_upstream_that_does_not_read() -> None:
    go_on, asked = asyncio.Event(), 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal asked
        for _ in range(400):
            asked += 1
            yield LINE * 900
        yield b".\r\n"

    script = Script(content=During(1000, Until(go_on)))
    async with Smarthost(script) as host, connected(account(host)) as connection:
        shape = Shape(400 * 900 * len(LINE) + 3, eight_bit=False, smtputf8=False)
        sending = asyncio.create_task(connection.transact(Transaction(SENDER, RECIPIENTS, shape, endless)))
        before = -1
        while asked != before:  # until nothing moves any more
            before = asked
            for _ in range(200):
                await asyncio.sleep(0)
        stalled_at = asked
        go_on.set()

        assert verdicts(await sending) == [RELAYED] * 3
        assert stalled_at < 400  # 26 MB would have been in memory
        assert len(host.relayed[0].content) == shape.size_bytes


# Only the time that is over: while the other one reads, this machine may stall for longer.
@pytest.mark.parametrize(
    ("turn", "timeouts"),
    [(SILENCE, Timeouts(eod_s=SOON_S)), (DEAF, Timeouts(block_s=SOON_S))],
    ids=["reads", "does not read"],
)
async def test_an_upstream_that_does_not_take_the_content_is_given_up(turn: Turn, timeouts: Timeouts) -> None:
    chunks = [LINE * 900] * 300
    script = Script(content=During(1000, turn))
    async with Smarthost(script) as host, connected(account(host), timeouts) as connection:
        outcome = await connection.transact(transaction(chunks=chunks))

        assert verdicts(outcome) == [DEFER] * 3
        # One that reads to the end may have taken it.
        assert outcome.is_ambiguous == (turn is SILENCE)
        assert not connection.is_usable


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("552 5.3.4 too big", DEFER),  # it came before the dot: to be said again
        ("451 4.3.0 out of disk", DEFER),
        ("421 4.3.2 going down", PAUSE),
        ("250 2.0.0 taken already", DEFER),
        (b"rubbish\r\n", DEFER),
    ],
)
async def test_a_reply_in_the_middle_of_the_content_ends_it(said: str | bytes, expected: Verdict) -> None:
    script = Script(content=During(1000, [said, DEAF]))
    async with Smarthost(script) as host, connected(account(host)) as connection:
        outcome = await connection.transact(transaction(chunks=[LINE * 900] * 300))

        assert verdicts(outcome) == [expected] * 3
        assert not outcome.is_ambiguous
        assert not host.transactions
        assert not connection.is_usable


@pytest.mark.parametrize(
    "end", [OSError("the disk is gone"), b"no end", b"bare\nnewline\r\n", b"bare\rreturn\r\n"]
)
async def test_unreadable_content_is_not_relayed_and_the_error_passed_on(end: OSError | bytes) -> None:
    is_closed = False

    async def broken() -> AsyncIterator[bytes]:
        nonlocal is_closed
        try:
            yield LINE * 2000
            if isinstance(end, OSError):
                raise end
            yield end
        finally:
            is_closed = True

    async with Smarthost() as host, connected(account(host)) as connection:
        shape = Shape(len(LINE) * 2000, eight_bit=False, smtputf8=False)
        with pytest.raises((OSError, UnsendableContent)):
            await connection.transact(Transaction(SENDER, RECIPIENTS, shape, broken))
        await host.until(lambda: not host.sessions[0].is_open)

        assert is_closed
        assert not host.transactions
        assert not connection.is_usable
