"""Which refusals are not believed yet: the bounce shield, and refusals that may answer another command.

The shield is for one case: an upstream cuts an account off in words that no rule knows, with a permanent
code.  To believe it would bounce a whole list.  So a permanent refusal of which only the first digit is known
(`Layer.DEFAULT`) is *doubted*: the recipient is deferred, however old its message is.  It bounces if it is
refused again after a later transaction relayed something, unless `SEVERAL` other recipients of the last
`WINDOW` got the same words (`same_words`).
The shield trips if `in_a_row` recipients get the same words and nothing begun since was relayed.  If their
mail has several senders, it is a STOP.  If it has one sender, the mail of that sender waits (`SENDER_WAITS`,
which ages) and all other mail goes on.

An upstream that hangs up right behind a refusal leaves open which command it answered.  Such an *unproven*
refusal is deferred.  It counts when the recipient gets the same words again.

Memory is bounded, and lost at a restart: refusals are doubted anew, and none bounces for that.
"""

import re
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from relay.mail.envelope import QueueId
from relay.smtp.reply import Phase
from relay.verdicts.outcome import Answer, Outcome, is_any_relayed
from relay.verdicts.verdict import Layer, Ruling, Scope, Verdict

WINDOW = 100
"""How many of the last refused recipients are compared; `in_a_row` is at most this."""
SEVERAL = 3
"""This many other recipients with the same words are no accident."""
MOST_KEPT = 10_000
"""How many refused recipients are remembered; the oldest are dropped."""
SENDER_WAITS = Ruling(Verdict.PAUSE, Scope.SENDER)
_STOP = Ruling(Verdict.STOP, Scope.UPSTREAM)

# Both begin at the start of a word; otherwise a long word is read again from each character.
_ADDRESS = re.compile(r"<[^<>]*>|(?<![^\s<>@])[^\s<>@]+@[^\s<>@]+")
_ID = re.compile(r"(?<!\S)[^\s0-9]*[0-9]\S*")
"""A word with a digit: a number, or an id in any alphabet (Gmail, Postfix, Exim)."""


class _Refusal(NamedTuple):
    words: str
    target: str
    """The recipient; or the message, if all its recipients are refused at once."""
    sender: str
    at_ns: int


class Shield:
    def __init__(self, in_a_row: int = 10, *, is_off: bool = False) -> None:
        """Begin without doubts; both arguments may be changed later."""
        self.in_a_row, self.is_off = in_a_row, is_off
        self._last: deque[_Refusal] = deque(maxlen=WINDOW)
        self._suspects: dict[tuple[QueueId, int], _Refusal] = {}  # how each recipient was first refused
        self._relayed_from_ns = -1  # when the latest transaction began that relayed something

    @property
    def suspects(self) -> tuple[tuple[QueueId, int], ...]:
        """Return the message and the index of each recipient whose refusal is doubted."""
        return tuple(self._suspects)

    def judge(
        self,
        outcome: Outcome,
        sender: str,
        queue_id: QueueId,
        asked: Sequence[tuple[int, str]],
        span_ns: tuple[int, int],
    ) -> Outcome:
        """Return what is believed of an outcome; an answer by which the shield trips says why in its text.

        `sender` is in one form for all spellings of an address.  `asked` has the index and the address of
        each recipient, in the order of the answers.  `span_ns` is the begin and end of the transaction.
        """
        if is_relayed := is_any_relayed(outcome):
            self._relayed_from_ns = max(self._relayed_from_ns, span_ns[0])
        if not any(answer.is_unproven or answer.verdict is Verdict.BOUNCE for answer in outcome.answers):
            return outcome  # the usual case
        answers, refusals = list(outcome.answers), {}
        for place, answer in enumerate(answers):
            if not answer.is_unproven and not _is_unknown(answer):
                continue
            index, address = asked[place]
            target = address.lower() if answer.phase is Phase.RCPT else queue_id
            # A recipient that the same transaction relayed was relayed since.
            refusal = _Refusal(same_words(answer), target, sender, span_ns[not is_relayed])
            if answer.is_unproven:
                before = self._suspects.get((queue_id, index))
                if before is None or before.words != refusal.words:
                    self._suspect((queue_id, index), refusal)
                    continue
                answers[place] = answer._replace(verdict=Verdict.BOUNCE, is_unproven=False)
            if not self.is_off and _is_unknown(answers[place]):
                refusals[place] = refusal
        self._last.extend(dict.fromkeys(refusals.values()))
        for place, refusal in refusals.items():
            answers[place] = self._doubted(answers[place], refusal, (queue_id, asked[place][0]))
        return outcome._replace(answers=tuple(answers))

    def clear(self) -> None:
        """Forget all doubts: the operator has mended the cause."""
        self._last.clear()
        self._suspects.clear()

    def _doubted(self, answer: Answer, refusal: _Refusal, key: tuple[QueueId, int]) -> Answer:
        alike = [each for each in self._last if each.words == refusal.words]
        row = [each for each in alike if each.at_ns > self._relayed_from_ns]
        before, ruling, text = self._suspects.get(key), None, answer.text
        went_on = before is not None and self._relayed_from_ns > before.at_ns
        if (count := len({each.target for each in row})) >= self.in_a_row:
            if len({each.sender for each in row}) > 1:
                ruling = _STOP
            elif not went_on:
                ruling = SENDER_WAITS
        if ruling is not None:
            what = "recipients" if answer.phase is Phase.RCPT else "messages"
            text = f"{count} {what} in a row were refused in the same words: {text}"
        elif went_on and len({each.target for each in alike} - {refusal.target}) < SEVERAL:
            del self._suspects[key]
            return answer
        if before is None:
            self._suspect(key, refusal)
        verdict = Verdict.DEFER if ruling is None else ruling.verdict
        return answer._replace(verdict=verdict, text=text, ruling=ruling, is_doubted=before is None)

    def _suspect(self, key: tuple[QueueId, int], refusal: _Refusal) -> None:
        self._suspects[key] = refusal
        if len(self._suspects) > MOST_KEPT:
            del self._suspects[next(iter(self._suspects))]


def _is_unknown(answer: Answer) -> bool:
    """Return whether the upstream refuses permanently, in a reply that no rule knows."""
    if answer.verdict is not Verdict.BOUNCE or answer.reply is None:
        return False
    return answer.ruling is None or answer.ruling.layer is Layer.DEFAULT


def same_words(answer: Answer) -> str:
    """Return the words of a refusal without case, addresses, numbers and ids, to compare refusals."""
    code = answer.reply.code if answer.reply is not None else 0
    words = answer.ruling.refusal_text if answer.ruling is not None else ""
    return f"{code} {_ID.sub('#', _ADDRESS.sub('<>', (words or answer.text).lower()))}"
