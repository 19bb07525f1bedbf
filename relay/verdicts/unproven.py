"""Refusals for good of which nobody knows whose they are, and what confirms one.  Pure.

An upstream that hangs up right behind a refusal leaves it open whether the refusal answered its
own command (`relay.upstream.step`).  Believed at once, an unasked reply bounces a
recipient that the upstream would take; never believed, mail that an upstream refuses and
hangs up on is sent to it for days.  So the recipient is deferred, and bounces when the same
words meet it again, on another connection: what is said out of turn does not find the same
recipient twice.

Memory is bounded and lost at a restart: then the refusal waits to be said once more.
"""

from collections.abc import Sequence
from dataclasses import replace

from relay.mail.envelope import QueueId
from relay.verdicts.outcome import Answer, Outcome
from relay.verdicts.shield import same_words
from relay.verdicts.verdict import Verdict

MOST_KEPT = 10_000
"""How many recipients are remembered; then the oldest are forgotten, and are asked once more."""


class Unproven:
    """The unproven refusals of one upstream."""

    def __init__(self) -> None:
        self._said: dict[tuple[QueueId, int], str] = {}

    def judge(self, outcome: Outcome, queue_id: QueueId, asked: Sequence[tuple[int, str]]) -> Outcome:
        """Return an outcome in which refusals that were said before are believed.

        `asked` names each recipient of the transaction, index and address, in the order of the answers.
        """
        answers = tuple(
            self._believed(answer, (queue_id, index))
            for (index, _), answer in zip(asked, outcome.answers, strict=True)
        )
        return outcome if answers == outcome.answers else replace(outcome, answers=answers)

    def _believed(self, answer: Answer, key: tuple[QueueId, int]) -> Answer:
        before = self._said.pop(key, None)
        if not answer.is_unproven:
            return answer
        said = same_words(answer)
        if said == before:
            return replace(answer, verdict=Verdict.BOUNCE, is_unproven=False)
        self._said[key] = said
        if len(self._said) > MOST_KEPT:
            del self._said[next(iter(self._said))]
        return answer
