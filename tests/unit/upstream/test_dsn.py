"""What the sender wants to be told goes along where DSN is offered, and a false offer refuses nobody."""

import pytest

from relay.mail.dsn import DsnRequest, Notify, RecipientRequest, Ret
from relay.smtp.reply import Phase
from relay.verdicts.outcome import Outcome
from relay.verdicts.verdict import Verdict
from tests.fakes.smarthost import Script, Smarthost, turns
from tests.unit.upstream.sessions import RECIPIENTS, account, connected, transaction, verdicts

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

    assert verdicts(outcome) == [Verdict.RELAYED] * 3
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

    assert verdicts(outcome) == [Verdict.RELAYED] * 3
    assert not outcome.is_dsn_refused
    assert not any(word in line for line in named(host) for word in ("RET", "ENVID", "NOTIFY", "ORCPT"))


@pytest.mark.parametrize("reply", ["555 5.5.4 what?", "501 syntax", "501 5.5.2 what?", "504 5.5.4 no"])
@pytest.mark.parametrize("extensions", [IN_TURN, AT_ONCE])
async def test_a_refused_parameter_of_mail_refuses_nobody(extensions: tuple[str, ...], reply: str) -> None:
    async with Smarthost(Script(mail=turns(reply)), extensions=extensions) as host:
        outcome = await sent(host)

    assert outcome.is_dsn_refused
    assert {(answer.verdict, answer.phase) for answer in outcome.answers} == {(Verdict.LATER, Phase.MAIL)}
    assert outcome.pause is None


@pytest.mark.parametrize("extensions", [IN_TURN, AT_ONCE])
async def test_a_refused_parameter_of_rcpt_refuses_nobody(extensions: tuple[str, ...]) -> None:
    script = Script(rcpt=lambda argument: "555 5.5.4 no" if "SUCCESS" in argument else "250 ok")
    async with Smarthost(script, extensions=extensions) as host:
        outcome = await sent(host)

    assert outcome.is_dsn_refused
    assert verdicts(outcome) == [Verdict.LATER, Verdict.RELAYED, Verdict.RELAYED]
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
    assert verdicts(outcome) == [Verdict.BOUNCE, Verdict.RELAYED, Verdict.RELAYED]
