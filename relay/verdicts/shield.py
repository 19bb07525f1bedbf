"""Which refusals are not believed yet: the bounce shield, and refusals that may answer another command.

The shield.  An upstream that cuts an account off may say so in words that no rule knows, with a
permanent code, to each recipient or to some of them only.  Believing it bounces a whole list.  So a
permanent refusal of which nothing but the first digit is recognised (`Layer.DEFAULT`) is *unknown*, and:

- an unknown refusal is *doubted*: the recipient is deferred, however old its message is.  It bounces only
  if it is refused again after the upstream relayed something else meanwhile, which shows that the
  upstream has nothing against us; or it expires by its age when it is refused again;
- other mail that goes through proves nothing while `SEVERAL` others of the last `WINDOW` recipients
  were told the same words, nor where a recipient that was told them was relayed later: those words
  are not about recipients.  Then only age ends it, or the operator;
- unknown words said to `in_a_row` different ones of the last `WINDOW` recipients *trip* the
  shield, whatever was relayed in between.

A refusal that a rule recognises is not doubted, or a list with many dead addresses would never be done.
But any permanent refusals, recognised or not, trip the shield:

- the same words to `in_a_row` different recipients with nothing relayed in between;
- a share of more than `refused_percent` of the last `WINDOW` recipients, once there were so many.

The refusal that trips it becomes a STOP: those recipients stay as they were, the upstream stops, and
the operator says whether it is to be believed (`believe`, `clear`) or not (`clear`).  From
then on every permanent refusal is a STOP, until something is relayed.

The same words are the same text but for addresses, numbers and ids (`same_words`).  Different are
recipients, where it was said to RCPT; messages, where it was said to MAIL, DATA or the content,
since one such refusal is about all recipients at once.

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

from relay.mail.envelope import QueueId
from relay.smtp.reply import Phase
from relay.verdicts.outcome import Answer, Outcome, gravest
from relay.verdicts.verdict import Layer, Ruling, Scope, Verdict

WINDOW = 100
"""How many recipients are looked back on."""
SEVERAL = 3
"""So many others who were told the same are no accident."""
MOST_WORDS = 100
"""Words of which it is remembered whether they are true."""
MOST_KEPT = 10_000
"""Recipients remembered as doubted, and as refused without proof; then the oldest go."""

# Both begin where a word does, or a long one would be read again from each of its characters.
_ADDRESS = re.compile(r"<[^<>]*>|(?<![^\s<>@])[^\s<>@]+@[^\s<>@]+")
_ID = re.compile(r"(?<!\S)[^\s0-9]*[0-9]\S*")
"""A word with a digit in it: a number, or an id in whatever alphabet (Gmail, Postfix, Exim)."""


@dataclass(frozen=True, slots=True)
class Suspect:
    queue_id: QueueId
    index: int
    answer: Answer
    """The refusal as it came."""


class Shield:
    def __init__(self, in_a_row: int = 10, refused_percent: int = 50, *, is_off: bool = False) -> None:
        """Begin with no doubts; the numbers may be changed while it is used."""
        self.in_a_row = in_a_row
        self.refused_percent = refused_percent
        self.is_off = is_off
        self._said = ""
        """The words that are said in a row, without addresses and numbers."""
        self._who: set[str] = set()
        """The recipients they were said to."""
        self._last: deque[tuple[str, str]] = deque(maxlen=WINDOW)
        """What each of the last recipients was told, and the recipient; empty words where it was relayed.

        Of a message that was refused as a whole all recipients are one.
        """
        self._tripped = ""
        """Why it tripped, while nothing was relayed since."""
        self._is_true: dict[str, bool] = {}
        """By words: believed by the operator, or false since a recipient told them was relayed later."""
        self._suspects: dict[tuple[QueueId, int], tuple[Suspect, int]] = {}
        """With how often the upstream had relayed at the first refusal."""
        self._relayed = 0
        self._unproven: dict[tuple[QueueId, int], str] = {}
        """The words each recipient was told last that may not have been about it."""

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        return tuple(suspect for suspect, _ in self._suspects.values())

    def judge(self, outcome: Outcome, queue_id: QueueId, asked: Sequence[tuple[int, str]]) -> Outcome:
        """Return what may be believed of an outcome; a STOP in it says why the shield tripped.

        `asked` names each recipient of the transaction, index and address, in the order
        of the answers.
        """
        is_judged = not self.is_off
        trip: str | None = None
        has_refusal = False
        answers: list[Answer] = []
        for (index, recipient), answer in zip(asked, outcome.answers, strict=True):
            proven = (
                self._proven(answer, (queue_id, index)) if answer.is_unproven or self._unproven else answer
            )
            answers.append(proven)
            if is_judged and proven.verdict is Verdict.RELAYED:
                self._relay((queue_id, index), recipient)
            elif is_judged and _is_refusal(proven):
                has_refusal = True
                trip = self._count(proven, recipient, queue_id) or trip
        if has_refusal:
            answers = [
                self._believed(Suspect(queue_id, index, answer), recipient, trip)
                if _is_refusal(answer)
                else answer
                for (index, recipient), answer in zip(asked, answers, strict=True)
            ]
        if all(map(operator.is_, answers, outcome.answers)):
            return outcome  # as nearly always
        pause = gravest(answers)
        if trip is not None and pause is not None:
            pause = pause._replace(text=trip, is_doubted=True)
        return outcome._replace(answers=tuple(answers), pause=pause)

    def recall(self, because: str) -> None:
        """Be tripped as before a restart; empty where it was not."""
        self._tripped = because

    def clear(self) -> None:
        """Forget all doubts: the operator does not believe them, or has settled them."""
        self._said, self._who, self._tripped = "", set(), ""
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

    def _proven(self, answer: Answer, key: tuple[QueueId, int]) -> Answer:
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

    def _relay(self, key: tuple[QueueId, int], recipient: str) -> None:
        """Count a recipient that was relayed; what it was told before was not true."""
        self._relayed += 1
        if self._said:
            self._said, self._who = "", set()
        self._tripped = ""
        self._last.append(("", recipient))
        if self._suspects and (known := self._suspects.pop(key, None)) is not None:
            self._learn(same_words(known[0].answer), is_true=False)

    def _count(self, answer: Answer, recipient: str, queue_id: QueueId) -> str | None:
        """Count a refusal; return why the shield is tripped, if it is."""
        said, who = same_words(answer), _whom(answer, recipient, queue_id)
        if said != self._said:
            self._said, self._who = said, set()
        self._who.add(who)
        if not self._last or self._last[-1] != (said, who):
            self._last.append((said, who))
        self._tripped = self._why(answer, said) or self._tripped
        return self._tripped or None

    def _why(self, answer: Answer, said: str) -> str:
        what = "recipients" if answer.phase is Phase.RCPT else "messages"
        if (count := len(self._who)) >= self.in_a_row:
            return f"{count} {what} in a row were refused alike: {answer.text}"
        if self._is_unknown(answer) and (count := len(self._told(said))) >= self.in_a_row:
            return f"{count} of the last {WINDOW} {what} were refused alike: {answer.text}"
        percent = 100 * sum(said != "" for said, _ in self._last) // WINDOW
        if len(self._last) == WINDOW and percent > self.refused_percent:
            return f"{percent} % of the last {WINDOW} recipients were refused, the last by: {answer.text}"
        return ""

    def _told(self, said: str) -> set[str]:
        return {who for words, who in self._last if words == said}

    def _is_unknown(self, answer: Answer) -> bool:
        """Whether neither a rule nor the operator knows what a refusal means."""
        # What the upstream lacks is believed, or not, before it comes here.
        is_known = answer.ruling is not None and answer.ruling.layer is not Layer.DEFAULT
        is_recognised = is_known or answer.lack is not None
        return not is_recognised and self._is_true.get(same_words(answer)) is not True

    def _believed(self, suspect: Suspect, recipient: str, trip: str | None) -> Answer:
        answer, key = suspect.answer, (suspect.queue_id, suspect.index)
        known = self._suspects.get(key)
        if trip is None and (not self._is_unknown(answer) or self._is_proven(suspect, recipient)):
            self._suspects.pop(key, None)
            return answer
        self._suspects[key] = (suspect, self._relayed if known is None else known[1])
        while len(self._suspects) > MOST_KEPT:
            del self._suspects[next(iter(self._suspects))]
        if trip is not None:
            return answer._replace(verdict=Verdict.STOP, ruling=Ruling(Verdict.STOP, Scope.UPSTREAM))
        return answer._replace(verdict=Verdict.DEFER, ruling=None, is_doubted=known is None)

    def _is_proven(self, suspect: Suspect, recipient: str) -> bool:
        """Whether an unknown refusal is about its recipient alone: others went through since its first."""
        known = self._suspects.get((suspect.queue_id, suspect.index))
        if known is None or self._relayed == known[1]:
            return False
        said = same_words(suspect.answer)
        others = self._told(said) - {_whom(suspect.answer, recipient, suspect.queue_id)}
        return len(others) < SEVERAL and said not in self._is_true


def _is_refusal(answer: Answer) -> bool:
    """Whether the upstream refuses for good, in words or by what it does not offer; else it is our own."""
    return answer.verdict is Verdict.BOUNCE and (answer.reply is not None or answer.lack is not None)


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
