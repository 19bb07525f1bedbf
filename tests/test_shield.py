"""The shield: a list is not bounced by one refusal said many times, and a dead address still is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.envelope import QueueId
from relay.outcome import Answer, Outcome
from relay.policy.shipped import standard_judge
from relay.reply import Phase, Reply
from relay.settlement import Fate, Terms, settle
from relay.shield import WINDOW, Shield, same_words
from relay.verdict import Scope, Verdict

JUDGE = standard_judge()
UNKNOWN = "Administrative prohibition"
NOBODY = "no such user here"
MESSAGE = QueueId("0123456789abcdef")


def _answer(text: str, code: int = 550, enhanced: str | None = None, phase: Phase = Phase.RCPT) -> Answer:
    reply = Reply(code, enhanced, text)
    ruling = JUDGE.ruling(phase, reply)
    return Answer(ruling.verdict, phase, reply, str(reply), ruling=ruling)


RELAYED = _answer("ok", 250, phase=Phase.EOD)


def _judge(shield: Shield, *answers: Answer, message: QueueId = MESSAGE, first: int = 0) -> Outcome:
    asked = [(first + place, f"r{first + place}@there.example") for place in range(len(answers))]
    return shield.judge(Outcome(answers), message, asked)


def _verdicts(outcome: Outcome) -> list[Verdict]:
    return [answer.verdict for answer in outcome.answers]


def test_a_refusal_that_nothing_recognises_is_doubted_until_others_went_through() -> None:
    shield, refused = Shield(), _answer(UNKNOWN)
    assert refused.verdict is Verdict.BOUNCE
    assert _verdicts(_judge(shield, refused)) == [Verdict.DEFER]
    assert _verdicts(_judge(shield, refused)) == [Verdict.DEFER]
    _judge(shield, RELAYED, first=7)
    assert _verdicts(_judge(shield, refused)) == [Verdict.BOUNCE]
    assert shield.suspects == ()


def test_a_message_that_waited_too_long_is_not_expired_by_a_refusal_that_is_doubted_for_the_first_time() -> (
    None
):
    shield, refused, fates = Shield(), _answer(UNKNOWN), []
    terms = Terms(min_ns=1, max_ns=2, lifetime_ns=3, warn_after_ns=None)
    for _ in range(2):
        outcome = _judge(shield, refused)
        settlement = settle(left=[0], asked=[0], tried_before=(), outcome=outcome, age_ns=9, terms=terms)
        fates.append(settlement.fates[0][0])

    assert fates == [Fate.DEFERRED, Fate.EXPIRED]


def test_a_refusal_that_a_rule_recognises_is_believed_at_once() -> None:
    assert _verdicts(_judge(Shield(), _answer(NOBODY, enhanced="5.1.1"))) == [Verdict.BOUNCE]


def test_a_list_refused_alike_stops_the_upstream_and_bounces_nobody() -> None:
    shield = Shield(in_a_row=10)
    outcome = _judge(shield, *(_answer(f"{UNKNOWN} <r{n}@there.example> id-{n}") for n in range(50)))
    assert set(_verdicts(outcome)) == {Verdict.STOP}
    assert outcome.pause is not None
    assert outcome.pause.scope is Scope.UPSTREAM
    assert "50 recipients in a row were refused alike" in outcome.pause.text
    assert len(shield.suspects) == 50


def test_one_recipient_a_message_is_a_list_as_well() -> None:
    shield = Shield(in_a_row=10)
    verdicts = [_verdicts(_judge(shield, _answer(UNKNOWN), first=n))[0] for n in range(12)]
    assert verdicts == [Verdict.DEFER] * 9 + [Verdict.STOP] * 3


def test_the_same_recipient_refused_again_and_again_is_one_in_a_row() -> None:
    shield = Shield(in_a_row=3)
    assert [_verdicts(_judge(shield, _answer(UNKNOWN)))[0] for _ in range(20)] == [Verdict.DEFER] * 20


def test_one_refusal_of_a_whole_message_is_one_however_many_recipients_it_has() -> None:
    shield, refused = Shield(in_a_row=3), _answer("message rejected", 554, "5.6.0", Phase.EOD)
    assert refused.verdict is Verdict.BOUNCE
    assert set(_verdicts(_judge(shield, *[refused] * 20))) == {Verdict.BOUNCE}
    _judge(shield, refused, message=QueueId("b" * 16))
    assert _verdicts(_judge(shield, refused, message=QueueId("c" * 16))) == [Verdict.STOP]


def test_what_is_relayed_in_between_ends_the_row() -> None:
    shield, nobody = Shield(in_a_row=3, refused_percent=100), _answer(NOBODY, enhanced="5.1.1")
    for number in range(0, 60, 3):
        verdicts = _verdicts(_judge(shield, nobody, nobody, RELAYED, first=number))
        assert verdicts == [Verdict.BOUNCE, Verdict.BOUNCE, Verdict.RELAYED]


def test_too_large_a_share_of_refusals_stops_whatever_they_say() -> None:
    shield = Shield(in_a_row=1000, refused_percent=50)
    tripped = None
    for number in range(2 * WINDOW):
        answer = RELAYED if number % 5 < 2 else _answer(f"word{chr(97 + number % 3)}", enhanced="5.1.1")
        if _judge(shield, answer, first=number).pause is not None:
            tripped = number
            break
    assert tripped is not None
    assert tripped >= WINDOW - 1


def test_half_refused_is_not_too_large_a_share() -> None:
    shield = Shield(in_a_row=1000, refused_percent=50)
    for number in range(3 * WINDOW):
        answer = RELAYED if number % 2 else _answer(NOBODY, enhanced="5.1.1")
        assert _judge(shield, answer, first=number).pause is None


def test_once_cleared_the_count_begins_anew() -> None:
    shield = Shield(in_a_row=3)
    for number in range(3):
        _judge(shield, _answer(UNKNOWN), first=number)
    shield.clear()
    assert _verdicts(_judge(shield, _answer(UNKNOWN), first=9)) == [Verdict.DEFER]


def test_a_shield_that_is_off_changes_nothing() -> None:
    outcome = Outcome(tuple(_answer(UNKNOWN) for _ in range(50)))
    asked = [(n, f"r{n}@x") for n in range(50)]
    assert Shield(is_off=True).judge(outcome, MESSAGE, asked) is outcome


answers = st.sampled_from(
    [
        RELAYED,
        _answer(UNKNOWN),
        _answer(NOBODY, enhanced="5.1.1"),
        _answer("try later", 451, "4.3.0"),
        _answer("sending limit exceeded", 550, "5.4.5"),
        Answer(Verdict.BOUNCE, Phase.DATA, None, "ours", own_status="5.6.0"),
        Answer(Verdict.DEFER, Phase.EOD, None, "silence"),
    ]
)


@given(st.lists(st.tuples(st.lists(answers, min_size=1, max_size=12), st.integers(0, 40)), max_size=40))
def test_the_shield_only_ever_takes_refusals_back(turns: list[tuple[list[Answer], int]]) -> None:
    shield = Shield(in_a_row=5)
    for said, first in turns:
        outcome = _judge(shield, *said, first=first)
        for before, after in zip(said, outcome.answers, strict=True):
            if after != before:
                assert before.verdict is Verdict.BOUNCE
                assert before.reply is not None
                assert after.verdict in (Verdict.DEFER, Verdict.STOP)
                assert after.text == before.text
        is_stopped = any(answer.verdict is Verdict.STOP for answer in outcome.answers)
        assert is_stopped <= (outcome.pause is not None)


def test_addresses_numbers_and_ids_make_no_difference() -> None:
    one = _answer("<a@x.example>: 5.7.1 refused, see 4f2a-99, 192.0.2.7")
    two = _answer("<b.c@y.example>: 5.7.1 refused, see 77ab-01, 192.0.2.99")
    assert same_words(one) == same_words(two) != same_words(_answer("refused"))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("k14-20020a05600c1c8e00b003c6e1b1d0bdsi12345wms.73 - gsmtp", "q7-2002a1b2c3si998edb.221 - gsmtp"),
        ("(in reply) id=4Zk3Yb2QXwz9vT", "(in reply) id=4Zk3Yc5RMnzHqP"),
        ("cmsmtp xJ7yZkRqT0aKd", "cmsmtp o9BvQ3LwMnPeR"),
    ],
    ids=["gmail", "postfix", "cloudmark"],
)
def test_an_id_that_is_no_number_makes_no_difference_either(one: str, two: str) -> None:
    assert same_words(_answer(f"5.7.1 prohibited {one}")) == same_words(_answer(f"5.7.1 prohibited {two}"))
