"""Transactions that go well, in part, or not at all, with an upstream that keeps to RFC 5321."""

import asyncio

import pytest

from relay.clock import SECOND_NS
from relay.mail.dsn import DsnRequest, Notify, RecipientRequest, Ret
from relay.mail.envelope import Shape
from relay.smtp.reply import Phase
from relay.upstream.timeouts import Timeouts
from relay.upstream.transaction import Transaction
from relay.verdicts.outcome import Outcome
from relay.verdicts.verdict import Verdict
from tests.fakes.smarthost import SILENCE, Script, Smarthost, at, turns
from tests.unit.upstream.sessions import (
    CONTENT,
    RECIPIENTS,
    SENDER,
    account,
    connected,
    transaction,
    verdicts,
)

RELAYED, DEFER, LATER, BOUNCE, PAUSE = (
    Verdict.RELAYED, Verdict.DEFER, Verdict.LATER, Verdict.BOUNCE, Verdict.PAUSE,
)  # fmt: skip


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
        (("8BITMIME", "SMTPUTF8"), True, True, " BODY=8BITMIME SMTPUTF8"),
    ],
)
async def test_mail_has_the_parameters_that_are_offered_and_needed(
    extensions: tuple[str, ...], eight_bit: bool, smtputf8: bool, expected: str
) -> None:
    async with Smarthost(extensions=extensions) as host, connected(account(host)) as connection:
        sent = transaction(eight_bit=eight_bit, smtputf8=smtputf8, size_bytes=31)
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
async def test_what_a_connection_cannot_carry_is_known_before(shape: Shape, status: str) -> None:
    async with Smarthost(extensions=("SIZE 1000",)) as host, connected(account(host)) as connection:
        refusal = connection.unfit(shape)

        assert refusal is not None
        assert (refusal.verdict, refusal.status, refusal.reply) == (DEFER, status, None)
        assert host.commands == ["EHLO client.example"]


@pytest.mark.parametrize("phase", ["mail", "rcpt", "data", "eod"])
async def test_a_cancelled_transaction_closes_the_connection(phase: str) -> None:
    async with Smarthost(at(phase, SILENCE)) as host, connected(account(host)) as connection:
        sending = asyncio.create_task(connection.transact(transaction()))
        verb = "DATA" if phase == "eod" else phase.upper()
        await host.until(lambda: host.commands[-1].startswith(verb))
        if phase == "eod":
            await host.until(lambda: host.transactions)
        sending.cancel()

        with pytest.raises(asyncio.CancelledError):
            await sending
        assert not connection.is_usable
        await host.until(lambda: not host.sessions[0].is_open)
        assert not host.relayed


