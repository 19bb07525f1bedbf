"""A refusal of which nobody knows whose it is counts once it was said twice."""

from relay.mail.envelope import QueueId
from relay.smtp.reply import Phase, Reply
from relay.verdicts.outcome import Answer, Outcome
from relay.verdicts.shield import Shield
from relay.verdicts.verdict import Verdict

ONE, OTHER = QueueId("0000000000000001"), QueueId("0000000000000002")


def unproven(text: str = "5.1.1 no such user", *, is_unproven: bool = True) -> Outcome:
    reply = Reply(550, "5.1.1", text)
    return Outcome((Answer(Verdict.DEFER, Phase.RCPT, reply, str(reply), is_unproven=is_unproven),))


def judged(memory: Shield, outcome: Outcome, queue_id: QueueId = ONE, index: int = 0) -> Verdict:
    asked = [(index, "a@there.example")]
    return memory.judge(outcome, "", queue_id, asked, (0, 0)).answers[0].verdict


def test_what_is_said_twice_to_one_recipient_is_believed() -> None:
    memory = Shield(is_off=True)
    assert judged(memory, unproven("5.1.1 no <a@there.example> 17")) is Verdict.DEFER
    assert judged(memory, unproven("5.1.1 no <a@there.example> 18")) is Verdict.BOUNCE


def test_what_another_recipient_or_message_was_told_confirms_nothing() -> None:
    memory = Shield(is_off=True)
    assert judged(memory, unproven()) is Verdict.DEFER
    assert judged(memory, unproven(), index=1) is Verdict.DEFER
    assert judged(memory, unproven(), OTHER) is Verdict.DEFER


def test_other_words_and_any_other_answer_in_between_begin_anew() -> None:
    memory = Shield(is_off=True)
    for between in (unproven("5.7.1 in other words"), unproven(is_unproven=False)):
        assert judged(memory, unproven()) is Verdict.DEFER
        assert judged(memory, between) is Verdict.DEFER
        assert judged(memory, unproven()) is Verdict.DEFER
        judged(memory, unproven(is_unproven=False))
