"""Mail that would wait too long for an upstream goes through the next one of its route.

What it would wait is our own estimate (`relay.status.forecast`), made for both upstreams in another thread:
message by message of what goes first in a line, by rates of what stands behind, as `relay queue` shows it.  A
look comes as often as the shortest `spill_after` makes it worth while, and takes at most a hundredth of the
time.  Without `spill_after` there are no looks.

Guarantees: what was spilled goes back once the upstream before it would relay it in time; of a long line a
look copies the list at once, and no message; it moves at most MOST_FOUND messages of each line, those that
have come into it first.  Where there are more and some moved, the next look comes as soon as it may.
Does not: move what is in a transaction, sits out a back-off, or may have been relayed already.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from itertools import islice
from typing import NamedTuple

from relay.clock import SECOND_NS, Clock
from relay.queue.queued import Queued, State
from relay.queue.routes import Because, Spilled, spill_asks, spill_goes
from relay.queue.whole import Queue
from relay.sender.sender import Sender
from relay.status.forecast import Joining, LineEstimate, Look, load_of
from relay.status.watch import Watch

LOOK_NS = 60 * SECOND_NS
SHORTEST_LOOK_NS = SECOND_NS
SHARE = 100
"""After a look, wait at least so many times as long as it took."""
MOST_FOUND = 10_000
"""Of one line in one look: an estimate of so many takes a second."""
MOVED_AT_ONCE = 250
"""Between two turns of the loop: some ten milliseconds."""


class _Asking(NamedTuple):
    """A message that may go elsewhere, and when it goes from where it stands; None where nobody can tell."""

    queued: Queued
    eta_ns: int | None


class SpillLook:
    """A look at all lines.  `find` takes its time, changes nothing of the relay, and may run in a thread."""

    def __init__(self, looks: Mapping[str, Look], queue: Queue) -> None:
        """Take looks at what goes first in each line (`Watch.fronts`)."""
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
        self.is_cut = False
        """There were more to find."""

    def find(self) -> list[Spilled]:
        """Ask each upstream that could take mail of another one when that mail would go there."""
        asked: dict[str, list[_Asking]] = {}
        for name in self._asking:
            asking = list(islice(self._ask(name), MOST_FOUND + 1))
            self.is_cut = self.is_cut or len(asking) > MOST_FOUND
            for to, each in asking[:MOST_FOUND]:
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
        foretold = {queued.key for queued in estimate.messages}
        number = 0
        for part in self._whole.get(name, ()):
            if part.state is not State.WAITING or part.key in foretold:
                continue
            number += 1
            if number > in_time or part.choice.because is Because.SPILL:
                # A copy: the loop goes on with the message itself, and `Queue.spill` asks again.
                queued, ahead = copy(part), behind.part(min(number, behind.messages), behind.messages)
                yield _Asking(queued, estimate.behind(queued, ahead).eta_ns)

    def _etas_at(self, to: str, asking: Sequence[_Asking]) -> list[int | None]:
        """Return when each would go from another line, if all of them went there."""
        look, estimate = self._looks[to], self._estimate(to)
        if (ahead := look.behind).messages:
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


class Spilling:
    def __init__(self, sender: Sender, watch: Watch, clock: Clock) -> None:
        self._queue = sender.queue
        self._tell = sender.reroute
        self._wake: Callable[[str], None] = sender.upstreams.wake_one
        self._watch = watch
        self._clock = clock
        self.has_more = False
        """The last look moved mail, and there is more that it did not ask for."""

    async def run(self) -> None:
        while True:
            began_ns = self._clock.boottime_ns()
            await self.look()
            took_ns = self._clock.boottime_ns() - began_ns
            spill_ns = self._queue.spills_after_ns
            period_ns = LOOK_NS if spill_ns is None else min(LOOK_NS, spill_ns // 4)
            wait_ns = max(SHORTEST_LOOK_NS, 0 if self.has_more else period_ns, SHARE * took_ns)
            await asyncio.sleep(wait_ns / SECOND_NS)

    async def look(self) -> int:
        """Move what would wait too long, and what would not any more; return how many."""
        self.has_more = False
        if self._queue.spills_after_ns is None:
            return 0
        look = SpillLook(self._watch.fronts(), self._queue)
        found = await asyncio.to_thread(look.find)
        moved = 0
        for start in range(0, len(found), MOVED_AT_ONCE):
            now_ns = self._clock.boottime_ns()
            its = [each for each in found[start : start + MOVED_AT_ONCE] if self._queue.spill(each, now_ns)]
            for name in {each.to for each in its}:
                self._wake(name)
            moved += len(its)
            await asyncio.sleep(0)
        if self._queue.spill_looked(self._clock.boottime_ns()):
            self._tell()
        self.has_more = look.is_cut and moved > 0
        return moved
