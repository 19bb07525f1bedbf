"""Outcomes: the status that a log line and a report show."""

import pytest

from relay.outcome import Answer
from relay.reply import Phase, Reply
from relay.verdict import Verdict

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
        (Answer(Verdict.LATER, Phase.RCPT, Reply(452, None, "too many"), ""), "4.0.0"),
    ],
)
def test_status_is_the_upstreams_or_follows_from_the_verdict(answer: Answer, expected: str) -> None:
    assert answer.status == expected
