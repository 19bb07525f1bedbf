"""Which refusals are not believed yet: the bounce shield, and refusals that may answer another command.

The shield is for one case: an upstream cuts an account off in words that no rule knows, with a permanent
code.  To believe it would bounce a whole list.  So a permanent refusal of which only the first digit is known
(`Layer.DEFAULT`) is *doubted*: the recipient is deferred, however old its message is.  It bounces if it is
refused again after a later transaction relayed something, unless `SEVERAL` other recipients of the last
`WINDOW` got the same words (`same_words`).
The shield trips if `in_a_row` recipients get the same words and nothing begun since was relayed.  If their
mail has several senders, it is a STOP, and so is each unknown refusal until something is relayed.  If it has
one sender, the mail of that sender waits (a PAUSE of the sender, which ages) and all other mail goes on.

An upstream that hangs up right behind a refusal leaves open which command it answered.  Such an *unproven*
refusal is deferred.  It counts when the recipient gets the same words again.

Memory is bounded, and lost at a restart except for the stop (`recall`): refusals are doubted anew.
"""

import re
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from relay.mail.envelope import QueueId
from relay.smtp.reply import Phase
from relay.verdicts.outcome import Answer, Outcome, gravest, is_any_relayed
from relay.verdicts.verdict import Layer, Ruling, Scope, Verdict

WINDOW = 100
"""How many of the last refused recipients are compared; `in_a_row` is at most this."""
SEVERAL = 3
"""This many other recipients with the same words are no accident."""
MOST_KEPT = 10_000
"""How many doubted recipients are remembered, and how many unproven ones; the oldest are dropped."""

_STOP = Ruling(Verdict.STOP, Scope.UPSTREAM)
_SENDER_WAITS = Ruling(Verdict.PAUSE, Scope.SENDER)

# Both begin at the start of a word; otherwise a long word is read again from each character.
_ADDRESS = re.compile(r"<[^<>]*>|(?<![^\s<>@])[^\s<>@]+@[^\s<>@]+")
_ID = re.compile(r"(?<!\S)[^\s0-9]*[0-9]\S*")
"""A word with a digit: a number, or an id in any alphabet (Gmail, Postfix, Exim)."""

_Asked = Sequence[tuple[int, str]]
_Key = tuple[QueueId, int]
_Value = TypeVar("_Value")


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
        self._refusals: deque[_Refusal] = deque(maxlen=WINDOW)
        self._is_stopped, self._why = False, ""  # until something is relayed; and why it tripped last
        self._suspects: dict[_Key, int] = {}  # when each doubted recipient was first refused so
        self._relayed_from_ns = -1  # when the latest transaction began that relayed something
        self._unproven: dict[_Key, str] = {}  # the last words to each recipient

    @property
    def suspects(self) -> tuple[_Key, ...]:
        """Return the message and the index of each recipient whose refusal is doubted."""
        return tuple(self._suspects)

    def judge(
        self, outcome: Outcome, sender: str, queue_id: QueueId, asked: _Asked, span_ns: tuple[int, int]
    ) -> Outcome:
        """Return what is believed of an outcome; its pause says why the shield tripped.

        `sender` is in one form for all spellings of an address.  `asked` has the index and the address of
        each recipient, in the order of the answers.  `span_ns` is the begin and end of the transaction.
        """
        keys = [(queue_id, index) for index, _ in asked]
        answers = [self._proven(answer, key) for answer, key in zip(outcome.answers, keys, strict=True)]
        if is_relayed := is_any_relayed(outcome):
            self._relayed_from_ns, self._is_stopped = max(self._relayed_from_ns, span_ns[0]), False
        # A recipient that the same transaction relayed was relayed since.
        at_ns = span_ns[not is_relayed]
        refusals = {}
        for place, answer in enumerate(answers):
            if not self.is_off and _is_unknown(answer):
                target = asked[place][1].lower() if answer.phase is Phase.RCPT else queue_id
                refusals[place] = _Refusal(same_words(answer), target, sender, at_ns)
        self._refusals.extend(dict.fromkeys(refusals.values()))
        for place, each in refusals.items():
            answers[place] = self._doubted(answers[place], each, keys[place], span_ns[1])
        if tuple(answers) == outcome.answers:
            return outcome  # the usual case
        pause = gravest(answers)
        if pause is not None and (pause.ruling is _STOP or pause.ruling is _SENDER_WAITS):
            pause = pause._replace(text=self._why, is_doubted=True)
        return outcome._replace(answers=tuple(answers), pause=pause)

    def recall(self, because: str) -> None:
        """Take over a stop from before a restart or of another host; `because` is empty if there is none.

        If another host ended this shield's own stop, all doubts are over here too.
        """
        if self._is_stopped and not because:
            self.clear()
        self._is_stopped, self._why = because != "", because

    def clear(self) -> None:
        """Forget all doubts: the operator has mended the cause."""
        self._is_stopped = False
        self._refusals.clear()
        self._suspects.clear()

    def _proven(self, answer: Answer, key: _Key) -> Answer:
        """Return a permanent refusal if the same words came before; any other answer starts over."""
        before = self._unproven.pop(key, None)
        if not answer.is_unproven:
            return answer
        if (words := same_words(answer)) == before:
            return answer._replace(verdict=Verdict.BOUNCE, is_unproven=False)
        _remember(self._unproven, key, words)
        return answer

    def _doubted(self, answer: Answer, refusal: _Refusal, key: _Key, now_ns: int) -> Answer:
        alike = [each for each in self._refusals if each.words == refusal.words]
        row = [each for each in alike if each.at_ns > self._relayed_from_ns]
        since_ns, ruling = self._suspects.get(key), None
        went_on = since_ns is not None and self._relayed_from_ns >= since_ns
        if (count := len({each.target for each in row})) >= self.in_a_row:
            what = "recipients" if answer.phase is Phase.RCPT else "messages"
            self._why = f"{count} {what} in a row were refused in the same words: {answer.text}"
            self._is_stopped = self._is_stopped or len({each.sender for each in row}) > 1
            ruling = None if went_on else _SENDER_WAITS
        ruling = _STOP if self._is_stopped else ruling
        others = {each.target for each in alike} - {refusal.target}
        if ruling is None and went_on and len(others) < SEVERAL:
            self._suspects.pop(key, None)
            return answer
        if since_ns is None:
            _remember(self._suspects, key, now_ns)
        verdict = Verdict.DEFER if ruling is None else ruling.verdict
        return answer._replace(verdict=verdict, ruling=ruling, is_doubted=since_ns is None)


def _remember(memory: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    memory[key] = value
    if len(memory) > MOST_KEPT:
        del memory[next(iter(memory))]


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
