"""The bounce shield: doubts refusals that look like one refusal of us, said many times.  Pure.

An upstream that cuts an account off may say so in words that no rule knows, to each
recipient, with a permanent code.  Believing it bounces a whole list.  So:

- a permanent refusal that nothing but its first digit recognises (`Layer.DEFAULT`) is
  *doubted*: the recipient is deferred, however old its message is, and bounces only if it
  is refused again after the upstream relayed something else meanwhile, which shows that it
  has nothing against us; or expires by its age when it is refused again;
- the same refusal, but for addresses and numbers, of `in_a_row` different recipients
  with nothing relayed in between *trips* the shield, also where its code is known;
- so does a share of more than `refused_percent` of the last `WINDOW` recipients, once
  there were so many.

A refusal that trips it becomes a STOP: those recipients stay as they were, the upstream
stops, and the operator says whether it is to be believed (`believe`) or not (`clear`).

What counts as different: recipients, where it was said to RCPT; messages, where it was
said to MAIL, DATA or the content, since one such refusal is about all recipients at once.

Memory is bounded, and lost at a restart: what was doubted then is doubted again.
Does not: know time, or touch a queue.
"""

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from relay.envelope import QueueId
from relay.outcome import Answer, Outcome, gravest
from relay.reply import Phase
from relay.verdict import Layer, Ruling, Scope, Verdict

WINDOW = 100
"""Of how many recipients the share is taken."""
MOST_KEPT = 10_000
"""How many doubted or stopped recipients are remembered for `believe`; then the oldest are forgotten."""

_ADDRESS = re.compile(r"<[^>]*>|[^\s<>@]+@[^\s<>@]+")
_ID = re.compile(r"\S*[0-9]\S*")
"""A word with a digit in it: a number, or an id in whatever alphabet (Gmail, Postfix, Exim)."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """One recipient whose refusal is not believed yet."""

    queue_id: QueueId
    index: int
    """Which recipient of the envelope."""
    answer: Answer
    """The refusal as it came."""


class Shield:
    """The shield of one upstream."""

    def __init__(self, in_a_row: int = 10, refused_percent: int = 50, *, is_off: bool = False) -> None:
        """Begin with nothing said; the numbers may be changed while it is used."""
        self.in_a_row = in_a_row
        self.refused_percent = refused_percent
        self.is_off = is_off
        self._said = ""
        """What is being said in a row, without addresses and numbers."""
        self._who: set[str] = set()
        """To whom."""
        self._last: deque[bool] = deque(maxlen=WINDOW)
        """Whether each of the last recipients was refused."""
        self._suspects: dict[tuple[QueueId, int], tuple[Suspect, int]] = {}
        """With how often the upstream had relayed when it was first refused."""
        self._relayed = 0

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        """Return who was refused and is not believed to be refused, the oldest first."""
        return tuple(suspect for suspect, _ in self._suspects.values())

    def judge(self, outcome: Outcome, queue_id: QueueId, asked: Sequence[tuple[int, str]]) -> Outcome:
        """Return what may be believed of an outcome; a STOP in it says why the shield tripped.

        `asked` names each recipient of the transaction, index and address, in the order
        of the answers.
        """
        if self.is_off:
            return outcome
        trip: str | None = None
        for (index, recipient), answer in zip(asked, outcome.answers, strict=True):
            trip = self._count(answer, recipient, queue_id) or trip
            if answer.verdict is Verdict.RELAYED:
                self._suspects.pop((queue_id, index), None)
        answers = tuple(
            self._believed(Suspect(queue_id, index, answer), trip)
            for (index, _), answer in zip(asked, outcome.answers, strict=True)
        )
        pause = gravest(answers) or outcome.pause
        if trip is not None and pause is not None:
            pause = replace(pause, text=trip)
        return replace(outcome, answers=answers, pause=pause)

    def clear(self) -> None:
        """Begin anew: the operator does not believe it, or has settled it."""
        self._said, self._who = "", set()
        self._last.clear()

    def believe(self) -> tuple[Suspect, ...]:
        """Return all that was doubted, to be bounced after all, and begin anew."""
        suspects = self.suspects
        self._suspects.clear()
        self.clear()
        return suspects

    def _count(self, answer: Answer, recipient: str, queue_id: QueueId) -> str | None:
        if answer.verdict is Verdict.RELAYED:
            self._relayed += 1
            self._said, self._who = "", set()
            self._last.append(False)
            return None
        if answer.verdict is not Verdict.BOUNCE or answer.reply is None:
            return None
        said = same_words(answer)
        if said != self._said:
            self._said, self._who = said, set()
        self._who.add(recipient.lower() if answer.phase is Phase.RCPT else queue_id)
        self._last.append(True)
        if len(self._who) >= self.in_a_row:
            what = "recipients" if answer.phase is Phase.RCPT else "messages"
            return f"{len(self._who)} {what} in a row were refused alike: {answer.text}"
        percent = 100 * sum(self._last) // WINDOW
        if len(self._last) == WINDOW and percent > self.refused_percent:
            return f"{percent} % of the last {WINDOW} recipients were refused, the last by: {answer.text}"
        return None

    def _believed(self, suspect: Suspect, trip: str | None) -> Answer:
        answer, key = suspect.answer, (suspect.queue_id, suspect.index)
        if answer.verdict is not Verdict.BOUNCE or answer.reply is None:
            return answer
        is_recognised = answer.ruling is not None and answer.ruling.layer is not Layer.DEFAULT
        if trip is None and is_recognised:
            return answer
        known = self._suspects.get(key)
        if trip is None and known is not None and self._relayed > known[1]:
            # Others went through since: it is about this one.
            del self._suspects[key]
            return answer
        self._suspects[key] = (suspect, self._relayed if known is None else known[1])
        while len(self._suspects) > MOST_KEPT:
            del self._suspects[next(iter(self._suspects))]
        if trip is not None:
            return replace(answer, verdict=Verdict.STOP, ruling=Ruling(Verdict.STOP, Scope.UPSTREAM))
        return replace(answer, verdict=Verdict.DEFER, ruling=None, is_doubted=known is None)


def same_words(answer: Answer) -> str:
    """Return a refusal without what differs from recipient to recipient: addresses, numbers, ids."""
    code = answer.reply.code if answer.reply is not None else 0
    return f"{code} {_ID.sub('#', _ADDRESS.sub('<>', answer.text.lower()))}"
