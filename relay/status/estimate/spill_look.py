"""Which mail would wait too long where it stands, and would go sooner from the next upstream of its route.

Of what goes first in a line each message is estimated (`relay.status.estimate.forecast`), and what stands
behind goes by rates, as `relay queue` shows it; for the line where a message stands, and where it could.
Mail that was spilled asks for the way back.

Guarantees: of a long line a look copies the list at once, and no message; it finds at most MOST_FOUND
messages of each line, those that have come into it first.
Does not: move anything.  `Queue.spill` does, if the message still waits and its route still allows it.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from itertools import islice
from typing import NamedTuple

from relay.queue.queued import Queued, State
from relay.queue.routes import Because, Spilled, spill_asks, spill_goes
from relay.queue.whole import Queue
from relay.status.estimate.forecast import Joining, LineEstimate, Look, load_of

MOST_FOUND = 10_000
"""Of one line in one look: an estimate of so many takes a second."""


class _Asking(NamedTuple):
    """A message that may go elsewhere, and when it goes from where it stands; None where nobody can tell."""

    queued: Queued
    eta_ns: int | None


class SpillLook:
    """A look at all lines.  `find` takes its time, changes nothing of the relay, and may run in a thread."""

    def __init__(self, looks: Mapping[str, Look], queue: Queue) -> None:
        """Take looks at what goes first in each line of the queue."""
        self._looks = looks
        self._standings = dict(queue.standings)
        self._spills_after_ns = queue.spills_after_ns or 0
        found = {
            name for route, its in queue.where().items() if route.spill_after_ns is not None for name in its
        }
        self._asking = [name for name in looks if name in found]
        self._whole = {name: list(queue.line(name)) for name in self._asking if looks[name].behind.messages}
        """Lines that are longer than their looks, in the order in which mail came into them."""
        self._estimates: dict[str, LineEstimate] = {}

    def find(self) -> list[Spilled]:
        """Ask each upstream that could take mail of another one when that mail would go there."""
        asked: dict[str, list[_Asking]] = {}
        for name in self._asking:
            for to, each in islice(self._ask(name), MOST_FOUND):
                asked.setdefault(to, []).append(each)
        found: list[Spilled] = []
        for to, its in asked.items():
            now_ns = self._looks[to].now_ns
            found += [
                Spilled(queued.key, to)
                for (queued, here_ns), there_ns in zip(its, self._etas_at(to, its), strict=True)
                if spill_goes(queued.part.route, queued.choice, to, (here_ns, there_ns), now_ns)
            ]
        return found

    def _ask(self, name: str) -> Iterator[tuple[str, _Asking]]:
        """Yield what stands in a line and may go elsewhere, with where."""
        now_ns = self._looks[name].now_ns
        for asking in self._expected(name):
            queued = asking.queued
            if queued.state is State.WAITING and queued.upstream == name:
                to = spill_asks(queued.part.route, queued.choice, asking.eta_ns, self._standings, now_ns)
                if to is not None and to in self._looks:
                    yield to, asking

    def _expected(self, name: str) -> Iterator[_Asking]:
        """Yield copies of messages with their estimates; behind the look of those that may ask."""
        estimate = self._estimate(name)
        for queued, expected in zip(estimate.messages, estimate.expected, strict=True):
            yield _Asking(queued, expected.eta_ns)
        behind = estimate.look.behind
        # Where nobody can tell, nothing waits too long.
        late_ns = estimate.look.now_ns + self._spills_after_ns
        in_time = behind.messages if estimate.pace is None else estimate.gone_by(late_ns)
        foretold, fails_over = {queued.key for queued in estimate.messages}, estimate.look.fails_over
        number = 0
        for part in self._whole.get(name, ()):
            if part.state is not State.WAITING or part.key in foretold or part.part.route in fails_over:
                continue
            number += 1
            if number > in_time or part.choice.because is Because.SPILL:
                # A copy: the loop goes on with the message itself, and `Queue.spill` asks again.
                queued, ahead = copy(part), behind.part(min(number, behind.messages), behind.messages)
                yield _Asking(queued, estimate.behind(queued, ahead).eta_ns)

    def _etas_at(self, to: str, asking: Sequence[_Asking]) -> list[int | None]:
        """Return when each would go from another line, if all of them went there."""
        look = self._looks[to]
        if (ahead := look.behind).messages:
            estimate = self._estimate(to)
            etas_ns: list[int | None] = []
            for queued, _ in asking:
                ahead = ahead.plus(load_of(queued))
                etas_ns.append(estimate.behind(queued, ahead).eta_ns)
            return etas_ns
        look.join(Joining(queued) for queued, _ in asking)
        messages = look.messages()
        expected = zip(messages, look.expected(messages), strict=True)
        there_ns = {queued.key: each.eta_ns for queued, each in expected}
        return [there_ns[queued.key] for queued, _ in asking]

    def _estimate(self, name: str) -> LineEstimate:
        if (estimate := self._estimates.get(name)) is None:
            estimate = self._estimates[name] = self._looks[name].foreseen()
        return estimate
