"""Asks a running relay, again and again, for what `relay top` shows; goes on while it is down.

Guarantees: a relay that stops answering, or is restarted on a spool made anew, is found again; what was
seen last is kept, and how old it is.  Does not: read the spool of a relay that is down, whose lock its next
start needs.  A look costs the relay a snapshot, which takes no pass over the queue, and a share of a pass
that serves all who ask (`relay.status.breakdown`).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from relay.cli.top.picture import TopView
from relay.cli.top.rates import Rates
from relay.clock import Clock
from relay.control.client import ControlClient
from relay.control.operations import Unreachable
from relay.status.breakdown import Breakdown
from relay.status.snapshot import Snapshot


class Looking:
    def __init__(self, spool: Path, clock: Clock) -> None:
        self.spool = spool
        self._clock = clock
        self._client = ControlClient(spool)
        self._rates = Rates()
        self._snapshot: Snapshot | None = None
        self._seen_at_ns = 0
        """Boottime: when the snapshot came."""
        self._breakdown: Breakdown | None = None
        self._trouble = ""
        self._uncounted = ""

    def seen(self) -> TopView:
        """Return what is known now; quick."""
        age_ns = self._clock.boottime_ns() - self._seen_at_ns
        at_ns = self._clock.wall_ns() if self._snapshot is None else self._snapshot.at_ns + age_ns
        return TopView(
            str(self.spool),
            at_ns,
            self._snapshot,
            age_ns,
            self._trouble,
            self._rates.rate(),
            self._breakdown,
            self._uncounted,
        )

    async def look(self) -> None:
        """Ask the relay; where it does not answer, know why."""
        try:
            snapshot = await self._client.snapshot()
        except (Unreachable, OSError) as error:
            self._trouble = await self.why(error)
            # The spool's folder may be another one by now.
            await self._client.close()
            self._client = ControlClient(self.spool)
            return
        self._snapshot, self._trouble = snapshot, ""
        self._seen_at_ns = self._clock.boottime_ns()
        self._rates.note(self._seen_at_ns, snapshot.totals)

    async def count(self) -> None:
        """Ask what waits for what, and who sends most."""
        if self._trouble:
            return
        try:
            self._breakdown, self._uncounted = await self._client.breakdown(), ""
        except (Unreachable, OSError) as error:
            # The next look tells whether the relay is gone, or is of a version that has no breakdown.
            self._uncounted = str(error)

    async def close(self) -> None:
        await self._client.close()

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[ControlClient]:
        """Give a connection of its own for something else."""
        client = ControlClient(self.spool)
        try:
            yield client
        finally:
            await client.close()

    async def why(self, error: Exception) -> str:
        """Return why the relay did not answer."""
        try:
            is_up = await asyncio.to_thread(ControlClient(self.spool).is_up)
        except OSError as denied:
            return f"the relay on {self.spool} cannot be asked: {denied.strerror}"
        return str(error) if is_up else f"no relay runs on {self.spool}"
