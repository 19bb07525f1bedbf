"""Every real reply has the verdict that it has to have, with and without knowing who said it.

What is measured: no refusal of ours (quota, rate, account) is ever a bounce, or an
attempt; real failures of a recipient or a message still are.
"""

import pytest

from relay.policy.shipped import provider_of, provider_rules, standard_rules
from relay.smtp.reply import Phase, Reply
from relay.verdicts.echo import ClientWords
from relay.verdicts.verdict import ABOUT_US, Judge, Layer, Ruling, Verdict
from tests.unit.policy.corpus import Case, cases

OWN, THEIRS = cases("own"), cases("theirs")
GENERAL = Judge(standard_rules())


def by_provider(case: Case) -> Ruling:
    judge = Judge((*provider_rules(provider_of(None, case.host)), *standard_rules()))
    return judge.ruling(case.phase, case.reply, ClientWords(case.sender))


def by_anybody(case: Case) -> Ruling:
    return GENERAL.ruling(case.phase, case.reply, ClientWords(case.sender))


@pytest.mark.parametrize(
    "case", [*OWN, *THEIRS], ids=lambda case: f"{case.place} {case.phase} {case.reply}"[:90]
)
def test_a_real_reply_has_the_verdict_that_it_should(case: Case) -> None:
    ruling = by_provider(case)

    assert ruling.words in case.verdicts
    assert case.source
    if case.is_generic:
        assert by_anybody(case).words in case.verdicts
    if case.wait_ns is not None:
        assert ruling.wait_ns == case.wait_ns
    assert ruling.retry_after_ns == case.retry_after_ns or case.retry_after_ns is None
    assert case.window_ns in (None, ruling.window_ns)
    assert ruling.may_probe == case.probe
    if case.known is not None:
        assert (by_anybody(case).layer is not Layer.DEFAULT) is case.known


def test_no_refusal_of_ours_is_ever_a_bounce_whoever_says_it() -> None:
    bounced = [
        f"{case.place} {case.phase}: {case.reply}"
        for case in OWN
        for ruling in (by_provider(case), by_anybody(case))
        if ruling.verdict is Verdict.BOUNCE
    ]

    assert not bounced, "\n".join(bounced)


def test_a_refusal_of_ours_in_another_phase_is_no_bounce_either() -> None:
    """Providers change where they count: at MAIL, at RCPT or at the final dot."""
    theirs = {(case.phase, case.reply) for case in THEIRS}
    bounced = [
        f"{case.place} at {phase}: {case.reply}"
        for case in OWN
        if by_anybody(case).verdict in ABOUT_US and by_anybody(case).layer is not Layer.DEFAULT
        for phase in (Phase.MAIL, Phase.RCPT, Phase.EOD)
        if (phase, case.reply) not in theirs
        if GENERAL.ruling(phase, case.reply, ClientWords(case.sender)).verdict is Verdict.BOUNCE
    ]

    assert not bounced, "\n".join(bounced)


def test_a_refusal_of_ours_with_another_code_is_no_bounce_either() -> None:
    """The same words come with 450 from one and 554 from another."""
    bounced = [
        f"{case.place} as {code}: {case.reply.text}"
        for case in OWN
        if by_anybody(case).layer is Layer.WORDING
        for code in (421, 450, 451, 452, 454, 550, 552, 553, 554)
        for reply in (Reply(code, None, case.reply.text.removeprefix(case.reply.enhanced or "").strip()),)
        if GENERAL.ruling(case.phase, reply, ClientWords(case.sender)).verdict is Verdict.BOUNCE
    ]

    assert not bounced, "\n".join(bounced)
