"""MAIL, RCPT and DATA sent at once (RFC 2920) have the same outcome as in turn."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.upstream.protocol import Timeouts
from relay.upstream.transaction import AHEAD
from relay.verdicts.outcome import Outcome
from relay.verdicts.verdict import Verdict
from tests.fakes.smarthost import CLOSE, DEFAULT, Script, Smarthost, Turn, Until, turns
from tests.unit.upstream.sessions import SOON_S, account, connected, transaction, verdicts

RELAYED = Verdict.RELAYED
REFUSALS = ("450 4.2.1 busy", "550 5.1.1 who?", "421 4.3.2 closing")
OF_ALL = ("452 4.5.3 too many", "550 5.4.5 daily limit exceeded", "451 4.7.1 slow down")


@pytest.mark.parametrize("wanted", [True, False])
async def test_all_commands_go_out_before_the_first_reply_unless_pipelining_is_off(*, wanted: bool) -> None:
    may_answer = asyncio.Event()
    async with (
        Smarthost(Script(mail=[Until(may_answer), DEFAULT])) as host,
        connected(account(host, pipelining=wanted)) as connection,
    ):
        transacting = asyncio.create_task(connection.transact(transaction()))
        await host.until(lambda: (b"DATA\r\n" if wanted else b"MAIL") in host.sessions[0].received)
        assert wanted or b"RCPT" not in host.sessions[0].received
        may_answer.set()

        assert verdicts(await transacting) == [RELAYED] * 3


@pytest.mark.parametrize("extensions", [["PIPELINING"], []], ids=["at once", "in turn"])
async def test_recipients_accepted_before_too_many_refusals_are_relayed(extensions: list[str]) -> None:
    # As Postfix: smtpd_hard_error_limit = 20.
    said = iter(["250 ok"] * 10 + ["450 4.7.1 policy: rate limit exceeded"] * 19)

    def rcpt(_: str) -> Turn:
        last: Turn = ["421 4.7.0 Error: too many errors", CLOSE]
        return next(said, last)

    async with (
        Smarthost(Script(rcpt=rcpt), extensions=extensions) as host,
        connected(account(host)) as connection,
    ):
        outcome = await connection.transact(transaction(*(f"r{number}@x.example" for number in range(100))))

        assert verdicts(outcome)[:10] == [RELAYED] * 10
        assert RELAYED not in verdicts(outcome)[10:]
        assert connection.is_usable


@pytest.mark.parametrize("count", [1, AHEAD, AHEAD + 1, 2 * AHEAD, 2 * AHEAD + 1])
async def test_recipients_are_sent_in_order_and_once_whatever_their_number(count: int) -> None:
    recipients = [f"r{number}@x.example" for number in range(count)]
    async with Smarthost() as host, connected(account(host)) as connection:
        for _ in range(2):
            assert verdicts(await connection.transact(transaction(*recipients))) == [RELAYED] * count

        assert [relayed.recipients for relayed in host.relayed] == [recipients] * 2


@pytest.mark.parametrize(
    ("mail", "rcpt"),
    [
        (DEFAULT, [b"", "550 5.1.1 b?", "450 4.2.1 c is busy"]),
        (DEFAULT, ["450 4.2.1 a is busy", "450 4.2.1 b is busy", b""]),
        (b"", ["550 5.1.1 a?", "450 4.2.1 b is busy", "450 4.2.1 c is busy"]),
    ],
    ids=["first", "last", "mail"],
)
async def test_a_reply_that_never_comes_bounces_no_recipient(mail: Turn, rcpt: list[Turn]) -> None:
    timeouts = Timeouts(mail_s=SOON_S, rcpt_s=SOON_S, data_s=SOON_S)
    script = Script(mail=mail, rcpt=turns(*rcpt), data="554 5.5.1 no valid recipients")
    async with Smarthost(script) as host, connected(account(host), timeouts) as connection:
        outcome = await connection.transact(transaction())

        assert not any(answer.verdict is Verdict.BOUNCE or answer.is_unproven for answer in outcome.answers)
        assert not connection.is_usable


@given(
    st.sampled_from(["250 ok", *REFUSALS, *OF_ALL]),
    st.lists(st.sampled_from(["250 ok", "251 forwarded", *REFUSALS]), min_size=3, max_size=3),
    st.none() | st.tuples(st.integers(0, 2), st.sampled_from(OF_ALL)),
    st.sampled_from([DEFAULT, *REFUSALS, *OF_ALL]),
    st.sampled_from(["250 taken", *REFUSALS, *OF_ALL]),
)
def test_recipients_have_the_same_verdict_pipelined_or_in_turn(
    mail: str, rcpts: list[str], of_all: tuple[int, str] | None, data: Turn, eod: str
) -> None:
    if of_all is not None:
        # A refusal of the account or the message also answers every later recipient.
        place, refusal = of_all
        rcpts = [*rcpts[:place], *[refusal] * (3 - place)]
    if not mail.startswith("250"):
        rcpts = ["503 5.5.1 MAIL first"] * 3
    if not any(reply.startswith("25") for reply in rcpts):
        data = "554 5.5.1 no valid recipients"

    async def outcome_of(extensions: Sequence[str]) -> Outcome:
        def last(reply: str | Turn) -> Turn:
            return [reply, CLOSE] if isinstance(reply, str) and reply.startswith("421") else reply

        script = Script(mail=last(mail), rcpt=turns(*map(last, rcpts)), data=last(data), eod=last(eod))
        async with (
            Smarthost(script, extensions=extensions) as host,
            connected(account(host)) as connection,
        ):
            outcome = await connection.transact(transaction())
            assert bool(host.relayed) == (RELAYED in verdicts(outcome))
            return outcome

    at_once, in_turn = (asyncio.run(outcome_of(offers)) for offers in (["PIPELINING"], []))
    assert [(each.verdict, each.phase, each.text) for each in at_once.answers] == [
        (each.verdict, each.phase, each.text) for each in in_turn.answers
    ]
    assert (at_once.is_ambiguous, at_once.is_over) == (in_turn.is_ambiguous, in_turn.is_over)
