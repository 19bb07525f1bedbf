"""Which refusals are not believed yet: the bounce shield, and refusals that may answer another command.

The shield is for one case: an upstream cuts an account off in words that no rule knows, with a permanent
code.  Believing it bounces a whole list.  So a permanent refusal of which only the first digit is
recognised (`Layer.DEFAULT`) is *unknown*.  The shield judges unknown refusals and nothing else: neither a
refusal that a rule recognises, nor one that the relay makes itself, without a reply.

- An unknown refusal is *doubted*: the recipient is deferred, however old its message is.  It bounces only
  if it is refused again after the upstream relayed something that was begun since, which shows that the
  upstream has nothing against us; or it expires by its age when it is refused again.
- Other mail that goes through proves nothing while `SEVERAL` other recipients were told the same words, of
  the last `WINDOW`; nor where a recipient that was told them was relayed later: those words are not
  about recipients.  Then only age ends it, or the operator.
- The same unknown words to `in_a_row` recipients, with nothing relayed in between, *trip* the shield.
  Where they were said of different senders, the refusals become a STOP: the upstream stops, and the
  operator says whether they are to be believed (`believe`, `clear`) or not (`clear`).  Until something is
  relayed, each unknown refusal is a STOP then.  Where they were said of one sender only, its mail waits
  (a PAUSE of the sender) and all other mail goes on.  A recipient that was doubted before, and something
  relayed since, makes nobody wait again: it is deferred.

The same words are the same text but for addresses, numbers and ids (`same_words`).  What is refused at MAIL,
DATA or the content is refused for all recipients at once, and counts as one.

Unproven refusals.  An upstream that hangs up right behind a refusal leaves it open whether the refusal
answered its own command (`relay.upstream.step`).  Believed at once, an unasked reply bounces a recipient
that the upstream would take; never believed, mail that an upstream refuses and hangs up on is sent to it
for days.  So the recipient is deferred, and its refusal counts when the same words meet it again, on
another connection.  Where the shield is off, this is done all the same.

Memory is bounded, and lost at a restart but for the stop (`recall`): refusals doubted before are
asked and doubted again.
"""

import operator
import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from relay.mail.envelope import QueueId
from relay.smtp.reply import Phase
from relay.verdicts.outcome import Answer, Outcome, gravest
from relay.verdicts.verdict import Layer, Ruling, Scope, Verdict

WINDOW = 100
"""How many recipients are looked back on; `in_a_row` is at most as many."""
SEVERAL = 3
"""So many others who were told the same are no accident."""
MOST_WORDS = 100
"""Words of which it is remembered whether they are true."""
MOST_KEPT = 10_000
"""Recipients remembered as doubted, and as refused without proof; then the oldest go."""

_STOP = Ruling(Verdict.STOP, Scope.UPSTREAM)
_SENDER_WAITS = Ruling(Verdict.PAUSE, Scope.SENDER)

# Both begin where a word does, or a long one would be read again from each of its characters.
_ADDRESS = re.compile(r"<[^<>]*>|(?<![^\s<>@])[^\s<>@]+@[^\s<>@]+")
_ID = re.compile(r"(?<!\S)[^\s0-9]*[0-9]\S*")
"""A word with a digit in it: a number, or an id in whatever alphabet (Gmail, Postfix, Exim)."""

