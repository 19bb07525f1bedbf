"""Which refusals are not believed yet: the bounce shield, and refusals that may answer another command.

The shield is for one case: an upstream cuts an account off in words that no rule knows, with a permanent
code.  Believing it bounces a whole list.  So a permanent refusal of which only the first digit is recognised
(`Layer.DEFAULT`) is *doubted*: the recipient is deferred, however old its message is, and bounces when it is
refused again after something was relayed that was begun since; unless `SEVERAL` other recipients were told
the same words (`same_words`), of the last `WINDOW`.
The same words to `in_a_row` recipients, with nothing begun since and relayed: told to mail of different
senders they are a STOP, and so is each unknown refusal until something is relayed.  Told to one sender only,
its mail waits (a PAUSE of the sender, which ages) and all other mail goes on.

An upstream that hangs up right behind a refusal leaves it open whether it answered its own command.  Such an
*unproven* refusal is deferred, and counts when the same words meet the recipient again.

Memory is bounded, and lost at a restart but for the stop (`recall`): refusals are asked and doubted again.
"""

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from relay.mail.envelope import QueueId
from relay.smtp.reply import Phase
from relay.verdicts.outcome import Answer, Outcome, gravest, is_any_relayed
from relay.verdicts.verdict import Layer, Ruling, Scope, Verdict

WINDOW = 100
"""How many recipients are looked back on; `in_a_row` is at most as many."""
SEVERAL = 3
"""So many others who were told the same are no accident."""
MOST_KEPT = 10_000
"""Recipients remembered as doubted, and as refused without proof; then the oldest go."""

_STOP = Ruling(Verdict.STOP, Scope.UPSTREAM)
_SENDER_WAITS = Ruling(Verdict.PAUSE, Scope.SENDER)

# Both begin where a word does, or a long one would be read again from each of its characters.
_ADDRESS = re.compile(r"<[^<>]*>|(?<![^\s<>@])[^\s<>@]+@[^\s<>@]+")
_ID = re.compile(r"(?<!\S)[^\s0-9]*[0-9]\S*")
"""A word with a digit in it: a number, or an id in whatever alphabet (Gmail, Postfix, Exim)."""

_Asked = Sequence[tuple[int, str]]
_Key = tuple[QueueId, int]
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Suspect:
    queue_id: QueueId
    index: int
    answer: Answer
    """The refusal as it came."""
    since_ns: int
    """When the recipient was refused so first."""


class _Told(NamedTuple):
    said: str
    who: str
    """The recipient; the message, where all of its recipients are refused at once."""
    sender: str
    at_ns: int


