"""The shield: a list is not bounced by one refusal said many times, and a dead address still is."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.mail.envelope import QueueId
from relay.policy.shipped import standard_judge
from relay.smtp.reply import Phase, Reply
from relay.verdicts.outcome import Answer, Need, Outcome
from relay.verdicts.shield import WINDOW, Shield
from relay.verdicts.verdict import Scope, Verdict

JUDGE = standard_judge()
UNKNOWN = "Administrative prohibition"
NOBODY = "no such user here"
MESSAGE = QueueId("0123456789abcdef")


def _answer(text: str, code: int = 550, enhanced: str | None = None, phase: Phase = Phase.RCPT) -> Answer:
    reply = Reply(code, enhanced, text)
    ruling = JUDGE.ruling(phase, reply)
    return Answer(ruling.verdict, phase, reply, str(reply), ruling=ruling)


RELAYED = _answer("ok", 250, phase=Phase.EOD)
_LACKS = Answer(Verdict.BOUNCE, Phase.MAIL, None, "no 8BITMIME", own_status="5.6.3", lack=Need.EIGHT_BIT)


_INSTANTS = itertools.count()


def _judge(
    shield: Shield,
    *answers: Answer,
    message: QueueId = MESSAGE,
    first: int = 0,
    sender: str | None = None,
    began_ns: int | None = None,
) -> Outcome:
    """By default each message has another sender, and begins when the last one had ended."""
    now_ns = next(_INSTANTS)
    asked = [(first + place, f"r{first + place}@there.example") for place in range(len(answers))]
    sender = f"{message}-{first}@here.example" if sender is None else sender
    span_ns = (now_ns if began_ns is None else began_ns, now_ns)
    return shield.judge(Outcome(answers), sender, message, asked, span_ns)


def _verdicts(outcome: Outcome) -> list[Verdict]:
    return [answer.verdict for answer in outcome.answers]


def test_an_unknown_refusal_is_doubted_until_others_went_through() -> None:
    shield, refused = Shield(), _answer(UNKNOWN)
    assert refused.verdict is Verdict.BOUNCE
    assert _verdicts(_judge(shield, refused)) == [Verdict.DEFER]
    assert _verdicts(_judge(shield, refused)) == [Verdict.DEFER]
    _judge(shield, RELAYED, first=7)
    assert _verdicts(_judge(shield, refused)) == [Verdict.BOUNCE]
    assert shield.suspects == ()


def test_what_was_under_way_at_the_first_refusal_proves_nothing() -> None:
    shield, refused = Shield(), _answer(UNKNOWN)
    began_ns = next(_INSTANTS)
    _judge(shield, refused)
    _judge(shield, RELAYED, first=7, began_ns=began_ns)
    assert _verdicts(_judge(shield, refused)) == [Verdict.DEFER]
    _judge(shield, RELAYED, first=8)
    assert _verdicts(_judge(shield, refused)) == [Verdict.BOUNCE]


def test_a_refusal_that_a_rule_recognises_is_believed_at_once() -> None:
    assert _verdicts(_judge(Shield(), _answer(NOBODY, enhanced="5.1.1"))) == [Verdict.BOUNCE]


@pytest.mark.parametrize("sender", ["", "list@here.example"])
def test_one_sender_refused_alike_has_only_that_sender_wait(sender: str) -> None:
    shield = Shield(in_a_row=10)
    refusals = [_answer(f"{UNKNOWN} <r{n}@there.example> id-{n}") for n in range(50)]
    outcome = _judge(shield, *refusals, sender=sender)
    assert set(_verdicts(outcome)) == {Verdict.PAUSE}
    assert outcome.pause is not None
    assert outcome.pause.scope is Scope.SENDER
    assert "50 recipients in a row were refused alike" in outcome.pause.text
    assert len(shield.suspects) == 50
    # As soon as another sender is refused alike, it is the account.
    outcome = _judge(
        shield, _answer(f"{UNKNOWN} <r50@there.example> id-50"), first=50, sender="other@here.example"
    )
    assert outcome.pause is not None
    assert (outcome.pause.verdict, outcome.pause.scope) == (Verdict.STOP, Scope.UPSTREAM)


def test_what_was_under_way_and_is_relayed_in_between_does_not_end_the_row() -> None:
    shield, began_ns = Shield(in_a_row=3), next(_INSTANTS)
    for number in (0, 1):
        assert _one(shield, _answer(UNKNOWN), number) is Verdict.DEFER
    _judge(shield, RELAYED, first=7, began_ns=began_ns)
    assert _one(shield, _answer(UNKNOWN), 2) is Verdict.STOP


@pytest.mark.parametrize("refused", [_answer(NOBODY, enhanced="5.1.1"), _LACKS], ids=["recognised", "ours"])
def test_what_a_rule_knows_and_what_we_refuse_ourselves_stops_nothing(refused: Answer) -> None:
    shield = Shield(in_a_row=3)
    for number in range(3 * WINDOW):
        assert _one(shield, refused, number) is Verdict.BOUNCE


def _one(shield: Shield, answer: Answer, number: int) -> Verdict:
    """Have one recipient answered, in a message of its own."""
    return _verdicts(_judge(shield, answer, first=number))[0]


@pytest.mark.parametrize("every", [2, 3, 5, 9])
def test_unknown_words_while_some_go_through_bounce_nobody(
    every: int,
) -> None:
    shield, waiting, asked = Shield(), list(range(60)), 0
    while waiting:
        for number in list(waiting):
            asked += 1
            verdict = _one(shield, RELAYED if asked % every == 0 else _answer(UNKNOWN), number)
            assert verdict in (Verdict.RELAYED, Verdict.DEFER)
            if verdict is Verdict.RELAYED:
                waiting.remove(number)


def test_words_the_operator_believed_are_believed_but_not_of_a_row() -> None:
    shield, refused = Shield(in_a_row=3), _answer(UNKNOWN)
    for number in range(3):
        _one(shield, refused, number)
    shield.believe(shield.suspects)
    shield.clear()
    assert [_one(shield, refused, number) for number in range(3, 6)] == [Verdict.BOUNCE] * 2 + [Verdict.STOP]


def test_once_tripped_every_unknown_refusal_stops_until_one_is_relayed() -> None:
    shield = Shield(in_a_row=3)
    assert [_one(shield, _answer(UNKNOWN), number) for number in range(3)][-1] is Verdict.STOP
    outcome = _judge(shield, _answer("Sorry"), first=4)
    assert _verdicts(outcome) == [Verdict.STOP]
    assert outcome.pause is not None
    assert outcome.pause.text.startswith("3 recipients in a row")
    assert outcome.pause.is_doubted
    assert _one(shield, _answer(NOBODY, enhanced="5.1.1"), 4) is Verdict.BOUNCE
    _one(shield, RELAYED, 5)
    assert _one(shield, _answer("Sorry"), 6) is Verdict.DEFER


def test_a_shield_that_is_off_changes_nothing() -> None:
    outcome = Outcome(tuple(_answer(UNKNOWN) for _ in range(50)))
    asked = [(n, f"r{n}@x") for n in range(50)]
    assert Shield(is_off=True).judge(outcome, "", MESSAGE, asked, (0, 0)) is outcome


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
                assert after.verdict in (Verdict.DEFER, Verdict.PAUSE, Verdict.STOP)
                assert after.text == before.text
        is_tripped = any(answer.is_about_us and answer not in said for answer in outcome.answers)
        assert is_tripped <= (outcome.pause is not None)


def test_of_a_long_refusal_little_is_remembered() -> None:
    lines = tuple(f"{number} and {UNKNOWN}" for number in range(2000))
    reply = Reply(550, None, " ".join(lines)[:2000], lines)
    shield = Shield()
    _judge(
        shield, Answer(Verdict.BOUNCE, Phase.RCPT, reply, str(reply), ruling=JUDGE.ruling(Phase.RCPT, reply))
    )

    (suspect,) = shield.suspects
    assert len(repr(suspect)) < 10_000


def _unproven(text: str = "5.1.1 no such user", *, is_unproven: bool = True) -> Answer:
    reply = Reply(550, "5.1.1", text)
    return Answer(Verdict.DEFER, Phase.RCPT, reply, str(reply), is_unproven=is_unproven)


def test_an_unproven_refusal_counts_once_the_same_words_met_the_recipient_twice() -> None:
    shield = Shield(is_off=True)
    betweens = _unproven("5.7.1 in other words"), _unproven(is_unproven=False)
    for number, between in enumerate(betweens):
        for answer in (_unproven(), between, _unproven()):
            assert _one(shield, answer, number) is Verdict.DEFER
    # What another recipient or message was told confirms nothing.
    assert _one(shield, _unproven(), 7) is Verdict.DEFER
    other = _judge(shield, _unproven(), message=QueueId("0000000000000002"))
    assert _verdicts(other) == [Verdict.DEFER]
    assert _one(shield, _unproven("5.1.1 no such <a@b.example> user 17"), 8) is Verdict.DEFER
    assert _one(shield, _unproven("5.1.1 no such <c@d.example> user 18"), 8) is Verdict.BOUNCE