_Key = tuple[QueueId, int]
_Asked = Sequence[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Suspect:
    queue_id: QueueId
    index: int
    answer: Answer
    """The refusal as it came."""


class _Told(NamedTuple):
    """What a recipient was told last."""

    said: str
    """Empty where it was relayed."""
    who: str
    """The recipient; the message, where all of its recipients are refused at once."""
    sender: str


class _Trip(NamedTuple):
    ruling: Ruling
    why: str


class Shield:
    def __init__(self, in_a_row: int = 10, *, is_off: bool = False) -> None:
        """Begin with no doubts; both may be changed while it is used."""
        self.in_a_row = in_a_row
        self.is_off = is_off
        self._last: deque[_Told] = deque(maxlen=WINDOW)
        self._stopped_because = ""
        """Why it stopped the upstream, while nothing was relayed since."""
        self._is_true: dict[str, bool] = {}
        """By words: believed by the operator, or false since a recipient told them was relayed later."""
        self._suspects: dict[_Key, tuple[Suspect, int]] = {}
        """With when the first refusal came."""
        self._relayed_from_ns = -1  # when the latest transaction began that relayed something
        self._unproven: dict[_Key, str] = {}
        """The words each recipient was told last that may not have been about it."""

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        return tuple(suspect for suspect, _ in self._suspects.values())

    def judge(
        self, outcome: Outcome, sender: str, queue_id: QueueId, asked: _Asked, span_ns: tuple[int, int]
    ) -> Outcome:
        """Return what may be believed of an outcome; its pause says why the shield tripped.

        `sender` is the same for all spellings of an address.  `asked` names each recipient of the
        transaction, index and address, in the order of the answers; `span_ns` is from when to when it was.
        """
        answers = [
            self._proven(answer, (queue_id, index)) if answer.is_unproven or self._unproven else answer
            for (index, _), answer in zip(asked, outcome.answers, strict=True)
        ]
        trips: dict[str, _Trip] = {}
        if not self.is_off:
            told = {
                place: _Told(same_words(answer), _whom(answer, asked[place][1], queue_id), sender)
                for place, answer in enumerate(answers)
                if _is_unknown(answer)
            }
            self._last.extend(dict.fromkeys(told.values()))
            for (index, recipient), answer in zip(asked, answers, strict=True):
                if answer.verdict is Verdict.RELAYED:
                    self._relay((queue_id, index), recipient, span_ns[0])
            trips = self._trips({each.said: answers[place] for place, each in told.items()})
            for place, each in told.items():
                suspect = Suspect(queue_id, asked[place][0], _without_lines(answers[place]))
                answers[place] = self._believed(suspect, each, trips.get(each.said), span_ns[1])
        if all(map(operator.is_, answers, outcome.answers)):
            return outcome  # as nearly always
        pause = gravest(answers)
        for trip in trips.values():
            if pause is not None and pause.ruling is trip.ruling:
                pause = pause._replace(text=trip.why, is_doubted=True)
        return outcome._replace(answers=tuple(answers), pause=pause)

    def recall(self, because: str) -> None:
        """Have the upstream stopped as before a restart; empty where it was not."""
        self._stopped_because = because

    def clear(self) -> None:
        """Forget all doubts: the operator does not believe them, or has settled them."""
        self._stopped_because = ""
        self._last.clear()
        self._suspects.clear()

    def believe(self, suspects: Iterable[Suspect]) -> None:
        """Take the words of these refusals for true, whichever recipient is told them."""
        for suspect in suspects:
            self._learn(same_words(suspect.answer), is_true=True)

    def _learn(self, said: str, *, is_true: bool) -> None:
        self._is_true.pop(said, None)
        self._is_true[said] = is_true
        if len(self._is_true) > MOST_WORDS:
            del self._is_true[next(iter(self._is_true))]

    def _proven(self, answer: Answer, key: _Key) -> Answer:
        """Return a refusal for good where it said the same before; any other answer begins anew."""
        before = self._unproven.pop(key, None)
        if not answer.is_unproven:
            return answer
        said = same_words(answer)
        if said == before:
            return answer._replace(verdict=Verdict.BOUNCE, is_unproven=False)
        self._unproven[key] = said
        if len(self._unproven) > MOST_KEPT:
            del self._unproven[next(iter(self._unproven))]
        return answer

    def _relay(self, key: _Key, recipient: str, began_ns: int) -> None:
        """Hear of a recipient that was relayed; what it was told before was not true."""
        self._relayed_from_ns = max(self._relayed_from_ns, began_ns)
        self._stopped_because = ""
        self._last.append(_Told("", recipient, ""))
        if self._suspects and (known := self._suspects.pop(key, None)) is not None:
            self._learn(same_words(known[0].answer), is_true=False)

    def _trips(self, refusals: dict[str, Answer]) -> dict[str, _Trip]:
        """Return, by their words, what unknown refusals trip; nothing where they trip nothing."""
        trips = {said: self._trip(said, answer) for said, answer in refusals.items()}
        return {said: trip for said, trip in trips.items() if trip is not None}

    def _trip(self, said: str, answer: Answer) -> _Trip | None:
        row: list[_Told] = []
        for told in reversed(self._last):
            if not told.said:
                break  # relayed
            if told.said == said:
                row.append(told)
        count = len({told.who for told in row})
        if count >= self.in_a_row:
            what = "recipients" if answer.phase is Phase.RCPT else "messages"
            why = f"{count} {what} in a row were refused alike: {answer.text}"
            if len({told.sender for told in row}) == 1 and not self._stopped_because:
                return _Trip(_SENDER_WAITS, why)
            self._stopped_because = why
        return _Trip(_STOP, self._stopped_because) if self._stopped_because else None

    def _believed(self, suspect: Suspect, told: _Told, trip: _Trip | None, now_ns: int) -> Answer:
        answer, key = suspect.answer, (suspect.queue_id, suspect.index)
        known = self._suspects.get(key)
        went_on = known is not None and self._relayed_from_ns >= known[1]
        if went_on and trip is not None and trip.ruling is _SENDER_WAITS:
            trip = None
        if trip is None and (self._is_true.get(told.said) or (went_on and self._is_proven(told))):
            self._suspects.pop(key, None)
            return answer
        self._suspects[key] = (suspect, now_ns if known is None else known[1])
        while len(self._suspects) > MOST_KEPT:
            del self._suspects[next(iter(self._suspects))]
        verdict, ruling = (Verdict.DEFER, None) if trip is None else (trip.ruling.verdict, trip.ruling)
        return answer._replace(verdict=verdict, ruling=ruling, is_doubted=known is None)

    def _is_proven(self, told: _Told) -> bool:
        """Whether it is about its recipient alone, if others went through since it was told so first."""
        if told.said in self._is_true:
            return False
        others = {each.who for each in self._last if each.said == told.said} - {told.who}
        return len(others) < SEVERAL


def _is_unknown(answer: Answer) -> bool:
    """Whether the upstream refuses for good in a reply that no rule knows."""
    if answer.verdict is not Verdict.BOUNCE or answer.reply is None:
        return False
    return answer.ruling is None or answer.ruling.layer is Layer.DEFAULT


def _without_lines(answer: Answer) -> Answer:
    """Return what may be kept for days of an answer, whose reply may be long."""
    return answer if answer.reply is None else answer._replace(reply=answer.reply._replace(lines=()))


def _whom(answer: Answer, recipient: str, queue_id: QueueId) -> str:
    return recipient.lower() if answer.phase is Phase.RCPT else queue_id


def same_words(answer: Answer) -> str:
    code = answer.reply.code if answer.reply is not None else 0
    said = answer.ruling.said if answer.ruling is not None else ""
    return f"{code} {_same(said or answer.text.lower())}"


def but_for_ids(text: str) -> str:
    """Return what texts have in common that differ in case, addresses, numbers and ids."""
    return _same(text.lower())


def _same(text: str) -> str:
    return _ID.sub("#", _ADDRESS.sub("<>", text))
