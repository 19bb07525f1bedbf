"""Answers an operator's questions and verbs, on the queue in memory and the spool behind it.

One class serves a running relay, over the control socket, and the spool of a relay that is down, which the
command line holds.  It carries out the verbs of `relay.control.operations.TABLE`.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from relay.control.operations import (
    ABSENT,
    BUSY,
    CHANGED,
    FAULT,
    NO_UPSTREAM,
    OK,
    TABLE,
    UNCHANGED,
    UNREAD,
    MessageVerb,
    NotDone,
    Results,
)
from relay.control.other_hosts import OtherHosts, recipients_left
from relay.mail.dsn import decode_xtext
from relay.mail.envelope import QUEUE_ID_PATTERN, Envelope, QueueId
from relay.mail.text import clean
from relay.policy.lane import route_numbers_of
from relay.policy.source import PolicyError, parse_policy, policy_text
from relay.queue.queued import NO_REASON, Queued, State
from relay.sender.arrivals import HELD_REASON
from relay.sender.sender import Sender
from relay.smtp.reply import Phase
from relay.spool.interface import Absent, Corrupt, Full, Message, Settlement, Status, Unavailable
from relay.status.filters import EVERYTHING, By, Filters, GroupRow, Summary
from relay.status.plan import Plan
from relay.status.snapshot import MessageView, QueueState, RecipientView, Snapshot
from relay.status.status_view import StatusView
from relay.telemetry.events import Events
from relay.verdicts.account import EventKind, PauseAsked
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict

MOST_SET_ASIDE_LISTED = 1000
AT_ONCE = 64
"""Messages of a listing or a verb between two turns of the loop.  They share reads and syncs.  Each one that
is read takes up to 256 KiB of memory."""
_NOT_READ = Envelope("", (), 0, "", "", "")
"""The envelope in a settlement that moves a message and marks no recipient."""
# RFC 3463, 3.8: X.7.1 is delivery not authorized, message refused.
REMOVED = Answer(
    Verdict.BOUNCE,
    Phase.EOD,
    None,
    "removed from the queue by the operator of this relay",
    own_status="5.7.1",
)

_TOLD: Mapping[MessageVerb, str] = {"hold": "held", "release": "released", "retry": "retried"}
"""The event of each verb that moves a message; the other verbs end it."""

AskedId = Annotated[QueueId, Field(pattern=QUEUE_ID_PATTERN)]
"""An id from outside, checked because it becomes part of a path."""


class Operator:
    def __init__(self, sender: Sender, status_view: StatusView, events: Events) -> None:
        self._sender = sender
        self._queue = sender.queue
        self._spool_thread = sender.spool_thread
        self._settling = sender.settling
        self._status_view = status_view
        self._events = events
        self._other_hosts = OtherHosts(sender.spool_thread, status_view.clock)

    async def serve_others(self) -> None:
        """Carry out the verbs of operators on other hosts with the same queue, for ever."""
        await self._other_hosts.serve(self._each)

    async def snapshot(self) -> Snapshot:
        await self._sender.look()
        return self._status_view.snapshot()

    async def policy(self) -> str:
        # Without hooks: a URL may hold a secret, which is hidden, and no policy accepts such a URL.
        return policy_text(self._status_view.policy.model_copy(update={"notify": ()}))

    async def rows(
        self, filters: Filters = EVERYTHING, *, is_whole: bool = False
    ) -> AsyncGenerator[list[MessageView], None]:
        aside = await self._spool_thread.call(lambda spool: spool.set_aside(MOST_SET_ASIDE_LISTED))
        listing = self._status_view.listing()
        # To sort a million ids that are nearly in order takes about 50 ms.
        in_order = iter(sorted(self._queue.ids()))
        while queue_ids := list(islice(in_order, AT_ONCE)):
            rows = [row for row in map(listing.row, queue_ids) if row is not None and filters.fit(row)]
            if is_whole or filters.need_recipients:
                rows = [row for row in await self._whole(rows) if filters.fit_recipients(row)]
            yield rows
            await asyncio.sleep(0)
        if self._spool_thread.is_shared:
            async for some in self._other_hosts.listed():
                # Skip messages that were taken over from here: our queue forgets them at their turn.
                yield [row for row in some if row.queue_id not in self._queue and filters.match(row)]
        yield [row for row in map(listing.set_aside, aside) if filters.match(row)]

    async def _whole(self, rows: Sequence[MessageView]) -> list[MessageView]:
        """Return the rows with all recipients left; a message that cannot be read stays as it is."""
        partial = {row.queue_id: row for row in rows if len(row.recipients) != row.recipients_left}
        for message in await self._spool_thread.read(list(partial)):
            if isinstance(message, Message):
                # The marks on disk are ahead of memory.
                left, row = recipients_left(message), partial[message.queue_id]
                partial[message.queue_id] = replace(row, recipients=left, recipients_left=len(left))
        return [partial.get(row.queue_id, row) for row in rows]

    async def summary(self, filters: Filters, by: By, limit: int | None = None) -> list[GroupRow]:
        adding = Summary(by)
        async for some in self.rows(filters, is_whole=by is By.DOMAIN):
            adding.add(some)
        return adding.rows(limit)

    async def plan(self, text: str, path: Path) -> Plan:
        if self._sender.is_reading:
            raise NotDone(UNREAD)
        try:
            policy, status_view = parse_policy(text.encode(), path), self._status_view
        except PolicyError as error:
            # The command line could read it, so this relay is of another version.
            raise NotDone(f"the relay cannot read that policy: {error}") from error
        if policy.routes != status_view.policy.routes:
            raise NotDone("the edit changes the routes; a plan cannot forecast rerouted mail")
        return status_view.plan(policy)

    async def show(self, queue_id: AskedId) -> MessageView:
        message, view = await self._load(queue_id)
        envelope = message.envelope
        if not (view := view or self._status_view.listing().message(queue_id, recipients_left(message))):
            raise NotDone(ABSENT)
        return replace(
            view,
            helo=envelope.helo,
            protocol=envelope.protocol,
            ret=envelope.dsn.ret or "",
            envid=decode_xtext(envelope.dsn.envid),
            recipient_statuses=tuple(self._recipients(message, view.next_attempt_at_ns)),
            header=message.head.partition(b"\r\n\r\n")[0].decode("utf-8", "replace"),
        )

    def _recipients(self, message: Message, next_attempt_at_ns: int | None) -> Iterator[RecipientView]:
        numbers = route_numbers_of(self._status_view.policy.routes)
        parts = self._queue.parts(message.queue_id)
        part_of = {index: each for each in parts for index in each.part.left(message.left)}
        notes = {note.index: note for note in message.notes}
        notes |= self._settling.replies.get(message.queue_id, {})
        for index, address in enumerate(message.envelope.recipients):
            status, part = message.statuses[index], part_of.get(index)
            route = None if part is None else part.part.route
            # The note of a relayed recipient is for its report, or from an earlier attempt.
            note = None if status.is_relayed else notes.get(index)
            yield RecipientView(
                address,
                status.word,
                "" if note is None else note.diagnostic or "",
                None if note is None else note.at_ns,
                next_attempt_at_ns if status is Status.TODO else None,
                index in message.told,
                () if route is None else numbers.get(route, ()),
                "" if part is None else part.upstream,
                *message.envelope.dsn.of(index),
            )

    async def content(self, queue_id: AskedId) -> AsyncGenerator[bytes, None]:
        await self._load(queue_id)
        try:
            async for chunk in self._spool_thread.content(queue_id):
                yield chunk
        except (Absent, Corrupt, Unavailable) as error:
            raise NotDone(clean(str(error)) or "its content cannot be read") from error

    async def act(
        self, verb: MessageVerb, queue_ids: Sequence[AskedId], states: Sequence[QueueState] = ()
    ) -> Results:
        results = dict(await self._each(verb, queue_ids, states))
        unknown = [each for each, of in results.items() if of in (ABSENT, UNREAD)]
        if unknown and self._spool_thread.is_shared:
            results |= await self._other_hosts.act(verb, unknown, states)
        return results

    async def pause(self, upstream: str, asked: PauseAsked) -> str:
        if (account := self._sender.accounts.get(upstream)) is None:
            return NO_UPSTREAM
        account.pause(asked)
        # Crash here: the operator has no answer, and a restart may not know the pause.
        if why := await account.pausing.recorded():
            return f"paused, but the pause was not saved and ends at a restart: {why}"
        return OK

    async def resume(self, upstream: str) -> str:
        if (account := self._sender.accounts.get(upstream)) is None:
            return NO_UPSTREAM
        results = await self._each("retry", [queue_id for queue_id, _ in account.pausing.shield.suspects])
        # An edit may have replaced the account meanwhile.
        account = self._sender.accounts.get(upstream, account)
        has_changed = account.use_again(EventKind.RESUME)
        # Crash here: the operator has no answer, and a restart may go on with the pause until asked again.
        if has_changed and (why := await account.pausing.recorded()):
            return f"resumed, but this was not saved; a restart may pause it again: {why}"
        return OK if has_changed or OK in results.values() else UNCHANGED

    async def _each(
        self, verb: MessageVerb, queue_ids: Sequence[QueueId], states: Collection[QueueState] = ()
    ) -> Results:
        """Act on AT_ONCE messages at a time: they share syncs, and other work goes on in between."""
        left, results = list(dict.fromkeys(queue_ids)), dict[QueueId, str]()
        try:
            for start in range(0, len(left), AT_ONCE):
                some = left[start : start + AT_ONCE]
                acting = (self._one(verb, each, states) for each in some)
                results |= zip(some, await asyncio.gather(*acting), strict=True)
        finally:
            self._sender.wake()
        return results

    async def _one(self, verb: MessageVerb, queue_id: QueueId, states: Collection[QueueState]) -> str:
        """Make the message ACTIVE meanwhile; put it back as it was if the verb fails."""
        parts, state = self._queue.parts(queue_id), self._queue.state_of(queue_id)
        if state is None:
            return UNREAD if self._sender.is_reading else ABSENT
        if states and QueueState(state.value) not in states:
            return CHANGED
        if state is State.ACTIVE:
            return BUSY
        if any(each.state is State.DEFERRED for each in parts):
            state = State.DEFERRED  # other parts may wait, but a verb can end the back-off of this one
        if (why_not := TABLE[verb].unless.get(state)) is not None:
            return why_not
        before, result = self._queue.seize(queue_id), OK
        try:
            await (self._move(queue_id, verb) if verb in _TOLD else self._end(parts[0], verb))
        except (Absent, Corrupt):
            self._settling.forget(queue_id)
            return ABSENT
        except NotDone as why:
            result = str(why)
        except (Full, Unavailable) as trouble:
            self._spool_thread.tell(trouble)
            result = clean(str(trouble)) or "the spool failed"
        except Exception as error:  # noqa: BLE001 - the results of the other messages must be told
            self._events.fault(where="control", error=error)
            result = FAULT
        finally:
            self._queue.put_back(queue_id, before)
        return result

    async def _move(self, queue_id: QueueId, verb: MessageVerb) -> None:
        # For `retry` too: if the relay is down, the hint makes the next start try the message at once.
        what = Settlement(queue_id, _NOT_READ, next_attempt_at_ns=None if verb == "hold" else 0)
        what.is_held = {"hold": True, "release": False}.get(verb)
        await self._spool_thread.change(what)
        self._events.tell(_TOLD[verb], queue_id=queue_id)
        state, why = (State.HELD, HELD_REASON) if verb == "hold" else (State.WAITING, NO_REASON)
        states = dict.fromkeys(self._queue.parts(queue_id), state)
        self._queue.put_back(queue_id, states, why=why, ready_at_ns=self._status_view.clock.boottime_ns())

    async def _end(self, queued: Queued, verb: MessageVerb) -> None:
        message, _ = await self._load(queued.queue_id)
        if verb == "bounce":
            await self._settling.bounce(message, queued, REMOVED)
        else:
            await self._settling.delete(message, queued)

    async def _load(self, queue_id: QueueId) -> tuple[Message, MessageView | None]:
        """Return a message, and its view if another host has it.  Raises NotDone."""
        if queue_id not in self._queue:
            if self._spool_thread.is_shared and (found := await self._other_hosts.found(queue_id)):
                return found
            raise NotDone(UNREAD if self._sender.is_reading else ABSENT)
        (message,) = await self._spool_thread.read([queue_id])
        if not isinstance(message, Message):
            raise NotDone(clean(str(message)) if isinstance(message, Unavailable) else ABSENT)
        return message, None


def values(answer: Awaitable[Any] | AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """Return the values that a call of the operator yields, or the one that it returns."""
    return _only(answer) if isinstance(answer, Awaitable) else answer


async def _only(answer: Awaitable[Any]) -> AsyncGenerator[Any, None]:
    yield await answer
