"""The catalogue of upstreams that do not keep to RFC 5321: every phase, every fault.

The law of the whole table: a recipient counts as relayed exactly if a perfect 250 answered
the final dot; it bounces only by a perfect 5yz that answered its own command; where the
dot is out and no proper reply came, the outcome says that nobody knows.
"""

import asyncio
from dataclasses import replace

import pytest

from relay.smtp.reply import Phase
from relay.upstream.connection import Connection
from relay.upstream.timeouts import Timeouts
from relay.verdicts.outcome import Outcome
from relay.verdicts.verdict import Verdict
from tests.fakes.smarthost import (
    CLOSE,
    DEFAULT,
    GAP,
    HALF_CLOSE,
    PATIENCE_S,
    RESET,
    SILENCE,
    Drip,
    Script,
    Smarthost,
    Turn,
    Until,
    at,
    turns,
)
from tests.unit.upstream.faults import AN_END, GARBAGE, MEANINGLESS, REFUSALS, table
from tests.unit.upstream.sessions import SOON_S, account, connected, transaction

RELAYED, DEFER, LATER, BOUNCE, PAUSE = (
    Verdict.RELAYED, Verdict.DEFER, Verdict.LATER, Verdict.BOUNCE, Verdict.PAUSE,
)  # fmt: skip
IN_TRANSACTION = ["mail", "rcpt", "data", "eod"]


async def attempt(connection: Connection, host: Smarthost) -> Outcome:
    """Do a transaction, and check what holds whatever happens."""
    outcome = await connection.transact(transaction())
    assert len(outcome.answers) == 3
    for answer in outcome.answers:
        assert answer.text.isprintable()
        if answer.verdict is RELAYED:
            assert host.relayed
        if answer.verdict is BOUNCE:
            assert answer.reply is not None
            assert answer.reply.is_permanent
    pauses = [answer for answer in outcome.answers if answer.is_about_us]
    assert outcome.pause == (pauses[0] if pauses else None)
    if outcome.is_ambiguous:
        assert host.transactions
    return outcome


def verdicts(outcome: Outcome) -> set[Verdict]:
    return {answer.verdict for answer in outcome.answers}


@pytest.mark.parametrize("phase", IN_TRANSACTION)
@pytest.mark.parametrize(("turn", "expected"), list(REFUSALS.values()), ids=list(REFUSALS))
async def test_a_proper_refusal_is_believed(phase: str, turn: Turn, expected: Verdict) -> None:
    async with Smarthost(at(phase, turn)) as host, connected(account(host)) as connection:
        outcome = await attempt(connection, host)

        assert verdicts(outcome) == {expected}
        assert {answer.phase for answer in outcome.answers} == {Phase(phase)}
        assert not outcome.is_ambiguous
        assert not host.relayed


@pytest.mark.parametrize("phase", IN_TRANSACTION)
@pytest.mark.parametrize(
    ("turn", "expected_of_the_rest"),
    [
        (["554 5.6.0 no", CLOSE], DEFER),
        (b"554 5.6.0 no\r\n421 4.7.0 and go away\r\n", PAUSE),
    ],
    ids=["closed", "421"],
)
async def test_a_refusal_that_is_the_last_word_is_believed(
    phase: str, turn: Turn, expected_of_the_rest: Verdict
) -> None:
    async with Smarthost(at(phase, turn)) as host, connected(account(host)) as connection:
        first, *rest = (await attempt(connection, host)).answers

        assert (first.verdict, first.phase) == (BOUNCE, Phase(phase))
        # At RCPT it was about the first recipient only.
        assert {answer.verdict for answer in rest} == {expected_of_the_rest if phase == "rcpt" else BOUNCE}
        await gone_or_spoken(connection)


OTHERS = {f"{phase} {said}": (phase, said) for phase, said in (
    *(("mail", "354 go"), ("mail", "251 ok"), ("rcpt", "354 go"), ("data", "250 ok"), ("data", "251 ok")),
    *(("eod", "251 ok"), ("eod", "354 go")),
)}  # fmt: skip
"""What is due to another command."""


@pytest.mark.asyncio(loop_factories=["asyncio", "asyncio, in turn"])
@pytest.mark.parametrize("phase", IN_TRANSACTION)
@table(AN_END | GARBAGE | MEANINGLESS)
async def test_what_is_no_whole_and_proper_reply_decides_nothing(phase: str, turn: Turn) -> None:
    async with Smarthost(at(phase, turn)) as host, connected(account(host)) as connection:
        outcome = await attempt(connection, host)

        assert verdicts(outcome) == {DEFER}
        assert outcome.is_ambiguous == (phase == "eod")
        assert {answer.reply for answer in outcome.answers} == {None}
        assert not connection.is_usable
        assert bool(host.transactions) == (phase == "eod")


