"""The shield: one refusal that is said many times does not bounce a list; a dead address still bounces."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.mail.envelope import QueueId
from relay.policy.shipped import standard_rules
from relay.smtp.reply import Phase, Reply
from relay.verdicts.outcome import Answer, Outcome
from relay.verdicts.shield import Shield
from relay.verdicts.verdict import Judge, Scope, Verdict

JUDGE = Judge(standard_rules())
UNKNOWN = "Administrative prohibition"
MESSAGE = QueueId("0123456789abcdef")
_INSTANTS = itertools.count(1)


def _answer(text: str, code: int = 550, enhanced: str | None = None, phase: Phase = Phase.RCPT) -> Answer:
    reply = Reply(code, enhanced, text)
    ruling = JUDGE.ruling(phase, reply)
    return Answer(ruling.verdict, phase, reply, str(reply), ruling=ruling)


def _unproven(text: str = "5.1.1 no such user") -> Answer:
    reply = Reply(550, "5.1.1", text)
    return Answer(Verdict.DEFER, Phase.RCPT, reply, str(reply), is_unproven=True)


SAYS = {
    "u": _answer(UNKNOWN),
    "x": _answer("Sorry"),
    "k": _answer("no such user here", enhanced="5.1.1"),
    "o": Answer(Verdict.BOUNCE, Phase.MAIL, None, "no 8BITMIME", own_status="5.6.3", is_unfit=True),
    "r": _answer("ok", 250, phase=Phase.EOD),
    "n": _unproven(),
    "m": _unproven("5.7.1 in other words"),
    "1": _unproven("5.1.1 no such <a@b.example> user 17"),
    "2": _unproven("5.1.1 no such <c@d.example> user 18"),
}
"""What an upstream says: unknown refusals, a known one, our own, a success, and unproven ones."""
BECOMES = {
    Verdict.DEFER: "D",
    Verdict.BOUNCE: "B",
    Verdict.STOP: "S",
    Verdict.RELAYED: "R",
    Verdict.PAUSE: "P",
}


def _judge(
    shield: Shield, *answers: Answer, first: int = 0, sender: str | None = None, in_flight: bool = False
) -> Outcome:
    """Judge answers.  By default each recipient has another sender, and no two transactions overlap.

    A transaction that is `in_flight` began before all others.
    """
    now_ns = next(_INSTANTS)
    asked = [(first + place, f"r{first + place}@there.example") for place in range(len(answers))]
    sender = f"s{first}@here.example" if sender is None else sender
    return shield.judge(Outcome(answers), sender, MESSAGE, asked, (0 if in_flight else now_ns, now_ns))


def _tell(shield: Shield, story: str) -> str:
    """Play a story and return it with each verdict: `u0` is `u` for recipient 0, `u0!` the same in flight."""
    told = []
    for step in story.split():
        said, number, is_in_flight = step[0], step[1:].rstrip("!BDRS"), "!" in step
        outcome = _judge(shield, SAYS[said], first=int(number), in_flight=is_in_flight)
        told.append(f"{said}{number}{'!' * is_in_flight}{BECOMES[outcome.answers[0].verdict]}")
    return " ".join(told)


@pytest.mark.parametrize(
    "story",
    [
        # A refusal is doubted until a transaction that began later relays something.
        "u0D u0D r7R u0B",
        "u0D r7!R u0D r8R u0B",
        # A refusal that a rule knows stops nothing, nor does one of our own.
        *("k0B k1B k2B k3B", "o0B o1B o2B o3B"),
        # Three in a row trip the shield until one is relayed; a success in flight does not end the row.
        "u0D u1D r7!R u2S",
        "u0D u1D u2S u3S x4D k4B r5R u6D",
        # Even if it is off: an unproven refusal counts once the recipient got the same words twice in a row.
        *("n0D m0D n0D n0B", "n0D n1D", "10D 20B"),
    ],
)
def test_each_story_of_refusals_has_its_verdicts(story: str) -> None:
    shield = Shield(in_a_row=3, is_off=story[0] in "n1")
    assert _tell(shield, story) == story
    assert story[-3:] != "u0B" or shield.suspects == ()


def test_refusals_alike_of_one_sender_pause_only_that_sender() -> None:
    shield = Shield(in_a_row=10)
    refusals = [_answer(f"{UNKNOWN} <r{n}@there.example> id-{n}") for n in range(50)]
    outcome = _judge(shield, *refusals, sender="list@here.example")
    assert {answer.verdict for answer in outcome.answers} == {Verdict.PAUSE}
    assert outcome.pause is not None
    assert outcome.pause.scope is Scope.SENDER
    assert "50 recipients in a row were refused in the same words" in outcome.pause.text
    assert len(shield.suspects) == 50
    # As soon as another sender is refused alike, the account is stopped.
    outcome = _judge(shield, _answer(f"{UNKNOWN} <r50@there.example> id-50"), first=50)
    assert outcome.pause is not None
    assert (outcome.pause.verdict, outcome.pause.scope) == (Verdict.STOP, Scope.UPSTREAM)


@pytest.mark.parametrize("every", [2, 5])
def test_unknown_words_bounce_nobody_while_other_mail_goes_through(every: int) -> None:
    shield, waiting, asked = Shield(), list(range(60)), 0
    while waiting:
        for number in list(waiting):
            asked += 1
            became = _tell(shield, f"{'u' if asked % every else 'r'}{number}")[-1]
            assert became in "RD"
            if became == "R":
                waiting.remove(number)


answers = st.sampled_from(
    [
        *(SAYS[each] for each in "urk"),
        _answer("try later", 451, "4.3.0"),
        _answer("sending limit exceeded", 550, "5.4.5"),
        Answer(Verdict.BOUNCE, Phase.DATA, None, "ours", own_status="5.6.0"),
        Answer(Verdict.DEFER, Phase.EOD, None, "silence"),
    ]
)


@given(st.lists(st.tuples(st.lists(answers, min_size=1, max_size=12), st.integers(0, 40)), max_size=40))
def test_the_shield_only_takes_bounces_back(turns: list[tuple[list[Answer], int]]) -> None:
    shield = Shield(in_a_row=5)
    for said, first in turns:
        outcome = _judge(shield, *said, first=first)
        for before, after in zip(said, outcome.answers, strict=True):
            if after != before:
                assert before.verdict is Verdict.BOUNCE
                assert before.reply is not None
                assert after.verdict in (Verdict.DEFER, Verdict.PAUSE, Verdict.STOP)
                assert after.text.endswith(before.text)
        is_tripped = any(answer.is_about_us and answer not in said for answer in outcome.answers)
        assert is_tripped <= (outcome.pause is not None)


def test_after_an_operators_command_a_stop_needs_a_whole_row_of_new_refusals() -> None:
    shield = Shield(3)
    assert _tell(shield, "u0D u1D u2S") == "u0D u1D u2S"
    shield.clear()
    assert _tell(shield, "u3D u4D u5S") == "u3D u4D u5S"
