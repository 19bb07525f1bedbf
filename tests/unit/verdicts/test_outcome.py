"""Outcomes: the status that a log line and a report show."""

import pytest

from relay.smtp.reply import Phase, Reply
from relay.verdicts.outcome import Answer, gravest
from relay.verdicts.verdict import WORDS, Ruling, Verdict

WITH_CODE = Reply(550, "5.1.1", "5.1.1 who?")
WITHOUT = Reply(550, None, "who?")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(Verdict.BOUNCE, Phase.RCPT, WITH_CODE, ""), "5.1.1"),
        (Answer(Verdict.BOUNCE, Phase.RCPT, WITHOUT, ""), "5.0.0"),
        (Answer(Verdict.BOUNCE, Phase.MAIL, None, "", own_status="5.6.3"), "5.6.3"),
        (Answer(Verdict.RELAYED, Phase.EOD, Reply(250, None, "ok"), ""), "2.0.0"),
        (Answer(Verdict.RELAYED, Phase.EOD, Reply(250, "2.6.0", "2.6.0 ok"), ""), "2.6.0"),
        (Answer(Verdict.DEFER, Phase.EOD, None, "lost"), "4.4.2"),
        (Answer(Verdict.PAUSE, Phase.CONNECT, None, "refused"), "4.4.2"),
        (Answer(Verdict.PAUSE, Phase.MAIL, Reply(421, None, "bye"), ""), "4.0.0"),
        (Answer(Verdict.DEFER, Phase.RCPT, Reply(550, "5.2.1", "5.2.1 at a rate"), ""), "4.2.1"),
        (Answer(Verdict.STOP, Phase.AUTH, Reply(535, "5.7.8", "5.7.8 wrong"), ""), "5.7.8"),
        (Answer(Verdict.BOUNCE, Phase.RCPT, Reply(450, "4.1.1", "4.1.1 by your own rule"), ""), "5.1.1"),
        (Answer(Verdict.LATER, Phase.RCPT, Reply(452, None, "too many"), ""), "4.0.0"),
    ],
)
def test_status_is_the_upstreams_or_follows_from_the_verdict(answer: Answer, expected: str) -> None:
    assert answer.status == expected


def said(words: str) -> Answer:
    verdict, scope = WORDS[words]
    return Answer(verdict, Phase.RCPT, WITHOUT, words, ruling=Ruling(verdict, scope))


def test_the_gravest_of_many_answers_is_the_one_that_reaches_furthest() -> None:
    every = [said(words) for words in WORDS]

    assert gravest(every) == said("stop")
    assert gravest([said("pause sender"), said("bounce message"), said("pause")]) == said("pause")
    assert gravest([said("later"), said("pause sender")]) == said("pause sender")
    assert gravest([said("bounce recipient"), said("defer message")]) is None