@pytest.mark.parametrize("phase", IN_TRANSACTION)
async def test_an_upstream_that_hangs_is_left_in_time(phase: str) -> None:
    timeouts = replace(Timeouts(), **{f"{phase}_s": SOON_S})
    async with (
        Smarthost(at(phase, SILENCE)) as host,
        connected(account(host), timeouts) as connection,
    ):
        outcome = await attempt(connection, host)

        assert verdicts(outcome) == {DEFER}
        assert outcome.is_ambiguous == (phase == "eod")
        assert "within" in outcome.answers[0].text
        assert not connection.is_usable


@pytest.mark.parametrize(("phase", "said"), OTHERS.values(), ids=OTHERS)
async def test_the_reply_to_another_command_decides_nothing(phase: str, said: str) -> None:
    async with Smarthost(at(phase, said)) as host, connected(account(host)) as connection:
        outcome = await attempt(connection, host)

        assert verdicts(outcome) == {DEFER}
        assert outcome.is_ambiguous == (phase == "eod")
        assert not connection.is_usable


@pytest.mark.parametrize("cut", range(1, len(b"250-2.0.0 a\r\n250 2.0.0 b\r\n")))
async def test_a_reply_counts_only_when_it_is_whole(cut: int) -> None:
    whole = b"250-2.0.0 a\r\n250 2.0.0 b\r\n"
    async with Smarthost(Script(eod=[whole[:cut], CLOSE])) as host, connected(account(host)) as connection:
        outcome = await attempt(connection, host)
        assert (verdicts(outcome), outcome.is_ambiguous) == ({DEFER}, True)

    async with (
        Smarthost(Script(eod=[whole[:cut], GAP, whole[cut:]])) as host,
        connected(account(host)) as connection,
    ):
        assert verdicts(await attempt(connection, host)) == {RELAYED}


@pytest.mark.parametrize(
    "turn",
    [
        b"250 2.0.0 ok\r\n421 4.7.0 enough of you\r\n",
        [b"250 2.0.0 ok\r\n", CLOSE],
        [b"250 2.0.0 ok\r\n", RESET],
        [b"250 2.0.0 ok\r\n", HALF_CLOSE],
        Drip(b"250-2.0.0 ok\r\n250\r\n"),
        b"250 2.0.0 \xe2\x9c\x93 \x1b[1m\r\n",
    ],
    ids=["421", "close", "reset", "half-close", "drip", "8-bit"],
)
async def test_a_perfect_250_relays_whatever_follows(turn: Turn) -> None:
    async with Smarthost(Script(eod=turn)) as host, connected(account(host)) as connection:
        outcome = await attempt(connection, host)

        assert verdicts(outcome) == {RELAYED}
        assert not outcome.is_ambiguous


@pytest.mark.parametrize("phase", ["mail", "rcpt", "data"])
async def test_421_behind_a_reply_holds_for_what_comes_next(phase: str) -> None:
    turn: Turn = [DEFAULT, b"421 4.3.2 going down\r\n"]
    async with Smarthost(at(phase, turn)) as host, connected(account(host)) as connection:
        outcome = await attempt(connection, host)

        assert verdicts(outcome) == {PAUSE}
        assert outcome.pause is not None
        assert outcome.pause.text == "421 4.3.2 going down"
        assert not host.transactions


@table({"close": CLOSE, "reset": RESET, "rubbish": b"rubbish\r\n", "421": "421 4.3.2 closing"})
@pytest.mark.parametrize("where", ["rcpt", "data", "eod"])
async def test_a_refused_recipient_stays_so_but_for_rubbish_before_354(where: str, turn: Turn) -> None:
    refusals: list[Turn] = ["550 5.1.1 who?", "250 ok"]
    script = Script(rcpt=turns(*refusals, turn)) if where == "rcpt" else Script(rcpt=turns(*refusals))
    if where != "rcpt":
        setattr(script, where, turn)
    async with Smarthost(script) as host, connected(account(host)) as connection:
        outcome = await attempt(connection, host)

        first, *others = outcome.answers
        assert first.verdict is (DEFER if where != "eod" and turn == b"rubbish\r\n" else BOUNCE)
        expected = PAUSE if turn == "421 4.3.2 closing" else DEFER
        assert {answer.verdict for answer in others} == {expected}
        assert not host.relayed


