"""The listener's way to the spool: calls in threads, in batches, with errors as SMTP replies.

Guarantees what `relay.listener.ports.IntakePort` promises.  Every failure of the spool becomes a temporary
reply: `452 4.3.1` for no room, `451 4.3.0` for anything else (RFC 5321, 4.2.4).  After a 5yz the client would
bounce the message because of our failure.
"""

import asyncio
import sys
from collections.abc import Callable, Sequence

from relay.mail.envelope import Draft, Envelope
from relay.policy.model import Policy
from relay.sender.host import Batch, CallThread, Host, Workers
from relay.smtp.commands import Refused
from relay.spool.engines import open_intake
from relay.spool.interface import Full, Intake, Unavailable
from relay.spool.root.trigger import TriggerPort
from relay.telemetry.events import Events

NO_ROOM = "452 4.3.1 Insufficient system storage, try again later"
NO_LUCK = "451 4.3.0 Local error, try again later"


class SpoolIntake:
    def __init__(
        self,
        intake: Intake,
        trigger: TriggerPort,
        on_error: Callable[[Unavailable], None] = lambda _error: None,
        workers: Workers = CallThread,
        look_seconds: float = 1.0,
    ) -> None:
        """`on_error` gets each failure of the spool, except a lack of room; its client is not told why.

        `look_seconds` is how old the free space may be that a declared size is compared with.
        """
        self._intake, self._trigger = intake, trigger
        self._on_error, self._look_seconds = on_error, look_seconds
        self._commits = workers("commit")
        self._batch: Batch[tuple[Draft, Envelope], None] = Batch(self._commit, self._commits)
        self._room_bytes = sys.maxsize
        """As of the last look; before the first look nothing is refused."""

    def draft(self) -> Draft:
        return self._intake.draft()

    def refusal(self, size_bytes: int) -> str | None:
        # Mail that arrives meanwhile, or declares no size, is refused when it is written.
        return None if size_bytes < self._room_bytes else NO_ROOM

    async def look_for_room(self) -> None:
        try:
            self._room_bytes = await asyncio.to_thread(self._intake.room)
        except Full:
            self._room_bytes = 0
        except Unavailable as error:
            self._on_error(error)

    async def keep_looking_for_room(self) -> None:
        while True:
            await self.look_for_room()
            await asyncio.sleep(self._look_seconds)

    async def spill(self, draft: Draft) -> None:
        writing = asyncio.get_running_loop().run_in_executor(None, draft.spill)
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            # The thread runs on, and uses the draft's descriptor.
            await asyncio.wait([writing])
            raise
        except (Full, Unavailable) as error:
            raise self._refused(error) from error

    async def accept(self, draft: Draft, envelope: Envelope) -> None:
        try:
            await self._batch.submit((draft, envelope))
        except (Full, Unavailable) as error:
            raise self._refused(error) from error

    async def discard(self, draft: Draft) -> None:
        if draft.is_on_disk:
            await asyncio.shield(asyncio.to_thread(draft.discard))
        else:
            draft.discard()

    def close(self) -> None:
        self._commits.close()
        self._intake.close()
        self._trigger.close()

    def _commit(self, drafts: Sequence[tuple[Draft, Envelope]]) -> Sequence[Full | Unavailable | None]:
        results = self._intake.accept(drafts)
        if None in results:
            self._trigger.pull()
        return results

    def _refused(self, error: Full | Unavailable) -> Refused:
        if isinstance(error, Full):
            # Not told to `on_error`: each refusal is logged, and so is a settlement that finds no room.
            return Refused(NO_ROOM)
        self._on_error(error)
        return Refused(NO_LUCK)


def spool_intake(policy: Policy, host: Host, events: Events) -> SpoolIntake:
    return SpoolIntake(
        open_intake(policy, host.disk, host.clock),
        host.trigger(str(policy.spool), host.disk),
        lambda error: events.tell("spool_failed", error=f"accept: {error}"),
        host.workers,
        host.look_seconds,
    )
