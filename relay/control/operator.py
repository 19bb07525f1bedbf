"""What an operator sees and does, on the queue in memory and the spool behind it.

One class serves a running relay, over the control socket, and the spool of one that is down, held by
the command line.  It carries out the deeds of `relay.control.operations.TABLE`.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from relay.control.operations import (
    ABSENT,
    CHANGED,
    FAULT,
    OK,
    TABLE,
    UNCHANGED,
    UNREAD,
    Deed,
    Found,
    Results,
    Session,
    Verb,
    Write,
)
from relay.control.recorded import recorded_upstreams
from relay.mail.dsn import decode_xtext
from relay.mail.envelope import Envelope, QueueId
from relay.mail.text import clean
from relay.policy.lane import numbering_sorter
from relay.policy.source import parse_policy
from relay.queue.queued import Queued, State, WaitReason
from relay.sender.arrivals import sort
from relay.sender.attempt import recipients_left
from relay.sender.sender import Sender
from relay.smtp.reply import Phase
from relay.spool.disk.durable import RealDisk
from relay.spool.interface import Absent, Corrupt, Full, Message, Note, Settlement, Status, Unavailable
from relay.status.filters import WHOLE_QUEUE, By, Filters, GroupRow, Listed, Summary, Wanted
from relay.status.plan import Plan
from relay.status.snapshot import MessageView, QueueState, RecipientStatus, RecipientView, Snapshot
from relay.status.watch import Watch
from relay.telemetry.events import Events
from relay.verdicts.operator_pause import PauseAsked
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict

MOST_SET_ASIDE_LISTED = 1000
ROWS_AT_ONCE = 100
"""Messages of a listing between two turns of the loop: some two milliseconds."""
MOVED_AT_ONCE = 256
"""Messages that share the syncs of a verb that reads none; a batch holds the loop for some 10 ms."""
LOADED_AT_ONCE = 32
"""Messages of a verb that reads them: up to 256 KiB each are in memory."""
_NOT_READ = Envelope("", (), 0, "", "", "")
"""Of a message that is moved, and no recipient of it marked."""
# RFC 3463, 3.8: X.7.1 is delivery not authorized, message refused.
REMOVED = Answer(
    Verdict.BOUNCE,
    Phase.EOD,
    None,
    "removed from the queue by the operator of this relay",
    own_status="5.7.1",
)
HELD_REASON = WaitReason("held by the operator")

_TOLD = {Deed.HOLD: "held", Deed.RELEASE: "released", Deed.RETRY: "retried", Deed.FIRST: "put_first"}
"""The events of moves."""

_STATUS_WORDS: Mapping[Status, RecipientStatus] = {
    Status.TODO: "to do",
    Status.RELAYED: "relayed",
    Status.SUCCESS: "relayed",
    Status.BOUNCED: "bounced",
    Status.EXPIRED: "expired",
    Status.DELETED: "deleted",
}


class _Way(NamedTuple):
    """What a `RecipientView` says of it."""

    route: int | None = None
    upstream: str = ""


_Refusals = Mapping[QueueId, Mapping[int, Answer]]
"""What the shield doubts: of each message, the refusals by the index of the recipient."""


class Operator(Session):
    def __init__(self, sender: Sender, watch: Watch, events: Events) -> None:
        self._sender = sender
        self._queue = sender.queue
        self._spool_thread = sender.spool_thread
        self._settling = sender.settling
        self._upstreams = sender.upstreams
        self._watch = watch
        self._events = events

    async def close(self) -> None:
        """Do nothing: the relay that runs ends by itself."""

    async def _know(self, queue_ids: Collection[QueueId] | None = None) -> None:
        """Have the queue, or these messages of it, in memory: of a relay that runs they are."""

    async def snapshot(self) -> Snapshot:
        await self._know()
        await self._watch.look()
        return self._watch.snapshot()

    async def rows(self, wanted: Wanted = WHOLE_QUEUE) -> Found:
        if wanted.sort:
            best: list[MessageView] = []
            async for some in self._listed(wanted.filters):
                # Of a list without limit the order is made at its end.
                best += [each.view for each in some]
                best = best if wanted.limit is None else wanted.arranged(best)
            yield wanted.arranged(best)
            return
        left = wanted.limit
        async for some in self._listed(wanted.filters):
            views = [each.view for each in some[:left]]
            if views:
                yield views
            left = None if left is None else left - len(views)
            if left == 0:
                return

    async def summary(self, filters: Filters, by: By, limit: int | None = None) -> Sequence[GroupRow]:
        adding = Summary(by)
        async for some in self._listed(filters):
            whole = {each.view.queue_id: each for each in some}
            if by is By.DOMAIN:
                async for each, recipients in self._read(each for each in some if not each.knows_recipients):
                    view = replace(each.view, recipients=tuple(recipients))
                    whole[view.queue_id] = each._replace(view=view)
            adding.add(whole.values())
        return adding.rows(limit)

    async def plan(self, text: bytes, path: Path) -> Plan | str:
        await self._know()
        if self._sender.is_reading:
            return "the relay still reads its queue after the start; ask again later"
        policy, watch = parse_policy(text, path), self._watch
        if policy.routes != watch.policy.routes:
            return "it changes the routes, and a plan does not know what mail then goes another way"
        read = partial(recorded_upstreams, disk=RealDisk(), clock=watch.clock)
        recorded = [await asyncio.to_thread(read, each) for each in (watch.policy, policy)]
        return watch.plan(policy, *recorded)

    async def _listed(self, filters: Filters) -> AsyncIterator[list[Listed]]:
        """Yield what matches, oldest first and then what is set aside, in slices between turns of the loop.

        Read only messages of which nothing in memory tells whether they match.
        """
        await self._know()
        aside = await self._spool_thread.call(lambda spool: spool.set_aside(MOST_SET_ASIDE_LISTED))
        listing = self._watch.listing()
        # A million that nearly came in this order take some 50 ms.
        in_order = iter(sorted(self._queue.ids()))
        while queue_ids := list(islice(in_order, ROWS_AT_ONCE)):
            rows = map(listing.row, queue_ids)
            if fitting := await self._fitting(filters, [each for each in rows if each is not None]):
                yield fitting
            await asyncio.sleep(0)
        if fitting := await self._fitting(filters, [listing.set_aside(file) for file in aside]):
            yield fitting

    async def _fitting(self, filters: Filters, rows: Sequence[Listed]) -> list[Listed]:
        answers = [filters.judge(each) for each in rows]
        unknown = [each for each, answer in zip(rows, answers, strict=True) if answer is None]
        fitting = {
            each.view.queue_id
            async for each, recipients in self._read(unknown)
            if filters.fits_recipients(each.view, recipients)
        }
        judged = zip(rows, answers, strict=True)
        return [each for each, answer in judged if answer or each.view.queue_id in fitting]

    async def _read(self, listed: Iterable[Listed]) -> AsyncIterator[tuple[Listed, Sequence[str]]]:
        """Return messages with all recipients left; not those that are gone or cannot be read by now."""
        asked = list(listed)
        for start in range(0, len(asked), LOADED_AT_ONCE):
            some = asked[start : start + LOADED_AT_ONCE]
            messages = await self._spool_thread.read([each.view.queue_id for each in some])
            for each, message in zip(some, messages, strict=True):
                if isinstance(message, Message):
                    yield each, [message.envelope.recipients[index] for index in message.left]

    async def show(self, queue_id: QueueId) -> MessageView | str:
        await self._know((queue_id,))
        message = await self._load(queue_id)
        if isinstance(message, str):
            return message
        left = tuple(message.envelope.recipients[index] for index in message.left)
        view = self._watch.listing().message(queue_id, left)
        if view is None:
            return ABSENT
        return _whole(view, message, self._settling.replies.get(queue_id, {}), self._ways(message))

    def _ways(self, message: Message) -> dict[int, _Way]:
        """Return for each recipient left the number of its route, and with which upstream it stands."""
        numbers: dict[int, int] = {}
        if routes := self._watch.policy.routes:
            for part in sort(message, numbering_sorter(routes)).parts:
                if part.route is not None:
                    numbers |= dict.fromkeys(part.left(message.left), int(part.route.upstreams[0]))
        return {
            index: _Way(numbers.get(index), part.upstream)
            for part in self._queue.parts(message.queue_id)
            for index in part.part.left(message.left)
        }

    async def content(self, queue_id: QueueId, write: Write) -> str:
        await self._know((queue_id,))
        message = await self._load(queue_id)
        if isinstance(message, str):
            return message
        if message.content is not None:
            await write(message.content)
            return OK
        try:
            async for chunk in self._spool_thread.content(queue_id):
                await write(chunk)
        except (Absent, Corrupt, Unavailable) as error:
            return clean(str(error)) or "it cannot be read whole"
        return OK

    async def act(
        self, verb: Verb, queue_ids: Sequence[QueueId], states: Collection[QueueState] = ()
    ) -> Results:
        await self._know(queue_ids)
        return await self._each(verb, queue_ids, {}, states)

    async def pause(self, upstream: str, asked: PauseAsked) -> str:
        if not self._upstreams.pause(upstream, asked):
            return ABSENT
        # Crash here: nothing was answered, and a restart may know nothing of the pause.
        if why := await self._upstreams.recorded(upstream):
            return f"paused, but not on disk, so a restart would end it: {why}"
        return OK

    async def resume(self, upstream: str, *, believes: bool = False) -> str:
        if (shield := self._upstreams.shield(upstream)) is None:
            return ABSENT
        suspects = shield.suspects
        refusals: dict[QueueId, dict[int, Answer]] = {}
        for suspect in suspects:
            refusals.setdefault(suspect.queue_id, {})[suspect.index] = suspect.answer
        results = await self._each("believe" if believes else "resume", refusals, refusals)
        if failed := set(results.values()) - {OK, UNCHANGED, ABSENT}:
            return f"not all refused recipients could be settled: {', '.join(sorted(failed))}"
        if believes:
            shield.believe(suspects)
        has_changed = self._upstreams.resume(upstream)
        # Crash here: a restart may go on with the pause, until the operator, who had no answer, asks again.
        if has_changed and (why := await self._upstreams.recorded(upstream)):
            return f"used again, but not on disk, so a restart may rest again: {why}"
        return OK if has_changed or OK in results.values() else UNCHANGED

    async def _each(
        self,
        verb: Verb,
        queue_ids: Iterable[QueueId],
        refusals: _Refusals,
        states: Collection[QueueState] = (),
    ) -> Results:
        """Act on some messages at a time: they share their syncs, and other work goes on in between."""
        at_once = LOADED_AT_ONCE if TABLE[verb].reads_content else MOVED_AT_ONCE
        each_once = list(dict.fromkeys(queue_ids))
        results: dict[QueueId, str] = {}
        try:
            for start in range(0, len(each_once), at_once):
                some = each_once[start : start + at_once]
                acting = (self._one(verb, queue_id, refusals.get(queue_id, {}), states) for queue_id in some)
                results |= dict(zip(some, await asyncio.gather(*acting), strict=True))
        finally:
            self._sender.wake()
        return results

    async def _one(
        self,
        verb: Verb,
        queue_id: QueueId,
        refusals: Mapping[int, Answer],
        states: Collection[QueueState],
    ) -> str:
        """Make the message ACTIVE meanwhile; put it back as it was if that fails."""
        queued, state = self._queue.get(queue_id), self._queue.state_of(queue_id)
        if queued is None or state is None:
            return self._not_there()
        if states and QueueState(state.value) not in states:
            return CHANGED
        parts = self._queue.parts(queue_id)
        deed = TABLE[verb].deed_of(next(each for each in parts if each.state is state))
        if deed is Deed.NOTHING and any(each.state is State.DEFERRED for each in parts):
            # One part waits, and another one has a back-off that can be ended.
            deed = TABLE[verb].deeds[State.DEFERRED]
        if isinstance(deed, str):
            return deed
        if deed is Deed.NOTHING:
            return UNCHANGED
        before = self._queue.seize(queue_id)
        try:
            result = await (
                self._end(queued, before, deed, refusals)
                if deed.reads_content
                else self._move(queued, deed, before)
            )
        except (Absent, Corrupt):
            self._settling.forget(queue_id)
            return ABSENT
        except (Full, Unavailable) as trouble:
            self._spool_thread.tell(trouble)
            result = clean(str(trouble)) or "the spool failed"
        except Exception as error:  # noqa: BLE001 - what became of the others must be told
            self._events.fault(where="control", error=error)
            result = FAULT
        finally:
            self._queue.put_back(queue_id, before)
        return result

    async def _move(self, queued: Queued, deed: Deed, before: Mapping[Queued, State]) -> str:
        if deed is not Deed.FIRST:
            # For RETRY too: while the relay is down, the hint has the next start try it at once.
            at_ns, is_held = (None, True) if deed is Deed.HOLD else (0, None if deed is Deed.RETRY else False)
            await self._spool_thread.change(
                Settlement(queued.queue_id, _NOT_READ, next_attempt_at_ns=at_ns, is_held=is_held)
            )
        self._events.tell(_TOLD[deed], queue_id=queued.queue_id)
        if deed is Deed.HOLD:
            self._queue.hold(queued.queue_id, HELD_REASON)
        elif deed is Deed.FIRST:
            self._queue.put_back(queued.queue_id, before)
            self._queue.release(queued.queue_id)
            self._queue.put_first(queued.queue_id)
        else:
            state = State.HELD if deed is Deed.RELEASE else State.DEFERRED
            parts = self._queue.parts(queued.queue_id)
            self._queue.put_back(queued.queue_id, dict.fromkeys(parts, state))
            self._queue.release(queued.queue_id)
        return OK

    async def _end(
        self, queued: Queued, before: Mapping[Queued, State], deed: Deed, refusals: Mapping[int, Answer]
    ) -> str:
        message = await self._load(queued.queue_id)
        if isinstance(message, str):
            return message
        match deed:
            case Deed.BOUNCE:
                refused = dict.fromkeys(message.left, REMOVED)
                await self._settling.refuse(message, queued, refused, "operator")
            case Deed.DELETE:
                await self._settling.delete(message, queued)
            case Deed.END_REPORT:
                await self._settling.end_silently(message, queued)
            case _:
                doubted = {index: refusals[index] for index in message.left if index in refusals}
                if await self._settling.refuse(message, queued, doubted, "bounced"):
                    self._put_back(message, before, doubted)
        return OK

    def _put_back(self, message: Message, before: Mapping[Queued, State], gone: Collection[int]) -> None:
        """Put back each part without recipients that are done by now."""
        for part in self._queue.parts(message.queue_id):
            if (left := recipients_left(message, part, gone)).recipients:
                self._queue.line_of(part).note_left(part, left)
                self._queue.line_of(part).put_back(part, before[part])
            else:
                self._queue.end_part(part)

    def _not_there(self) -> str:
        """Say of an id that is not in the queue what is known of it."""
        return UNREAD if self._sender.is_reading else ABSENT

    async def _load(self, queue_id: QueueId) -> Message | str:
        if queue_id not in self._queue:
            return self._not_there()
        (message,) = await self._spool_thread.read([queue_id])
        if isinstance(message, Absent | Corrupt):
            return ABSENT
        return clean(str(message)) if isinstance(message, Exception) else message


def _whole(
    view: MessageView, message: Message, replies: Mapping[int, Note], ways: Mapping[int, _Way]
) -> MessageView:
    envelope, known = message.envelope, {note.index: note for note in message.notes} | dict(replies)
    return replace(
        view,
        client=envelope.client,
        helo=envelope.helo,
        protocol=envelope.protocol,
        user=envelope.user,
        ret=envelope.dsn.ret or "",
        envid=decode_xtext(envelope.dsn.envid) if envelope.dsn.envid else "",
        recipient_statuses=tuple(
            _recipient(message, index, known.get(index), ways.get(index, _Way()), view.next_attempt_at_ns)
            for index in range(len(envelope.recipients))
        ),
        header=message.head.partition(b"\r\n\r\n")[0].decode("utf-8", "replace"),
    )


def _recipient(
    message: Message, index: int, note: Note | None, way: _Way, next_attempt_at_ns: int | None
) -> RecipientView:
    address, status = message.envelope.recipients[index], message.statuses[index]
    notify, orcpt = message.envelope.dsn.of(index)
    if status is Status.RELAYED:
        note = None  # of an attempt before
    return RecipientView(
        address,
        _STATUS_WORDS[status],
        "" if note is None else note.diagnostic or "",
        None if note is None else note.at_ns,
        next_attempt_at_ns if status is Status.TODO else None,
        index in message.told,
        *way,
        "" if notify is None else str(notify),
        orcpt,
    )
