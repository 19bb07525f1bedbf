"""Mail that would wait too long for an upstream goes through the next one of its route.

What it would wait is our own estimate (`relay.status.estimate.spill_look`), made in another thread.  A look
comes as often as the shortest `spill_after` makes it worth while, and takes at most a hundredth of the time.
Without `spill_after` there are no looks.

Guarantees: what was spilled goes back once the upstream before it would relay it in time; mail moves in
slices between turns of the loop.
Does not: move what is in a transaction, sits out a back-off, or may have been relayed already.
"""

import asyncio

from relay.clock import SECOND_NS, Clock
from relay.sender.sender import Sender
from relay.status.watch import Watch

LOOK_NS = 60 * SECOND_NS
SHORTEST_LOOK_NS = SECOND_NS
SHARE = 100
"""After a look, wait at least so many times as long as it took."""
MOVED_AT_ONCE = 250
"""Between two turns of the loop: some ten milliseconds."""


class Spilling:
    def __init__(self, sender: Sender, watch: Watch, clock: Clock) -> None:
        self._queue = sender.queue
        self._tell = sender.reroute
        self._watch = watch
        self._clock = clock

    async def run(self) -> None:
        while True:
            began_ns = self._clock.boottime_ns()
            await self.look()
            took_ns = self._clock.boottime_ns() - began_ns
            spill_ns = self._queue.spills_after_ns
            period_ns = LOOK_NS if spill_ns is None else min(LOOK_NS, spill_ns // 4)
            await asyncio.sleep(max(SHORTEST_LOOK_NS, period_ns, SHARE * took_ns) / SECOND_NS)

    async def look(self) -> int:
        """Move what would wait too long, and what would not any more; return how many."""
        if self._queue.spills_after_ns is None:
            return 0
        found = await asyncio.to_thread(self._watch.spill_look().find)
        moved = 0
        for start in range(0, len(found), MOVED_AT_ONCE):
            now_ns = self._clock.boottime_ns()
            moved += sum(self._queue.spill(each, now_ns) for each in found[start : start + MOVED_AT_ONCE])
            await asyncio.sleep(0)
        if self._queue.spill_looked(self._clock.boottime_ns()):
            self._tell()
        return moved
