"""Verdicts: the laws that no rule may break, and the status of an answer.

tests/unit/policy/test_corpus tests what real replies mean.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.policy.shipped import provider_rules, providers, standard_rules
from relay.smtp.reply import Phase, Reply
from relay.verdicts.outcome import Answer, Outcome
from relay.verdicts.verdict import ABOUT_US, BEFORE_MAIL, WORDS, Judge, Layer, Ruling, Scope, Verdict
from tests.unit.policy.corpus import parsed

TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40) | st.sampled_from(
    [
        phrase
        for provider in providers().values()
        for rule in provider.verdicts
        for phrase in rule.get("text", ())
    ]
)
ANY_JUDGE = st.sampled_from([None, *providers()]).map(
    lambda name: Judge((*provider_rules(name), *standard_rules()))
)


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    code = draw(st.integers(200, 599))
    # The parser drops an enhanced code of another class than the reply code (RFC 2034, 4).
    enhanced = st.builds(f"{code // 100}.{{}}.{{}}".format, st.integers(0, 9), st.integers(0, 99))
    return Reply(code, draw(st.none() | enhanced), draw(TEXTS))


@given(ANY_JUDGE, st.sampled_from(Phase), replies())
def test_every_reply_has_a_verdict_and_only_a_5yz_from_mail_on_bounces(
    judge: Judge, phase: Phase, reply: Reply
) -> None:
    ruling = judge.ruling(phase, reply)

    if phase in BEFORE_MAIL:
        assert ruling.verdict in ABOUT_US
        assert ruling.scope is Scope.UPSTREAM
    if ruling.verdict is Verdict.BOUNCE:
        assert 500 <= reply.code <= 599
    if ruling.verdict is Verdict.LATER:
        assert phase is Phase.RCPT
    assert (ruling.verdict is Verdict.RELAYED) == (phase is Phase.EOD and reply.code == 250)
    assert ruling.words in {*WORDS, "relayed"}
    # The last layer knows every refusal, so that each verdict has a rule and a source.
    assert reply.code < 400 or (ruling.rule is not None and ruling.rule.source)


def test_an_enhanced_code_at_the_end_counts_if_none_is_in_front() -> None:
    assert Judge(standard_rules()).ruling(Phase.RCPT, parsed("550 bad address (#5.1.1)")).layer is Layer.CODE
    assert (
        Judge(standard_rules()).ruling(Phase.RCPT, parsed("550 bad address (#4.1.1)")).layer is Layer.DEFAULT
    )


def test_a_refusal_at_mail_that_quotes_the_sender_pauses_only_the_sender() -> None:
    judge, reply = Judge(standard_rules()), parsed("550 5.7.1 <Bob@here.example>: no")

    assert judge.ruling(Phase.MAIL, reply, "bob@here.example").words == "pause sender"
    assert judge.ruling(Phase.MAIL, reply, "alice@here.example").words == "pause"
    assert judge.ruling(Phase.MAIL, reply).words == "pause"


def answer(verdict: Verdict, phase: Phase, reply: str | None, own_status: str | None = None) -> Answer:
    return Answer(verdict, phase, None if reply is None else parsed(reply), "", own_status)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (answer(Verdict.BOUNCE, Phase.RCPT, "550 5.1.1 who?"), "5.1.1"),
        (answer(Verdict.BOUNCE, Phase.RCPT, "550 who?"), "5.0.0"),
        (answer(Verdict.BOUNCE, Phase.MAIL, None, "5.6.3"), "5.6.3"),
        (answer(Verdict.RELAYED, Phase.EOD, "250 ok"), "2.0.0"),
        (answer(Verdict.RELAYED, Phase.EOD, "250 2.6.0 ok"), "2.6.0"),
        (answer(Verdict.DEFER, Phase.EOD, None), "4.4.2"),
        (answer(Verdict.PAUSE, Phase.MAIL, "421 bye"), "4.0.0"),
        # Its class follows the verdict, except for a refusal of us, of which no report is made.
        (answer(Verdict.DEFER, Phase.RCPT, "550 5.2.1 at a rate"), "4.2.1"),
        (answer(Verdict.BOUNCE, Phase.RCPT, "450 4.1.1 by your own rule"), "5.1.1"),
        (answer(Verdict.STOP, Phase.AUTH, "535 5.7.8 wrong"), "5.7.8"),
    ],
)
def test_status_is_the_upstreams_or_follows_from_the_verdict(told: Answer, expected: str) -> None:
    assert told.status == expected


def test_the_gravest_of_many_answers_is_the_one_that_reaches_furthest() -> None:
    said = {
        words: Answer(verdict, Phase.RCPT, None, words, ruling=Ruling(verdict, scope))
        for words, (verdict, scope) in WORDS.items()
    }

    assert Outcome(tuple(said.values())).pause == said["stop"]
    assert Outcome((said["pause sender"], said["bounce message"], said["pause"])).pause == said["pause"]
    assert Outcome((said["bounce recipient"], said["defer message"])).pause is None
