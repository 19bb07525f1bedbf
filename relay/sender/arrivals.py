"""Puts mail into the queue: the whole spool at a start, then what listeners accept; and into its lines.

A start claims its first page before anything is sent.  It claims the others while mail goes, oldest first.
The state of an upstream, an edit or time alone can move a message to another line (the queue of one
upstream).  `route_forever` moves such mail, some at a time, and sleeps until there is more to move.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Sequence

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.mail.header import names_of
from relay.policy.lane import costs_of, lanes_of, route_numbers_of, sorter_of
from relay.policy.model import Policy
from relay.queue.lanes import Arrangement
from relay.queue.queued import NO_REASON, Queued, State, WaitReason, origin_of
from relay.queue.routes import WHOLE, Because, Choice, Part, Route
from relay.queue.sorting import Sorter
from relay.sender.host import Host, seconds, woken
from relay.sender.reports import REASON, OwedReports
from relay.sender.settling import Settling, listed_fields
from relay.sender.threads import GATHERS_SECONDS
from relay.spool.interface import Full, Message, Unavailable
from relay.telemetry.metrics import Telemetry

SWEEP_NS = 3 * SECOND_NS
"""The longest delay after a lost trigger, and the wait before a failed spool is asked again."""
CLAIMED_AT_ONCE = 500
SORTED_AT_ONCE = 100
"""Messages read in one call of the spool when an edit sorts the queue; other calls come between."""
DEFERRED_BEFORE = WaitReason("deferred before the last start")
HELD_REASON = WaitReason("held by the operator")
SORTED_AGAIN_NS = 5 * SECOND_NS
"""The wait before messages that were active are sorted by an edit."""


class Arrivals:
    def __init__(
        self, host: Host, settling: Settling, policy: Policy, telemetry: Telemetry, owed: OwedReports
    ) -> None:
        self._sweep_ns = max(SWEEP_NS, int(host.look_seconds * SECOND_NS))
        self._trigger = host.trigger(str(policy.spool), host.disk)
        self._queue, self._spool_thread, self._settling = settling.queue, settling.spool_thread, settling
        self._events, self._metrics, self._clock = telemetry
        self._owed = owed
        self._sorter = sorter_of(policy.lanes, policy.routes)
        self._has_edit = asyncio.Event()
        """Messages in the queue are yet to be sorted by the last edit."""
        self.use(policy)
        self._began_ns = self._clock.boottime_ns()
        self.is_reading = True
        """Whether the start still reads: some of the queue is not in memory yet."""
        self._new_mail = settling.new_mail
        self.may_stand_elsewhere = asyncio.Event()
        """When it is set, `route_forever` looks at once."""
        self._queue.on_change = self.may_stand_elsewhere.set
        self._queue.on_routed = self._tell_route

    async def run(self) -> None:
        """Claim mail for ever: when the trigger is pulled, and every few seconds in case a pull was lost."""
        asyncio.get_running_loop().add_reader(self._trigger.listen(), self._pulled)
        while True:
            try:
                await self.take()
            except (Full, Unavailable) as trouble:
                # Messages already in the queue still go.
                self._spool_thread.tell(trouble)
                await asyncio.sleep(seconds(SWEEP_NS))
                continue
            await woken(self._new_mail, self._clock.boottime_ns() + self._sweep_ns, self._clock)
            self._new_mail.clear()

    async def take(self) -> None:
        """Claim all mail in the spool, a page at a time.  Raises Full, Unavailable."""
        while await self.claim():
            if not self.is_reading:
                # Under load, what comes meanwhile is claimed by one call of the spool.
                await asyncio.sleep(GATHERS_SECONDS)

    async def take_only(self, queue_ids: Collection[QueueId]) -> bool:
        """Queue these messages without a claim; return False, and queue none, if that is not enough.

        It is not enough if a message cannot be read (it may be accepted and not claimed yet), has no
        recipient left or owes a report.  A crash may have come between a report's publication and its mark,
        which only the claim of all messages finds.
        """
        await self._spool_thread.call(lambda spool: spool.claim(0))
        absent = [queue_id for queue_id in queue_ids if queue_id not in self._queue]
        found = [message for message in await self._spool_thread.read(absent) if isinstance(message, Message)]
        if len(found) < len(absent) or any(not each.left or each.owed_report is not None for each in found):
            return False
        for message in found:
            self._admit(message, self._parts(message, self._sorter))
        return True

    async def claim(self) -> bool:
        """Claim and queue a page; return False if it is empty.  Raises Full, Unavailable."""
        sorter = self._sorter
        page = await self._spool_thread.call(
            lambda spool: [(each, self._parts(each, sorter)) for each in spool.claim(CLAIMED_AT_ONCE)]
        )
        for message, parts in page:
            if message.queue_id not in self._queue:  # else `take_only` queued it
                self._admit(message, parts)
        if sorter is not self._sorter:
            # An edit came during the claim, which used the rules before it.
            self._has_edit.set()
        if not page and self.is_reading:
            self.is_reading = False
            took_ns = self._clock.boottime_ns() - self._began_ns
            self._events.tell("recovered", counts={"queued": len(self._queue)}, duration_ns=took_ns)
        return bool(page)

    async def route_forever(self) -> None:
        """Move mail to the line that it belongs in, after each change.

        Each pass takes some messages only, so a long queue does not hold up the event loop.
        """
        while True:
            self.may_stand_elsewhere.clear()
            self._queue.move_on(self._clock.boottime_ns())
            await woken(self.may_stand_elsewhere, self._queue.next_look_ns(), self._clock)

    async def sort_forever(self) -> None:
        """Sort the whole queue by each edit of lanes or routes, `SORTED_AT_ONCE` messages at a time."""
        while True:
            await self._has_edit.wait()
            self._has_edit.clear()
            left = deque(self._queue.ids())
            while left and not self._has_edit.is_set():
                some = [left.popleft() for _ in range(min(SORTED_AT_ONCE, len(left)))]
                again, wait_ns = await self._sort(some)
                left += again
                if again == some:
                    await woken(self._has_edit, self._clock.boottime_ns() + wait_ns, self._clock)

    def use(self, policy: Policy) -> None:
        """Apply a policy; messages that are queued already are sorted by it in the background."""
        self._settling.use(policy)
        self._longest_wait_ns = policy.retry.max_ns
        self._numbers = route_numbers_of(policy.routes)
        lanes = lanes_of(policy.lanes)
        for name, upstream in policy.upstreams.items():
            by = Arrangement(lanes, *costs_of(upstream.limits), upstream.max_recipients)
            self._queue.line(name).arrange(by)
        self._queue.use(list(policy.upstreams), [each.route for each in policy.routes])
        if (sorter := sorter_of(policy.lanes, policy.routes)) != self._sorter:
            self._sorter = sorter
            self._has_edit.set()

    def close(self) -> None:
        """Close the trigger; another sender may listen to it from here on."""
        asyncio.get_running_loop().remove_reader(self._trigger.listen())
        self._trigger.close()

    def _pulled(self) -> None:
        self._trigger.clear()
        self._new_mail.set()

    def _admit(self, message: Message, parts: Sequence[Queued]) -> None:
        envelope = message.envelope
        if envelope.boot_id == self._clock.boot_id() and envelope.boottime_ns >= self._began_ns:
            self._metrics.count("relay_ledger_recipients_total", "accepted", by=len(envelope.recipients))
        if parts[0].state is State.WAITING:
            self._spool_thread.cache(message)
        self._queue.add(*parts, now_ns=self._clock.boottime_ns())
        if message.owed_report is not None or not message.left:
            # A crash held up its report or its end, or `reports.per_hour` its report.
            self._owed.ask(message.queue_id)

    def _parts(self, message: Message, sorter: Sorter) -> list[Queued]:
        """Return the message as entries of the queue: one for the whole, or one for each part."""
        lane, sorted_parts = sorter.sort(message.envelope, lambda: message.head)
        parts = [(part, left) for part in sorted_parts if (left := part.left(message.left))] or [(WHOLE, ())]
        if len(parts) == 1:
            parts = [(parts[0][0].whole, parts[0][1])]
        return [self._queued(message, lane, part, left) for part, left in parts]

    def _queued(self, message: Message, lane: str, part: Part, left: Sequence[int]) -> Queued:
        envelope, now_ns, wall_ns = message.envelope, self._clock.boottime_ns(), self._clock.wall_ns()
        wait_ns = (message.next_attempt_at_ns or 0) - wall_ns
        state, why, due_at_ns = State.WAITING, NO_REASON, 0
        if not left:
            state, why = State.REPORTING, REASON
        elif message.is_held:
            state, why = State.HELD, HELD_REASON
        elif 0 < wait_ns <= self._longest_wait_ns:
            state, why, due_at_ns = State.DEFERRED, DEFERRED_BEFORE, now_ns + wait_ns
        return Queued(
            message.queue_id,
            origin_of(envelope.reverse_path, envelope.client, envelope.user or "", lane, part.rewriting),
            message.shape.size_bytes,
            envelope.arrived_at_ns(self._clock.boot_id(), now_ns, wall_ns),
            state=state,
            due_at_ns=due_at_ns,
            why=why,
            is_warned=message.is_warned,
            part=part,
            **listed_fields(message, left, names_of(message.head)),
        )

    async def _sort(self, ids: Sequence[QueueId]) -> tuple[list[QueueId], int]:
        """Sort messages; return those that have to be sorted again, and for how many ns to wait first."""
        found = await self._settling.load(ids)
        if self._has_edit.is_set():
            return [], 0  # the newer edit has all messages sorted again
        now_ns, again, wait_ns = self._clock.boottime_ns(), list[QueueId](), SORTED_AGAIN_NS
        for queue_id, message in zip(ids, found, strict=True):
            if isinstance(message, Unavailable):
                # Try it again: if its upstream left the policy, it does not go before it is sorted.
                self._spool_thread.tell(message)
                again.append(queue_id)
                wait_ns = self._spool_thread.unreadable_retry_ns
            elif message is not None and message.left:
                parts = self._parts(message, self._sorter)
                again += [] if self._queue.sort_anew(parts, now_ns) else [queue_id]
        return again, wait_ns

    def _tell_route(self, route: Route, choice: Choice, before: Because) -> None:
        routes, upstream = list(self._numbers.get(route, ())), choice.upstream
        if choice.because is Because.PREFERRED:
            self._events.tell("route_restored", routes=routes, upstream=upstream, because=before)
        elif choice.because is Because.ALL_DOWN:
            self._events.tell("route_down", routes=routes, upstream=upstream)
        else:
            self._events.tell(
                "route_diverted",
                routes=routes,
                upstream=upstream,
                instead_of=choice.instead_of,
                because=choice.because,
            )
