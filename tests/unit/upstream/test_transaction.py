"""Transactions: what goes out, and what becomes of it, with an upstream that keeps to RFC 5321."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from relay.clock import SECOND_NS
from relay.mail.dsn import NOTHING_ASKED, DsnRequest, RecipientRequest, Ret
from relay.mail.envelope import Shape
from relay.smtp.dot_stuffing import UnsendableContent
from relay.smtp.reply import Phase
from relay.upstream.protocol import Timeouts
from relay.upstream.transaction import Transaction, why_unfit
from relay.verdicts.verdict import Verdict
from tests.fakes.smarthost import DEAF, SILENCE, During, Script, Smarthost, Turn, Until, at, turns
from tests.unit.upstream.sessions import (
    CONTENT,
    RECIPIENTS,
    SENDER,
    SOON_S,
    account,
    connected,
    transaction,
    verdicts,
)

RELAYED, DEFER, LATER, BOUNCE, PAUSE = (
    *(Verdict.RELAYED, Verdict.DEFER, Verdict.LATER, Verdict.BOUNCE, Verdict.PAUSE),
)
LINE = b"0123456789" * 7 + b"\r\n"


async def test_a_message_arrives_unchanged_with_its_envelope() -> None:
    async with Smarthost() as host, connected(account(host)) as connection:
        outcome = await connection.transact(transaction())

        assert verdicts(outcome) == [RELAYED] * 3
        assert {answer.text for answer in outcome.answers} == {"250 2.0.0 taken"}
        assert (outcome.is_ambiguous, outcome.pause) == (False, None)
        (recorded,) = host.relayed
        assert (recorded.reverse_path, recorded.recipients) == (SENDER, list(RECIPIENTS))
        assert recorded.content == CONTENT
        assert recorded.raw == CONTENT.replace(b"\r\n.", b"\r\n..") + b".\r\n"
        assert connection.is_usable


@pytest.mark.parametrize(
    ("extensions", "eight_bit", "smtputf8", "expected"),
    [
        ((), False, False, ""),
        (("SIZE",), False, False, " SIZE=31"),
        (("SIZE 1000", "8BITMIME", "SMTPUTF8"), False, False, " SIZE=31"),
        (("SIZE 0", "8BITMIME"), True, False, " SIZE=31 BODY=8BITMIME"),
        (("size x", "8bitMime"), True, False, " SIZE=31 BODY=8BITMIME"),
        (("8BITMIME", "SMTPUTF8"), True, True, " BODY=8BITMIME SMTPUTF8"),
    ],
)
async def test_mail_has_the_parameters_that_are_offered_and_needed(
    extensions: tuple[str, ...], eight_bit: bool, smtputf8: bool, expected: str
) -> None:
    async with Smarthost(extensions=extensions) as host, connected(account(host)) as connection:
        sent = transaction(eight_bit=eight_bit, smtputf8=smtputf8, size_bytes=31)
        assert why_unfit(connection.extensions, sent.shape) is None
        assert verdicts(await connection.transact(sent)) == [RELAYED] * 3

        assert host.commands[1] == f"MAIL FROM:<{SENDER}>{expected}"


@pytest.mark.parametrize(
    ("shape", "status"),
    [
        (Shape(10, eight_bit=True, smtputf8=False), "4.6.3"),
        (Shape(10, eight_bit=True, smtputf8=True), "4.6.7"),
        (Shape(1001, eight_bit=False, smtputf8=False), "4.3.4"),
    ],
)
async def test_a_message_that_a_connection_cannot_carry_gets_no_mail(shape: Shape, status: str) -> None:
    async with Smarthost(extensions=("SIZE 1000",)) as host, connected(account(host)) as connection:
        refusal = why_unfit(connection.extensions, shape)

        assert refusal is not None
        assert (refusal.verdict, refusal.status, refusal.reply) == (DEFER, status, None)
        assert host.commands == ["EHLO client.example"]


@pytest.mark.parametrize("phase", ["rcpt", "eod"])
async def test_a_cancelled_transaction_closes_the_connection(phase: str) -> None:
    async with Smarthost(at(phase, SILENCE)) as host, connected(account(host)) as connection:
        sending = asyncio.create_task(connection.transact(transaction()))
        await host.until(
            lambda: host.transactions if phase == "eod" else host.commands[-1].startswith("RCPT")
        )
        sending.cancel()

        with pytest.raises(asyncio.CancelledError):
            await sending
        assert not connection.is_usable
        await host.until(lambda: not host.sessions[0].is_open)
        assert not host.relayed


@pytest.mark.parametrize(
    ("phase", "longest_ns"), [("mail", SECOND_NS // 10), ("data", SECOND_NS // 10), ("", 0)]
)
async def test_a_transaction_ends_within_its_longest_time(phase: str, longest_ns: int) -> None:
    # Each step could take minutes, and a third of the whole is kept for the reply to the dot.
    script, timeouts = at(phase, SILENCE) if phase else Script(), Timeouts(eod_s=100.0)
    async with Smarthost(script) as host, connected(account(host), timeouts) as connection:
        outcome = await connection.transact(transaction()._replace(longest_ns=longest_ns))

        assert verdicts(outcome) == [DEFER] * 3
        assert not host.transactions
        assert not connection.is_usable
        assert phase or host.commands == ["EHLO client.example"]


# Content: streamed, held back, cut short, broken; never changed, never ended too early.


async def test_content_waits_for_an_upstream_that_does_not_read() -> None:
    go_on, asked = asyncio.Event(), 0

    async def endless() -> AsyncGenerator[bytes, None]:
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
        assert stalled_at < 400  # otherwise 26 MB would be in memory
        assert len(host.relayed[0].content) == shape.size_bytes


# Only the timeout under test is short: this host may stall for longer while the upstream reads.
@pytest.mark.parametrize(
    ("turn", "timeouts"),
    [(SILENCE, Timeouts(eod_s=SOON_S)), (DEAF, Timeouts(block_s=SOON_S))],
    ids=["reads", "does not read"],
)
async def test_an_upstream_that_does_not_take_the_content_times_out(turn: Turn, timeouts: Timeouts) -> None:
    script = Script(content=During(1000, turn))
    async with Smarthost(script) as host, connected(account(host), timeouts) as connection:
        outcome = await connection.transact(transaction(chunks=[LINE * 900] * 300))

        assert verdicts(outcome) == [DEFER] * 3
        # An upstream that reads to the end may have taken the message.
        assert outcome.is_ambiguous == (turn is SILENCE)
        assert not connection.is_usable


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("552 5.3.4 too big", DEFER),  # before the dot a refusal is not final
        ("421 4.3.2 going down", PAUSE),
        ("250 2.0.0 taken already", DEFER),
        (b"rubbish\r\n", DEFER),
    ],
)
async def test_a_reply_amid_the_content_ends_the_transaction(said: str | bytes, expected: Verdict) -> None:
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
async def test_unreadable_content_is_not_relayed_and_raises_its_error(end: OSError | bytes) -> None:
    is_closed = False

    async def broken() -> AsyncGenerator[bytes, None]:
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


async def test_a_command_with_a_line_break_is_not_sent() -> None:
    async with Smarthost() as host, connected(account(host)) as connection:
        with pytest.raises(ValueError, match="control character") as caught:
            await connection.transact(transaction(reverse_path="a>\r\nRCPT TO:<b"))

        assert "RCPT" not in str(caught.value)
        assert host.commands == ["EHLO client.example"]


NOTIFY = DsnRequest(recipients=(RecipientRequest("NEVER"), RecipientRequest(), RecipientRequest()))
RET = DsnRequest(Ret.HDRS)
RET_AND_NOTIFY = DsnRequest(Ret.HDRS, recipients=NOTIFY.recipients)


@pytest.mark.parametrize(
    ("refuses", "reply", "dsn", "expected"),
    [
        # A refusal of parameters refuses no recipient; they are not sent again.
        *(("MAIL", reply, RET_AND_NOTIFY, "LLL!") for reply in (
            "555 5.5.4 what?", "501 syntax", "504 5.5.4 no", "500 too long")),
        ("<a@", "555 5.5.4 no", RET_AND_NOTIFY, "LRR!"),
        # A refusal of an address, or of a command without parameters.
        *(("<a@", reply, RET_AND_NOTIFY, "BRR") for reply in ("501 5.1.3 bad address", "553 5.5.4 no")),
        ("MAIL", "501 5.5.2 what?", NOTIFY, "BBB"),
        *(("<b@", "501 5.5.2 what?", dsn, "RBR") for dsn in (RET, NOTIFY, NOTHING_ASKED)),
    ],
)  # fmt: skip
async def test_a_refusal_of_dsn_parameters_refuses_no_recipient(
    refuses: str, reply: str, dsn: DsnRequest, expected: str
) -> None:
    script = Script(rcpt=lambda argument: reply if refuses in argument else "250 ok")
    if refuses == "MAIL":
        script = Script(mail=turns(reply))
    async with (
        Smarthost(script, extensions=(*Smarthost.EXTENSIONS, "DSN")) as host,
        connected(account(host)) as connection,
    ):
        outcome = await connection.transact(transaction()._replace(dsn=dsn))

    letters = {RELAYED: "R", LATER: "L", BOUNCE: "B"}
    told = "".join(letters[answer.verdict] for answer in outcome.answers)
    assert told + "!" * outcome.is_dsn_refused == expected
    assert all(answer.phase is Phase.MAIL for answer in outcome.answers if answer.verdict is LATER)
    assert outcome.pause is None