@pytest.mark.parametrize("phase", ["mail", "rcpt", "data"])
async def test_a_transaction_ends_before_the_longest_it_may_take(phase: str) -> None:
    # The steps could take minutes each, and a third of the whole is for the reply to the dot.
    timeouts = Timeouts(eod_s=100.0)
    async with (
        Smarthost(at(phase, SILENCE)) as host,
        connected(account(host), timeouts) as connection,
    ):
        sent = transaction()
        short = Transaction(sent.reverse_path, sent.recipients, sent.shape, sent.content, 3 * SECOND_NS // 20)
        outcome = await connection.transact(short)

        assert verdicts(outcome) == [DEFER] * 3
        assert not host.transactions
        assert not connection.is_usable


async def test_a_transaction_without_any_time_sends_nothing() -> None:
    async with Smarthost() as host, connected(account(host)) as connection:
        sent = transaction()
        late = Transaction(sent.reverse_path, sent.recipients, sent.shape, sent.content, 0)
        outcome = await connection.transact(late)

        assert verdicts(outcome) == [DEFER] * 3
        assert host.commands == ["EHLO client.example"]


IN_TURN = tuple(each for each in (*Smarthost.EXTENSIONS, "DSN") if each != "PIPELINING")
AT_ONCE = (*IN_TURN, "PIPELINING")
ASKED = DsnRequest(
    Ret.HDRS,
    "QQ+2B1",
    (
        RecipientRequest(Notify.SUCCESS | Notify.FAILURE, "rfc822;Al+2Bx@example.org"),
        RecipientRequest(),
        RecipientRequest(Notify.NEVER),
    ),
)


async def sent(host: Smarthost, dsn: DsnRequest = ASKED) -> Outcome:
    async with connected(account(host)) as connection:
        return await connection.transact(transaction()._replace(dsn=dsn))


def named(host: Smarthost) -> list[str]:
    return [line for line in host.commands if line.startswith(("MAIL", "RCPT"))]


@pytest.mark.parametrize("extensions", [IN_TURN, AT_ONCE])
async def test_it_goes_along_where_dsn_is_offered(extensions: tuple[str, ...]) -> None:
    async with Smarthost(extensions=extensions) as host:
        outcome = await sent(host)

    assert verdicts(outcome) == [RELAYED] * 3
    mail, *rcpt = named(host)
    assert mail.endswith(" RET=HDRS ENVID=QQ+2B1")
    assert rcpt == [
        "RCPT TO:<a@example.net> NOTIFY=SUCCESS,FAILURE ORCPT=rfc822;Al+2Bx@example.org",
        "RCPT TO:<b@example.net>",
        "RCPT TO:<c@example.net> NOTIFY=NEVER",
    ]


async def test_nothing_goes_along_elsewhere() -> None:
    async with Smarthost() as host:
        outcome = await sent(host)

    assert verdicts(outcome) == [RELAYED] * 3
    assert not outcome.is_dsn_refused
    assert not any(word in line for line in named(host) for word in ("RET", "ENVID", "NOTIFY", "ORCPT"))


@pytest.mark.parametrize("reply", ["555 5.5.4 what?", "501 syntax", "501 5.5.2 what?", "504 5.5.4 no"])
@pytest.mark.parametrize("extensions", [IN_TURN, AT_ONCE])
async def test_a_refused_parameter_of_mail_refuses_nobody(extensions: tuple[str, ...], reply: str) -> None:
    async with Smarthost(Script(mail=turns(reply)), extensions=extensions) as host:
        outcome = await sent(host)

    assert outcome.is_dsn_refused
    assert {(answer.verdict, answer.phase) for answer in outcome.answers} == {(LATER, Phase.MAIL)}
    assert outcome.pause is None


@pytest.mark.parametrize("extensions", [IN_TURN, AT_ONCE])
async def test_a_refused_parameter_of_rcpt_refuses_nobody(extensions: tuple[str, ...]) -> None:
    script = Script(rcpt=lambda argument: "555 5.5.4 no" if "SUCCESS" in argument else "250 ok")
    async with Smarthost(script, extensions=extensions) as host:
        outcome = await sent(host)

    assert outcome.is_dsn_refused
    assert verdicts(outcome) == [LATER, RELAYED, RELAYED]
    assert outcome.answers[0].phase is Phase.MAIL
    assert tuple(host.transactions[0].recipients) == RECIPIENTS[1:]


@pytest.mark.parametrize(
    "reply", ["550 5.1.1 who?", "501 5.1.3 bad address", "553 5.5.4 no", "555 5.1.3 bad address"]
)
async def test_another_refusal_counts_as_ever(reply: str) -> None:
    script = Script(rcpt=lambda argument: reply if "SUCCESS" in argument else "250 ok")
    async with Smarthost(script, extensions=AT_ONCE) as host:
        outcome = await sent(host)

    assert not outcome.is_dsn_refused
    assert verdicts(outcome) == [BOUNCE, RELAYED, RELAYED]


@pytest.mark.parametrize("extensions", [IN_TURN, AT_ONCE])
async def test_a_command_without_parameters_is_refused_for_itself(extensions: tuple[str, ...]) -> None:
    of_mail = DsnRequest(Ret.HDRS)
    of_rcpt = DsnRequest(recipients=(RecipientRequest(Notify.NEVER), RecipientRequest(), RecipientRequest()))
    refused = "501 5.5.2 what?"
    async with Smarthost(Script(mail=turns(refused)), extensions=extensions) as host:
        assert verdicts(await sent(host, of_rcpt)) == [BOUNCE] * 3
    script = Script(rcpt=lambda argument: refused if "<b@" in argument else "250 ok")
    for asked in (of_mail, of_rcpt):
        async with Smarthost(script, extensions=extensions) as host:
            outcome = await sent(host, asked)
        assert (outcome.is_dsn_refused, verdicts(outcome)) == (False, [RELAYED, BOUNCE, RELAYED])
