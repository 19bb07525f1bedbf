"""What belongs together in the sender: the queue and its spool; all that is known of one upstream."""

from dataclasses import dataclass
from typing import NamedTuple

from relay.queue.scheduler import Scheduler
from relay.sender.lowered_limits import LoweredLimits
from relay.sender.offers import KnownOffers
from relay.sender.pause import Pausing
from relay.sender.settling import Settling
from relay.sender.spool_thread import SpoolThread
from relay.sender.state_file import KeptState
from relay.verdicts.shield import Shield
from relay.verdicts.verdict import Judge


class Backlog(NamedTuple):
    """The queue in memory, the spool behind it, and what writes down how attempts ended."""

    scheduler: Scheduler
    spool_thread: SpoolThread
    settling: Settling


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one upstream; most of it goes on over a restart."""

    judge: Judge
    shield: Shield
    pausing: Pausing
    learning: LoweredLimits
    offers: KnownOffers
    kept: KeptState

    async def recall(self) -> None:
        """Go on from what was known before a restart, ahead of the first decision."""
        if (pause := await self.kept.pause.read()) is not None:
            self.pausing.recall(pause)
            self.shield.recall(pause.doubts)
        if (lessons := await self.kept.lessons.read()) is not None:
            self.learning.recall(lessons)
        if (offers := await self.kept.offers.read()) is not None:
            self.offers.recall(offers)

    async def close(self) -> None:
        """Wait until what a restart has to know is written."""
        await self.kept.close()
