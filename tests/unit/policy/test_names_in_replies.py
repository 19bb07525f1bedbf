"""A reply quotes addresses: who is called `hourly@` or lives at mailbox.org must not decide what it means."""

import pytest

from relay.policy.shipped import provider_of, provider_rules, standard_rules
from relay.smtp.reply import Phase
from relay.verdicts.echo import ClientWords
from relay.verdicts.verdict import Judge
from tests.unit.policy.corpus import Case, cases, parsed

OWN, THEIRS = cases("own"), cases("theirs")
NAMES = (
    "mailbox@storage.example",
    "recipient.disk@message-content.example",
    "spf.dmarc.dkim@hops.example",
    "too-large@attachment.example",
    "try.again.in.9.minutes@per-hour.example",
    "hourly@daily.example",
    "rate.limit@throttle.example",
    "sending@outbound.example",
    "your.account@relay.example",
)


def words_of(case: Case, reply: str, sender: str = "") -> str:
    judge = Judge((*provider_rules(provider_of(None, case.host)), *standard_rules()))
    return judge.ruling(case.phase, parsed(reply), ClientWords(sender)).words


@pytest.mark.parametrize("name", NAMES)
def test_no_address_changes_what_a_reply_means(name: str) -> None:
    changed = [
        f"{case.place}: {reply}: {before}, now {after}"
        for case in (*OWN, *THEIRS)
        for reply in (f"{case.reply} <{name}>", f"{case.reply} to {name}: {name}")
        if (before := words_of(case, str(case.reply))) != (after := words_of(case, reply))
    ]

    assert not changed, "\n".join(changed)


@pytest.mark.parametrize("name", NAMES)
def test_no_domain_changes_what_a_limit_of_that_domain_means(name: str) -> None:
    domain = name.partition("@")[2]
    for phase in (Phase.MAIL, Phase.RCPT, Phase.EOD):
        reply = parsed(f"550 Domain {domain} has exceeded the max emails per hour (125/100 (125%)) allowed.")
        assert Judge(standard_rules()).ruling(phase, reply).words == "pause"


def test_a_wait_is_not_read_out_of_an_address() -> None:
    reply = parsed("451 4.7.1 <try.again@5-minutes.example>: quota of messages, back to <wait@9m.example>")

    assert Judge(standard_rules()).ruling(Phase.RCPT, reply).retry_after_ns is None


def test_the_sender_is_still_known_where_it_is_quoted() -> None:
    reply = parsed("550 5.7.1 <List@Example.org>: refused by policy")
    judge = Judge(standard_rules())

    assert judge.ruling(Phase.MAIL, reply, ClientWords("list@example.org")).words == "pause sender"
    assert judge.ruling(Phase.MAIL, reply, ClientWords("other@example.org")).words == "pause"