class Shield:
    def __init__(self, in_a_row: int = 10, *, is_off: bool = False) -> None:
        """Begin with no doubts; both may be changed while it is used."""
        self.in_a_row, self.is_off = in_a_row, is_off
        self._told: deque[_Told] = deque(maxlen=WINDOW)
        self._is_stopped, self._why = False, ""  # while nothing was relayed since; and why it tripped last
        self._believed: deque[str] = deque(maxlen=WINDOW)  # words, by the operator
        self._suspects: dict[_Key, Suspect] = {}
        self._relayed_from_ns = -1  # when the latest transaction began that relayed something
        self._unproven: dict[_Key, str] = {}  # what each was told last

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        return tuple(self._suspects.values())

    def judge(
        self, outcome: Outcome, sender: str, queue_id: QueueId, asked: _Asked, span_ns: tuple[int, int]
    ) -> Outcome:
        """Return what may be believed of an outcome; its pause says why the shield tripped.

        `sender` is the same for all spellings of an address.  `asked` names each recipient of the
        transaction, index and address, in the order of the answers; `span_ns` is from when to when it was.
        """
        keys = [(queue_id, index) for index, _ in asked]
        answers = [self._proven(answer, key) for answer, key in zip(outcome.answers, keys, strict=True)]
        if is_relayed := is_any_relayed(outcome):
            self._relayed_from_ns, self._is_stopped = max(self._relayed_from_ns, span_ns[0]), False
        # What the same transaction relayed was relayed since.
        at_ns = span_ns[not is_relayed]
        told = {}
        for place, answer in enumerate(answers):
            if not self.is_off and _is_unknown(answer):
                who = asked[place][1].lower() if answer.phase is Phase.RCPT else queue_id
                told[place] = _Told(same_words(answer), who, sender, at_ns)
        self._told.extend(dict.fromkeys(told.values()))
        for place, each in told.items():
            answers[place] = self._doubted(answers[place], each, keys[place], span_ns[1])
        if tuple(answers) == outcome.answers:
            return outcome  # as nearly always
        pause = gravest(answers)
        if pause is not None and (pause.ruling is _STOP or pause.ruling is _SENDER_WAITS):
            pause = pause._replace(text=self._why, is_doubted=True)
        return outcome._replace(answers=tuple(answers), pause=pause)

    def recall(self, because: str) -> None:
        """Have the upstream stopped as before a restart; empty where it was not."""
        self._is_stopped, self._why = because != "", because

    def clear(self) -> None:
        """Forget all doubts: the operator does not believe them, or has settled them."""
        self._is_stopped = False
        self._told.clear()
        self._suspects.clear()

    def believe(self, suspects: Iterable[Suspect]) -> None:
        """Take the words of these refusals for true, whichever recipient is told them."""
        self._believed.extend({same_words(suspect.answer) for suspect in suspects})

    def _proven(self, answer: Answer, key: _Key) -> Answer:
        """Return a refusal for good where it said the same before; any other answer begins anew."""
        before = self._unproven.pop(key, None)
        if not answer.is_unproven:
            return answer
        if (said := same_words(answer)) == before:
            return answer._replace(verdict=Verdict.BOUNCE, is_unproven=False)
        _remember(self._unproven, key, said)
        return answer

    def _doubted(self, answer: Answer, told: _Told, key: _Key, now_ns: int) -> Answer:
        alike = [each for each in self._told if each.said == told.said]
        row = [each for each in alike if each.at_ns > self._relayed_from_ns]
        suspect, ruling = self._suspects.get(key), None
        went_on = suspect is not None and self._relayed_from_ns >= suspect.since_ns
        if (count := len({each.who for each in row})) >= self.in_a_row:
            what = "recipients" if answer.phase is Phase.RCPT else "messages"
            self._why = f"{count} {what} in a row were refused alike: {answer.text}"
            self._is_stopped = self._is_stopped or len({each.sender for each in row}) > 1
            ruling = None if went_on else _SENDER_WAITS
        ruling = _STOP if self._is_stopped else ruling
        others = {each.who for each in alike} - {told.who}
        if ruling is None and (told.said in self._believed or (went_on and len(others) < SEVERAL)):
            self._suspects.pop(key, None)
            return answer
        if suspect is None and answer.reply is not None:
            # A reply may be long, and this is kept for days.
            short = answer._replace(reply=answer.reply._replace(lines=()))
            _remember(self._suspects, key, Suspect(*key, short, now_ns))
        verdict = Verdict.DEFER if ruling is None else ruling.verdict
        return answer._replace(verdict=verdict, ruling=ruling, is_doubted=suspect is None)


def _remember(memory: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    memory[key] = value
    if len(memory) > MOST_KEPT:
        del memory[next(iter(memory))]


def _is_unknown(answer: Answer) -> bool:
    """Whether the upstream refuses for good in a reply that no rule knows."""
    if answer.verdict is not Verdict.BOUNCE or answer.reply is None:
        return False
    return answer.ruling is None or answer.ruling.layer is Layer.DEFAULT


def same_words(answer: Answer) -> str:
    """Return what refusals have in common that differ in case, addresses, numbers and ids."""
    code = answer.reply.code if answer.reply is not None else 0
    said = answer.ruling.said if answer.ruling is not None else ""
    return f"{code} {_ID.sub('#', _ADDRESS.sub('<>', (said or answer.text).lower()))}"
