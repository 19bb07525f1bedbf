"""The listener's way to the spool: off the event loop, many at a time, and in SMTP's words.

Guarantees what `relay.listener.ports.IntakePort` promises.  Every failure of the spool becomes a
temporary reply: no room is `452 4.3.1`, anything else `451 4.3.0` (RFC 5321, 4.2.4); a 5yz would
make the client bounce because of us.
"""

import asyncio
from collections.abc import Callable, Sequence

from relay.listener.ports import NotAccepted
from relay.mail.draft import Draft
from relay.mail.envelope import Envelope, QueueId
from relay.sender.group_commit import Batch
from relay.sender.host import THREADS, Workers
from relay.spool.interface import Full, Intake, Unavailable
from relay.spool.root.trigger import TriggerPort

NO_ROOM = "452 4.3.1 Insufficient system storage, try again later"
NO_LUCK = "451 4.3.0 Local error, try again later"

_SPILLS_AT_ONCE = 4
_UNKNOWN_ROOM_BYTES = 64 * 1024 * 1024
"""Before the first look."""


class SpoolIntake:
    def __init__(
        self,
        intake: Intake,
        trigger: TriggerPort,
        on_error: Callable[[Unavailable], None] = lambda _error: None,
        workers: Workers = THREADS,
    ) -> None:
        """Tell `on_error` what went wrong with the spool, which the client is not told."""
        self._intake = intake
        self._trigger = trigger
        self._on_error = on_error
        self._commits = workers.one("commit")
        self._spills = workers.several(_SPILLS_AT_ONCE, "spill")
        self._batch: Batch[tuple[Draft, Envelope], None] = Batch(self._commit, self._commits)
        self._under_way: dict[QueueId, asyncio.Future[None]] = {}
        """What threads do with drafts just now."""
        self._room_bytes = _UNKNOWN_ROOM_BYTES
        """As of the last look."""

    def draft(self) -> Draft:
        return self._intake.draft()

    def refusal(self, size_bytes: int) -> str | None:
        # What arrives meanwhile, or without a declared size, is refused when it is written.
        return None if size_bytes < self._room_bytes else NO_ROOM

    @property
    def is_full(self) -> bool:
        """Whether no message at all can be stored, as far as is known."""
        return self.refusal(0) is not None

    async def look_for_room(self) -> None:
        try:
            self._room_bytes = await asyncio.to_thread(self._intake.room)
        except Full:
            self._room_bytes = 0
        except Unavailable as error:
            self._on_error(error)

    async def spill(self, draft: Draft) -> None:
        writing = asyncio.get_running_loop().run_in_executor(self._spills, draft.spill)
        try:
            await self._undisturbed(draft, writing)
        except (Full, Unavailable) as error:
            raise self._refused(error) from error

    async def accept(self, draft: Draft, envelope: Envelope) -> None:
        try:
            await self._undisturbed(draft, self._batch.submit((draft, envelope)))
        except (Full, Unavailable) as error:
            raise self._refused(error) from error

    async def discard(self, draft: Draft) -> None:
        """Leave a draft that is being stored to the thread that stores it; never raises."""
        if (under_way := self._under_way.get(draft.queue_id)) is not None:
            # Its caller was cancelled, the thread was not, and has its descriptor.
            await asyncio.wait([under_way])
        if not draft.is_on_disk:
            draft.discard()
            return
        loop = asyncio.get_running_loop()
        await asyncio.shield(loop.run_in_executor(self._spills, draft.discard))

    def close(self) -> None:
        self._commits.close()
        self._spills.shutdown()
        self._intake.close()

    async def _undisturbed(self, draft: Draft, call: "asyncio.Future[None]") -> None:
        """Wait for a call about a draft, which goes on where the caller is cancelled."""
        self._under_way[draft.queue_id] = call
        call.add_done_callback(lambda ended: self._ended(draft.queue_id, ended))
        await asyncio.shield(call)

    def _ended(self, queue_id: QueueId, call: "asyncio.Future[None]") -> None:
        del self._under_way[queue_id]
        if not call.cancelled():
            call.exception()  # told to the caller, if there still is one

    def _commit(self, drafts: Sequence[tuple[Draft, Envelope]]) -> Sequence[Full | Unavailable | None]:
        results = self._intake.accept(drafts)
        if None in results:
            self._trigger.pull()
        return results

    def _refused(self, error: Full | Unavailable) -> NotAccepted:
        if isinstance(error, Full):
            # Each refusal tells of it, and so does what cannot be written about mail that is ours.
            return NotAccepted(NO_ROOM)
        self._on_error(error)
        return NotAccepted(NO_LUCK)
