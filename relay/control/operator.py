"""What an operator sees and does, on the queue in memory and the spool behind it.

One class serves a running relay, over the control socket, and the spool of one that is down, held by
the command line.  It carries out the deeds of `relay.control.operations.TABLE`.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from relay.control.operations import ABSENT, OK, TABLE, Deed, Results, Verb
from relay.mail.envelope import QueueId
from relay.mail.text import clean
from relay.queue.scheduler import Queued, State
from relay.sender.sender import Sender
from relay.sender.settling import domains_left
from relay.sender.spool_thread import Change
from relay.spool.interface import Absent, Corrupt, Message, Note, SpoolFault, SpoolFull, Status
from relay.status.snapshot import MessageView, RecipientStatus, RecipientView, Snapshot
from relay.status.watch import Watch
from relay.telemetry.events import Events
from relay.verdicts.outcome import Answer

MOST_SET_ASIDE_LISTED = 1000
MOVED_AT_ONCE = 256
"""Messages that share the syncs of a verb that reads none; a batch holds the loop for some 10 ms."""
LOADED_AT_ONCE = 32
"""Messages of a verb that reads them: up to 256 KiB each are in memory."""
HELD_REASON = "held by the operator"

_STATUS_WORDS: Mapping[Status, RecipientStatus] = {
    Status.TODO: "to do",
    Status.RELAYED: "relayed",
    Status.BOUNCED: "bounced",
    Status.EXPIRED: "expired",
    Status.DELETED: "deleted",
}
_Refusals = Mapping[QueueId, Mapping[int, Answer]]
"""What the shield doubts: of each message, the refusals by the index of the recipient."""


class Operator:
    def __init__(self, sender: Sender, watch: Watch, events: Events) -> None:
        self._sender = sender
        self._scheduler = sender.scheduler
        self._spool_thread = sender.spool_thread
        self._settling = sender.settling
        self._upstreams = sender.upstreams
        self._watch = watch
        self._tell = {Deed.HOLD: events.held, Deed.RELEASE: events.released, Deed.RETRY: events.retried}

    async def snapshot(self) -> Snapshot:
        await self._watch.look()
        return self._watch.snapshot()

    async def queue(self) -> Sequence[MessageView]:
        spool = self._spool_thread.spool
        aside = await self._spool_thread.call(lambda: spool.set_aside_files(MOST_SET_ASIDE_LISTED))
        messages = await asyncio.to_thread(self._watch.listing().messages)
        return [*messages, *map(self._watch.set_aside, aside)]

    async def show(self, queue_id: QueueId) -> MessageView | str:
        if queue_id not in self._scheduler:
            return ABSENT
        message = await self._load(queue_id)
        if isinstance(message, str):
            return message
        spool = self._spool_thread.spool
        notes = await self._spool_thread.call(lambda: spool.notes(queue_id))
        left = tuple(message.envelope.recipients[index] for index in message.left)
        view = await asyncio.to_thread(self._watch.listing().message, queue_id, left)
        return ABSENT if view is None else _whole(view, message, notes)

    async def act(self, verb: Verb, queue_ids: Sequence[QueueId]) -> Results:
        return await self._each(verb, queue_ids, {})

    async def resume(self, upstream: str, *, believes: bool = False) -> str:
        if (shield := self._upstreams.shield(upstream)) is None:
            return ABSENT
        suspects = shield.suspects
        refusals: dict[QueueId, dict[int, Answer]] = {}
        for suspect in suspects:
            refusals.setdefault(suspect.queue_id, {})[suspect.index] = suspect.answer
        results = await self._each("believe" if believes else "resume", refusals, refusals)
        if failed := set(results.values()) - {OK, ABSENT}:
            return f"not all refused recipients could be settled: {', '.join(sorted(failed))}"
        if believes:
            shield.believe(suspects)
        return OK if self._upstreams.resume(upstream) else ABSENT

    async def _each(self, verb: Verb, queue_ids: Iterable[QueueId], refusals: _Refusals) -> Results:
        """Act on some messages at a time: they share their syncs, and other work goes on in between."""
        at_once = LOADED_AT_ONCE if TABLE[verb].reads_content else MOVED_AT_ONCE
        each_once = list(dict.fromkeys(queue_ids))
        results: dict[QueueId, str] = {}
        try:
            for start in range(0, len(each_once), at_once):
                some = each_once[start : start + at_once]
                acting = (self._one(verb, queue_id, refusals.get(queue_id, {})) for queue_id in some)
                done = await asyncio.gather(*acting, return_exceptions=True)
                for queue_id, result in zip(some, done, strict=True):
                    if isinstance(result, BaseException):
                        raise result
                    results[queue_id] = result
        finally:
            self._sender.wake()
        return results

    async def _one(self, verb: Verb, queue_id: QueueId, refusals: Mapping[int, Answer]) -> str:
        """Make the message ACTIVE meanwhile; put it back as it was if that fails."""
        queued = self._scheduler.get(queue_id)
        if queued is None:
            return ABSENT
        deed = TABLE[verb].deeds[queued.state]
        if isinstance(deed, str):
            return deed
        if deed is Deed.NOTHING:
            return OK
        before = queued.state
        self._scheduler.seize(queue_id)
        try:
            result = await (
                self._end(queued, before, deed, refusals) if deed.reads_content else self._move(queued, deed)
            )
        except (Absent, Corrupt):
            self._scheduler.remove(queue_id)
            return ABSENT
        except (SpoolFull, SpoolFault, OSError) as error:
            if isinstance(error, SpoolFault):
                # Memory and disk may differ from here on.
                self._sender.fail(error)
            result = clean(str(error)) or "the disk failed"
        finally:
            if queued.state is State.ACTIVE and queue_id in self._scheduler:
                self._scheduler.put_back(queue_id, before)
        return result

    async def _move(self, queued: Queued, deed: Deed) -> str:
        # For RETRY too: while the relay is down, the hint in the file has the next start try it at once.
        await self._spool_thread.change(queued.queue_id, Change[deed.name])
        self._tell[deed](queue_id=queued.queue_id)
        if deed is Deed.HOLD:
            self._scheduler.hold(queued.queue_id)
            self._scheduler.explain(queued.queue_id, HELD_REASON)
        else:
            state = State.HELD if deed is Deed.RELEASE else State.DEFERRED
            self._scheduler.put_back(queued.queue_id, state)
            self._scheduler.release(queued.queue_id)
        return OK

    async def _end(self, queued: Queued, before: State, deed: Deed, refusals: Mapping[int, Answer]) -> str:
        message = await self._load(queued.queue_id)
        if isinstance(message, str):
            return message
        match deed:
            case Deed.BOUNCE:
                await self._settling.bounce(message, "removed from the queue by the operator of this relay")
            case Deed.DELETE:
                await self._settling.delete(message)
            case Deed.END_REPORT:
                await self._settling.end_silently(message)
            case _:
                doubted = {index: refusals[index] for index in message.left if index in refusals}
                if left := await self._settling.believe(message, doubted):
                    domains = domains_left(message, doubted, queued.tried)
                    self._scheduler.put_back(queued.queue_id, before, (left, domains))
        return OK

    async def _load(self, queue_id: QueueId) -> Message | str:
        (message,) = await self._spool_thread.load([queue_id])
        if isinstance(message, Absent | Corrupt):
            return ABSENT
        return clean(str(message)) if isinstance(message, Exception) else message


def _whole(view: MessageView, message: Message, notes: Iterable[Note]) -> MessageView:
    envelope, why = message.envelope, {note.index: note.diagnostic or "" for note in notes}
    pairs = zip(envelope.recipients, message.statuses, strict=True)
    return replace(
        view,
        client=envelope.client,
        helo=envelope.helo,
        protocol=envelope.protocol,
        user=envelope.user,
        recipient_statuses=tuple(
            RecipientView(address, _STATUS_WORDS[status], why.get(index, ""))
            for index, (address, status) in enumerate(pairs)
        ),
        header=(message.content or b"").partition(b"\r\n\r\n")[0].decode("utf-8", "replace"),
    )
