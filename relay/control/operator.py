"""What an operator sees and does, on the queue in memory and the spool behind it.

The same class answers for a running relay (over the control socket) and for one that is
down (the command line holds the spool itself): `Operations` in both cases.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from relay.control.operations import ABSENT, BUSY, OK, Results
from relay.mail.envelope import QueueId
from relay.mail.text import clean
from relay.queue.scheduler import Queued, Scheduler, State
from relay.sender.settling import Settling
from relay.sender.spool_thread import Change, SpoolThread
from relay.spool.interface import Absent, Corrupt, Message, SpoolFault, SpoolFull, Status
from relay.status.snapshot import MessageDetail, QueuedMessage, RecipientStatus, Snapshot
from relay.status.watch import Watch
from relay.telemetry.events import Events
from relay.verdicts.outcome import Answer
from relay.verdicts.shield import Shield

MOST_SET_ASIDE_LISTED = 1000
MOVED_AT_ONCE = 256
"""Messages that share the syncs of a verb that reads none; some ten milliseconds of the loop."""
LOADED_AT_ONCE = 32
"""Messages of a verb that reads them: up to 256 KiB each are in memory."""
HELD_REASON = "held by the operator"
ONLY_REPORT_LEFT = "only its report is left, which waits for reports.per_hour: `delete` ends it without"

_STATUS_WORDS: dict[Status, Literal["to do", "relayed", "bounced", "expired", "deleted"]] = {
    Status.TODO: "to do",
    Status.RELAYED: "relayed",
    Status.BOUNCED: "bounced",
    Status.EXPIRED: "expired",
    Status.DELETED: "deleted",
}


Action = Callable[[Queued, State], Awaitable[str]]
"""What to do with a message, and in which state it was; returns what to tell."""


class Operator:
    """Carries out what an operator asks for."""

    def __init__(
        self,
        scheduler: Scheduler,
        spool_thread: SpoolThread,
        settling: Settling,
        events: Events,
        *,
        watch: Watch,
        wake: Callable[[], None],
        resume: Callable[[str], bool],
        shield: Callable[[str], Shield | None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        """`on_fault` is told when the disk failed, of which the operator learns too."""
        self._scheduler = scheduler
        self._spool_thread = spool_thread
        self._settling = settling
        self._events = events
        self._watch = watch
        self._wake = wake
        self._resume = resume
        self._shield = shield
        self._on_fault = on_fault

    async def snapshot(self) -> Snapshot:
        """Return what can be seen now."""
        await self._watch.look()
        return self._watch.snapshot()

    async def queue(self) -> Sequence[QueuedMessage]:
        """Return the queue, oldest first, and what is set aside; of recipients only the first ones."""
        spool = self._spool_thread.spool
        aside = await self._spool_thread.call(lambda: spool.set_aside_files(MOST_SET_ASIDE_LISTED))
        messages = await asyncio.to_thread(self._watch.listing().messages)
        return [*messages, *map(self._watch.set_aside, aside)]

    async def show(self, queue_id: QueueId) -> MessageDetail | str:
        """Return one message with all its recipients, or ABSENT, or what went wrong."""
        queued = self._scheduler.get(queue_id)
        if queued is None:
            return ABSENT
        message = await self._load(queue_id)
        if isinstance(message, str):
            return message
        notes = {
            n.index: n
            for n in await self._spool_thread.call(lambda: self._spool_thread.spool.notes(queue_id))
        }
        recipients = tuple(
            RecipientStatus(
                address,
                _STATUS_WORDS[status],
                (notes[index].diagnostic or "") if index in notes else "",
            )
            for index, (address, status) in enumerate(
                zip(message.envelope.recipients, message.statuses, strict=True)
            )
        )
        left = tuple(message.envelope.recipients[index] for index in message.left)
        envelope = message.envelope
        header = (message.content or b"").partition(b"\r\n\r\n")[0].decode("utf-8", "replace")
        listing = self._watch.listing()
        shown = await asyncio.to_thread(listing.message, queue_id, left)
        if shown is None:
            return ABSENT
        return MessageDetail(
            shown,
            envelope.client,
            envelope.helo,
            envelope.protocol,
            envelope.user,
            recipients,
            header,
        )

    async def hold(self, queue_ids: Sequence[QueueId]) -> Results:
        """Set messages aside until they are released."""
        return await self._each(queue_ids, self._hold, MOVED_AT_ONCE)

    async def release(self, queue_ids: Sequence[QueueId]) -> Results:
        """Let held messages go on."""
        return await self._each(queue_ids, self._release, MOVED_AT_ONCE)

    async def retry(self, queue_ids: Sequence[QueueId]) -> Results:
        """Let deferred messages go now instead of when their back-off ends; limits still hold."""
        return await self._each(queue_ids, self._retry, MOVED_AT_ONCE)

    async def bounce(self, queue_ids: Sequence[QueueId]) -> Results:
        """End messages and report their remaining recipients to their senders."""
        return await self._each(queue_ids, self._bounce)

    async def delete(self, queue_ids: Sequence[QueueId]) -> Results:
        """End messages and tell nobody."""
        return await self._each(queue_ids, self._delete)

    async def resume(self, upstream: str, *, believes: bool = False) -> str:
        """Use an upstream that rests again, with one transaction first."""
        if (shield := self._shield(upstream)) is None:
            return ABSENT
        suspects = shield.suspects
        by_message: dict[QueueId, dict[int, Answer]] = {}
        for suspect in suspects:
            by_message.setdefault(suspect.queue_id, {})[suspect.index] = suspect.answer

        async def bounce(queued: Queued, before: State) -> str:
            return await self._believe(queued, before, by_message[queued.queue_id])

        results = await self._each(list(by_message), bounce if believes else self._again)
        failed = {result for result in results.values() if result not in (OK, ABSENT, ONLY_REPORT_LEFT)}
        if failed:
            return f"not all refused recipients could be settled: {', '.join(sorted(failed))}"
        if believes:
            shield.believe(suspects)
        return OK if self._resume(upstream) else ABSENT

    async def _each(
        self, queue_ids: Sequence[QueueId], act: Action, at_once: int = LOADED_AT_ONCE
    ) -> dict[QueueId, str]:
        """Act on messages, some at a time: they share their syncs, and other work goes on in between."""
        results: dict[QueueId, str] = {}
        each_once = list(dict.fromkeys(queue_ids))
        try:
            for start in range(0, len(each_once), at_once):
                some = each_once[start : start + at_once]
                acting = (self._one(queue_id, act) for queue_id in some)
                for queue_id, result in zip(
                    some, await asyncio.gather(*acting, return_exceptions=True), strict=True
                ):
                    if isinstance(result, BaseException):
                        raise result
                    results[queue_id] = result
        finally:
            self._wake()
        return results

    async def _one(self, queue_id: QueueId, act: Action) -> str:
        queued = self._scheduler.get(queue_id)
        if queued is None:
            return ABSENT
        if queued.state is State.ACTIVE:
            return BUSY
        if queued.state is State.REPORTING and act != self._delete:
            return ONLY_REPORT_LEFT
        return await self._seized(queued, act)

    async def _seized(self, queued: Queued, act: Action) -> str:
        """Act on a message that nobody sends meanwhile; put it back as it was if that fails."""
        before = queued.state
        queued.state = State.ACTIVE
        try:
            result = await act(queued, before)
        except (Absent, Corrupt):
            self._scheduler.remove(queued.queue_id)
            return ABSENT
        except (SpoolFull, SpoolFault, OSError) as error:
            if isinstance(error, SpoolFault):
                # Memory and disk may differ from here on.
                self._on_fault(error)
            result = clean(str(error)) or "the disk failed"
        finally:
            if queued.state is State.ACTIVE and queued.queue_id in self._scheduler:
                queued.state = before
                self._scheduler.add(queued)
        return result

    async def _hold(self, queued: Queued, before: State) -> str:
        if before is not State.HELD:
            await self._spool_thread.change(queued.queue_id, Change.HOLD)
            self._events.held(queue_id=queued.queue_id)
        self._scheduler.hold(queued.queue_id)
        queued.reason = HELD_REASON
        return OK

    async def _release(self, queued: Queued, before: State) -> str:
        if before is not State.HELD:
            queued.state = before
            self._scheduler.add(queued)
            return OK
        await self._spool_thread.change(queued.queue_id, Change.RELEASE)
        self._events.released(queue_id=queued.queue_id)
        queued.state = State.HELD
        self._scheduler.release(queued.queue_id)
        return OK

    async def _retry(self, queued: Queued, before: State) -> str:
        if before is State.HELD:
            queued.state = before
            return "held: release it first"
        # While the relay is down, only the hint in the file would let the next start try it at once.
        await self._spool_thread.change(queued.queue_id, Change.RETRY)
        self._events.retried(queue_id=queued.queue_id)
        queued.state = State.DEFERRED
        self._scheduler.release(queued.queue_id)
        return OK

    async def _bounce(self, queued: Queued, _before: State) -> str:
        message = await self._load(queued.queue_id)
        if isinstance(message, str):
            return message
        await self._settling.bounce(message, "removed from the queue by the operator of this relay")
        return OK

    async def _delete(self, queued: Queued, before: State) -> str:
        message = await self._load(queued.queue_id)
        if isinstance(message, str):
            return message
        if before is State.REPORTING:
            await self._settling.end_silently(message)
            return OK
        await self._settling.delete(message)
        return OK

    async def _believe(self, queued: Queued, before: State, refusals: dict[int, Answer]) -> str:
        """Bounce some recipients of a message after all, and let the others go on."""
        message = await self._load(queued.queue_id)
        if isinstance(message, str):
            return message
        left = await self._settling.believe(message, {i: refusals[i] for i in message.left if i in refusals})
        if left:
            queued.recipients_left, queued.state = left, before
            self._scheduler.add(queued)
        return OK

    async def _again(self, queued: Queued, before: State) -> str:
        """Try a message at once whose refusal is not believed, unless it is held."""
        if before is State.HELD:
            queued.state = before
            return OK
        return await self._retry(queued, before)

    async def _load(self, queue_id: QueueId) -> Message | str:
        (message,) = await self._spool_thread.load([queue_id])
        if isinstance(message, (Absent, Corrupt)):
            return ABSENT
        return clean(str(message)) if isinstance(message, Exception) else message