@pytest.mark.parametrize(
    ("rcpt", "data", "hello"),
    [
        # After two replies to MAIL every command gets the reply to the one before it: the
        # refusal of the second recipient answers the third, or DATA.
        (["250 2.1.0 again", "250 first", "550 5.1.1 second"], "250 third", DEFAULT),
        (["250 2.1.0 again", "250 first", "250 second"], "550 5.1.1 third", "354 go ahead"),
        (["250 2.1.0 again", "550 5.1.1 first", "550 5.1.1 second"], "550 5.1.1 third", "503 5.5.1 DATA?"),
    ],
)
async def test_a_leftover_reply_bounces_nobody_in_the_place_of_another(
    rcpt: list[str], data: str, hello: Turn
) -> None:
    # What EHLO is answered by then goes to QUIT.
    script = Script(rcpt=turns(*rcpt), data=data, ehlo=turns(DEFAULT, hello), quit="250 fake.example")
    async with Smarthost(script) as host, connected(account(host)) as connection:
        outcome = await attempt(connection, host)

        assert verdicts(outcome) == {DEFER}
        assert not host.transactions
        assert not connection.is_usable


@table({"500": "500 what?", "close": CLOSE, "silence": SILENCE, "rubbish": b"rubbish\r\n", "421": "421 bye"})
async def test_trouble_with_rset_ends_the_connection_only(turn: Turn) -> None:
    script = Script(rcpt="450 4.2.1 busy", rset=turn)
    async with Smarthost(script) as host, connected(account(host), Timeouts(reset_s=SOON_S)) as connection:
        outcome = await attempt(connection, host)

        assert verdicts(outcome) == {DEFER}
        assert {answer.text for answer in outcome.answers} == {"450 4.2.1 busy"}
        assert not connection.is_usable


async def gone_or_spoken(connection: Connection) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while connection.is_usable:  # noqa: ASYNC110 - what is waited for is what the loop reads
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    "octets",
    [b"421 4.4.2 idle for too long\r\n", b"250 2.0.0 surprise\r\n", b"5", b"\r\n", b"rubbish", None],
    ids=["421", "250", "half", "line end", "rubbish", "closed"],
)
async def test_what_comes_unasked_before_mail_is_no_attempt(octets: bytes | None) -> None:
    async with Smarthost() as host, connected(account(host)) as kept, connected(account(host)) as fresh:
        await kept.transact(transaction())
        for connection in (kept, fresh):
            assert connection.is_usable
        if octets is None:
            host.hang_up()
        else:
            host.say(octets)
        for connection in (kept, fresh):
            await gone_or_spoken(connection)

        assert verdicts(await kept.transact(transaction())) == {LATER}
        assert verdicts(await fresh.transact(transaction())) == {PAUSE}
        assert len(host.transactions) == 1
        assert sum(command.startswith("MAIL") for command in host.commands) == 1


@table({"close": CLOSE, "reset": RESET, "half": [b"25", CLOSE], "silence": SILENCE})
async def test_a_kept_connection_that_dies_at_mail_is_no_attempt(turn: Turn) -> None:
    async with Smarthost() as host, connected(account(host), Timeouts(mail_s=60.0)) as connection:
        await connection.transact(transaction())
        host.script = Script(mail=turn)
        if turn is SILENCE:
            connection._channel = replace(connection._channel, timeouts=Timeouts(mail_s=SOON_S))
        outcome = await connection.transact(transaction())

        assert verdicts(outcome) == {LATER}
        assert not connection.is_usable


async def test_what_a_kept_connection_says_as_it_closes_refuses_no_message() -> None:
    async with Smarthost() as host, connected(account(host)) as connection:
        await connection.transact(transaction())
        host.script = Script(mail=["554 5.4.7 idle for too long", CLOSE])

        assert verdicts(await connection.transact(transaction())) == {LATER}
        assert not connection.is_usable


async def test_421_to_mail_pauses_on_a_kept_connection_too() -> None:
    async with Smarthost() as host, connected(account(host)) as connection:
        await connection.transact(transaction())
        host.script = Script(mail="421 4.7.0 too many messages")

        assert verdicts(await connection.transact(transaction())) == {PAUSE}


@pytest.mark.parametrize("behind", [b"250 2.0.0 taken\r\n", b"2"])
async def test_421_to_the_dot_with_more_behind_it_is_not_known_what(behind: bytes) -> None:
    script = at("eod", b"421 4.3.2 closing\r\n" + behind)
    async with Smarthost(script) as host, connected(account(host)) as connection:
        outcome = await connection.transact(transaction())

        assert (verdicts(outcome), outcome.is_ambiguous, outcome.is_over) == ({DEFER}, True, False)


async def test_a_reply_after_our_timeout_reaches_nobody() -> None:
    late = asyncio.Event()
    script = Script(eod=[Until(late), DEFAULT])
    async with Smarthost(script) as host, connected(account(host), Timeouts(eod_s=SOON_S)) as connection:
        first = await connection.transact(transaction())
        late.set()
        await host.until(lambda: not host.sessions[0].is_open)
        second = await connection.transact(transaction())

        assert (verdicts(first), first.is_ambiguous) == ({DEFER}, True)
        assert (verdicts(second), second.is_ambiguous) == ({LATER}, False)
        assert len(host.transactions) == 1
