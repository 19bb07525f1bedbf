"""Every real reply has the verdict that it has to have, with and without knowing who said it.

What is measured: no refusal of ours (quota, rate, account) is ever a bounce, or an
attempt; real failures of a recipient or a message still are.
"""

from collections.abc import Iterator

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


def otherwise(case: Case) -> Iterator[tuple[Phase, Reply]]:
    """Yield a refusal where another provider counts, and with the code that another one gives."""
    layer = by_anybody(case).layer
    if by_anybody(case).verdict in ABOUT_US and layer is not Layer.DEFAULT:
        yield from ((phase, case.reply) for phase in (Phase.MAIL, Phase.RCPT, Phase.EOD))
    if layer is Layer.WORDING:
        text = case.reply.text.removeprefix(case.reply.enhanced or "").strip()
        for code in (421, 450, 451, 452, 454, 550, 552, 553, 554):
            yield case.phase, Reply(code, None, text)


def test_a_refusal_of_ours_in_another_phase_or_with_another_code_is_no_bounce_either() -> None:
    theirs = {(case.phase, case.reply) for case in THEIRS}
    bounced = [
        f"{case.place} at {phase}: {reply}"
        for case in OWN
        for phase, reply in otherwise(case)
        if (phase, reply) not in theirs
        if GENERAL.ruling(phase, reply, ClientWords(case.sender)).verdict is Verdict.BOUNCE
    ]

    assert not bounced, "\n".join(bounced)
