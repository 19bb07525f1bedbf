"""What an outcome means: the promises for any mixture of replies, and each rule on a case of its own."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.mail.envelope import QueueId
from relay.smtp.reply import Phase, Reply
from relay.verdicts.decision import (
    EVIDENT,
    FINAL,
    REFUSALS_IN_PLACE,
    AttemptContext,
    Decision,
    Fate,
    Next,
    Terms,
    decide,
)
from relay.verdicts.outcome import Answer, Outcome
from relay.verdicts.shield import Shield
from relay.verdicts.verdict import ABOUT_US, Layer, Rule, Ruling, Scope, Verdict

HOUR_NS = 3600 * 10**9
TERMS = Terms(HOUR_NS // 12, 4 * HOUR_NS, 120 * HOUR_NS, 4 * HOUR_NS)
MESSAGE = QueueId("0123456789abcdef")
RECIPIENTS = tuple(f"r{number}@there.example" for number in range(12))
NEW = AttemptContext(MESSAGE, RECIPIENTS, [0], [0])
CODES = {
    Verdict.RELAYED: 250,
    Verdict.DEFER: 451,
    Verdict.LATER: 452,
    Verdict.BOUNCE: 550,
    Verdict.PAUSE: 421,
    Verdict.STOP: 535,
}

verdicts = st.lists(st.sampled_from(list(Verdict)), min_size=1, max_size=6)
spans_ns = st.integers(0, 200 * HOUR_NS)


def an_answer(verdict: Verdict, scope: Scope = Scope.UPSTREAM) -> Answer:
    code = CODES[verdict]
    rule = None
    if verdict in ABOUT_US:
        rule = Rule(Layer.CODE, verdict, scope, "here", "this test")
    ruling = None if rule is None else Ruling(verdict, scope, rule)
    return Answer(verdict, Phase.EOD, Reply(code, None, "said"), f"{code} said", ruling=ruling)


def an_outcome(*given_verdicts: Verdict, scope: Scope = Scope.UPSTREAM) -> Outcome:
    return Outcome(tuple(an_answer(verdict, scope) for verdict in given_verdicts))


def believed(outcome: Outcome, context: AttemptContext) -> Decision:
    """Return the decision if every refusal is believed."""
    return decide(outcome, context, TERMS, Shield(is_off=True))


standings = st.builds(
    AttemptContext,
    st.just(MESSAGE),
    st.just(RECIPIENTS),
    st.just(range(8)),
    st.just(range(6)),
    st.frozensets(st.integers(0, 7)),
    refusals=st.integers(0, 9),
    in_a_row=st.integers(0, 4),
    late_ns=st.integers(0, 200 * HOUR_NS),
    paused_ns=st.integers(0, 50 * HOUR_NS),
    either_paused_ns=st.integers(0, 100 * HOUR_NS),
    is_well=st.booleans(),
    is_sender_alone=st.booleans(),
)
sixes = st.lists(st.sampled_from(list(Verdict)), min_size=6, max_size=6)
scopes = st.sampled_from([Scope.UPSTREAM, Scope.SENDER])


@given(sixes, standings, scopes, st.booleans())
def test_only_a_refusal_of_the_recipient_itself_can_bounce_it(
    given_verdicts: list[Verdict], context: AttemptContext, scope: Scope, is_off: bool
) -> None:
    """A refusal of us may expire an old message, if the message or its sender is evidently the cause."""
    outcome = an_outcome(*given_verdicts, scope=scope)
    decision = decide(outcome, context, TERMS, Shield(is_off=is_off))
    ages_in_rests = scope is Scope.SENDER and context.is_sender_alone
    no_age_ns = min(context.either_paused_ns, context.paused_ns if ages_in_rests else 1 << 62)

    for index, verdict in enumerate(given_verdicts):
        fate, _ = decision.fates[index]
        assert (fate is Fate.RELAYED) == (verdict is Verdict.RELAYED), "what is relayed is never sent again"
        assert verdict is Verdict.BOUNCE or fate is not Fate.BOUNCED
        assert fate is not Fate.EXPIRED or context.late_ns - no_age_ns >= TERMS.lifetime_ns
        if verdict in ABOUT_US and fate is not Fate.WAITING:
            is_evident = context.refusals + 1 >= REFUSALS_IN_PLACE + EVIDENT
            assert context.is_sender_alone or (context.is_well and is_evident)


@given(verdicts, spans_ns)
def test_a_message_goes_again_at_once_only_after_progress(given_verdicts: list[Verdict], age_ns: int) -> None:
    """Otherwise the relay would ask a refusing upstream in a loop, and spend a slot each time."""
    tried: frozenset[int] = frozenset()
    left = list(range(len(given_verdicts)))
    for _ in range(len(given_verdicts) + 1):
        asked = [index for index in left if index not in tried] or left
        context = AttemptContext(MESSAGE, RECIPIENTS, left, asked, tried, late_ns=age_ns)
        decision = believed(an_outcome(*(given_verdicts[index] for index in asked)), context)
        gone = {index for index, (fate, _) in decision.fates.items() if fate in FINAL}
        assert (decision.next is Next.FINISH) == (gone == {*left})
        if decision.next is not Next.AGAIN:
            return
        assert decision.tried > tried or gone
        tried = decision.tried
        left = [index for index in left if index not in gone]
    raise AssertionError("asked in a circle")


# Age is counted without pauses.
@pytest.mark.parametrize(
    ("late_ns", "either_paused_ns", "age_ns"), [(HOUR_NS, 0, HOUR_NS), (5 * HOUR_NS, 4 * HOUR_NS, HOUR_NS)]
)
def test_a_deferral_waits_as_long_as_the_message_is_old(
    late_ns: int, either_paused_ns: int, age_ns: int
) -> None:
    context = NEW._replace(late_ns=late_ns, paused_ns=either_paused_ns, either_paused_ns=either_paused_ns)
    decision = believed(an_outcome(Verdict.DEFER), context)

    assert decision.back_off_ns == age_ns
    assert decision.tried == frozenset(), "the next round asks all again"


OLD = NEW._replace(late_ns=121 * HOUR_NS)
IN_PLACE = NEW._replace(refusals=REFUSALS_IN_PLACE - 1)
IN_A_ROW = NEW._replace(in_a_row=REFUSALS_IN_PLACE - 1)
WELL = NEW._replace(is_well=True)
SINGLED_OUT = WELL._replace(refusals=REFUSALS_IN_PLACE + EVIDENT - 1)
# Without a reply to the final dot it may even be relayed: nobody refused it.
LOST = Outcome((Answer(Verdict.DEFER, Phase.EOD, None, "no reply to the final dot"),), is_ambiguous=True)
# A kept connection that died before MAIL.
UNASKED = Outcome((Answer(Verdict.LATER, Phase.MAIL, None, "the upstream closed the connection"),))
OF_SENDER = an_outcome(Verdict.PAUSE, scope=Scope.SENDER)
ALONE = OLD._replace(either_paused_ns=100 * HOUR_NS, is_sender_alone=True)


class Meaning(NamedTuple):
    """What a decision says of a message with one recipient."""

    fate: Fate
    next: Next
    refusals: int = 0
    rests: bool = False


DEFERRED, EXPIRED = Meaning(Fate.DEFERRED, Next.POSTPONE), Meaning(Fate.EXPIRED, Next.FINISH)
KEEPS_ITS_PLACE = Meaning(Fate.WAITING, Next.GIVE_BACK, refusals=1)
SENDER_RESTS = KEEPS_ITS_PLACE._replace(rests=True)
BACKS_OFF = Meaning(Fate.WAITING, Next.POSTPONE)


@pytest.mark.parametrize(
    ("outcome", "context", "meaning"),
    [
        (an_outcome(Verdict.RELAYED), SINGLED_OUT, Meaning(Fate.RELAYED, Next.FINISH)),
        (an_outcome(Verdict.BOUNCE), NEW, Meaning(Fate.BOUNCED, Next.FINISH)),
        (an_outcome(Verdict.DEFER), NEW, DEFERRED),
        (an_outcome(Verdict.DEFER), OLD, EXPIRED),
        # Pauses and rests do not count as age.
        (an_outcome(Verdict.DEFER), OLD._replace(either_paused_ns=2 * HOUR_NS), DEFERRED),
        (an_outcome(Verdict.LATER), NEW, DEFERRED),
        (LOST, OLD, DEFERRED),
        (UNASKED, OLD, KEEPS_ITS_PLACE._replace(refusals=0)),
        (an_outcome(Verdict.PAUSE), NEW, KEEPS_ITS_PLACE),
        (an_outcome(Verdict.PAUSE), OLD, KEEPS_ITS_PLACE),
        (an_outcome(Verdict.STOP), NEW, KEEPS_ITS_PLACE),
        # After so many refusals, of it or in a row of any mail, it lets others prove the upstream.
        (an_outcome(Verdict.PAUSE), IN_PLACE, BACKS_OFF._replace(refusals=3)),
        (an_outcome(Verdict.STOP), IN_A_ROW, BACKS_OFF._replace(refusals=1)),
        (an_outcome(Verdict.STOP), IN_A_ROW._replace(is_probe=True), KEEPS_ITS_PLACE),
        # Refused often while others are relayed, the message itself is at fault.
        (
            an_outcome(Verdict.PAUSE),
            WELL._replace(refusals=REFUSALS_IN_PLACE),
            BACKS_OFF._replace(refusals=4),
        ),
        (an_outcome(Verdict.PAUSE), SINGLED_OUT, DEFERRED._replace(refusals=6)),
        (OF_SENDER, NEW, SENDER_RESTS),
        # Its rests do not count as age, unless its sender alone is refused.
        (OF_SENDER, ALONE._replace(is_sender_alone=False), SENDER_RESTS),
        (OF_SENDER, ALONE, EXPIRED._replace(refusals=1)),
        (OF_SENDER, ALONE._replace(paused_ns=2 * HOUR_NS), SENDER_RESTS),
    ],
)
def test_each_answer_has_its_decision(outcome: Outcome, context: AttemptContext, meaning: Meaning) -> None:
    decision = believed(outcome, context)
    pause = decision.outcome.pause
    rests = pause is not None and pause.scope is Scope.SENDER

    assert meaning == (decision.fates[0][0], decision.next, decision.refusals, rests)


def test_a_refusal_doubted_for_the_first_time_expires_nobody() -> None:
    unknown = Answer(Verdict.BOUNCE, Phase.RCPT, Reply(550, None, "no"), "550 no")
    shield = Shield()
    decisions = [decide(Outcome((unknown,)), OLD, TERMS, shield) for _ in range(2)]

    assert [decision.fates[0][0] for decision in decisions] == [Fate.DEFERRED, Fate.EXPIRED]
