"""What the queue consists of: which reasons hold how many messages, and who sent most of them.

Guarantees: one pass serves all that ask, and takes at most one OFTEN-th of the time however many ask.
It goes in slices between turns of the event loop, so that mail goes on; a long queue is counted
while it moves.  Makes no estimate, where a listing of a long queue costs seconds.  Reads memory only.
"""

import asyncio
import heapq
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from relay.clock import SECOND_NS, Clock
from relay.mail.address import comparable
from relay.mail.envelope import QueueId
from relay.queue.queued import Queued, State, WaitKind
from relay.status.snapshot import QueueState
from relay.verdicts.shield import but_for_ids

MOST_LISTED = 50
"""Reasons, and senders."""
AT_ONCE = 200
"""Messages between two turns of the loop: some milliseconds, where each has a reply of its own."""
FRESH_NS = SECOND_NS
OFTEN = 20


@dataclass(frozen=True, slots=True)
class ReasonCount:
    state: QueueState
    reason: str
    """Of replies that are alike but for addresses, numbers and ids, one.  Empty where the state says it all,
    and of messages that wait for their turn."""
    messages: int
    recipients: int
    """Those that are left."""


@dataclass(frozen=True, slots=True)
class SenderCount:
    reverse_path: str
    """In the spelling of one of its messages."""
    messages: int
    recipients: int


@dataclass(frozen=True, slots=True)
class Breakdown:
    at_ns: int
    """Wall clock."""
    reasons: tuple[ReasonCount, ...]
    """Those of most messages, at most MOST_LISTED."""
    more_reasons: int
    """How many are not listed."""
    senders: tuple[SenderCount, ...]
    """Those with most messages, at most MOST_LISTED."""
    more_senders: int


_SAID_BY_STATE = frozenset({State.ACTIVE, State.HELD, State.REPORTING})


def shown_reason(queued: Queued, paused: Mapping[str, str]) -> str:
    """Return why a message waits; `paused` is by the upstream why nothing that waits for it is sent."""
    return (paused.get(queued.upstream) if queued.state is State.WAITING else "") or queued.reason


@dataclass(slots=True)
class _RowSum:
    state: State
    text: str
    """As the first of its messages has it."""
    messages: int = 0
    recipients: int = 0
    in_parts: set[QueueId] = field(default_factory=set)
    """The messages of which some part is counted already."""


class _Sums:
    """Of messages that have something in common."""

    def __init__(self) -> None:
        self._sums: dict[Hashable, _RowSum] = {}

    def add(self, key: Hashable, queued: Queued, text: str) -> None:
        its = self._sums.get(key)
        if its is None:
            its = self._sums[key] = _RowSum(queued.state, text)
        its.recipients += queued.recipients_left
        if queued.queue_id not in its.in_parts:
            its.messages += 1
            if queued.part.indices is not None:
                its.in_parts.add(queued.queue_id)

    def largest(self) -> list[_RowSum]:
        return heapq.nlargest(MOST_LISTED, self._sums.values(), key=lambda its: its.messages)

    @property
    def unlisted(self) -> int:
        return max(0, len(self._sums) - MOST_LISTED)


class Count:
    """A pass over some messages."""

    def __init__(self, paused: Mapping[str, str]) -> None:
        self._paused = paused
        self._reasons, self._senders = _Sums(), _Sums()

    def add(self, messages: Iterable[Queued]) -> None:
        for queued in messages:
            reason = "" if queued.state in _SAID_BY_STATE else shown_reason(queued, self._paused)
            is_reply = queued.why.kind is WaitKind.REFUSAL and reason == queued.why.text
            key = queued.state, _without_ids(reason) if is_reply else reason
            self._reasons.add(key, queued, reason)
            self._senders.add(comparable(queued.reverse_path), queued, queued.reverse_path)

    def breakdown(self, at_ns: int) -> Breakdown:
        return Breakdown(
            at_ns,
            tuple(
                ReasonCount(QueueState(its.state.value), its.text, its.messages, its.recipients)
                for its in self._reasons.largest()
            ),
            self._reasons.unlisted,
            tuple(SenderCount(its.text, its.messages, its.recipients) for its in self._senders.largest()),
            self._senders.unlisted,
        )


def _without_ids(reply: str) -> str:
    """Keep the reply code, which is a number too."""
    code, _, rest = reply.partition(" ")
    return f"{code} {but_for_ids(rest)}"


class Breakdowns:
    """For one event loop."""

    def __init__(self, queue: Iterable[Queued], clock: Clock) -> None:
        self._queue = queue
        self._clock = clock
        self._counting = asyncio.Lock()
        self._known: Breakdown | None = None
        self._is_fresh_until_ns = 0

    async def newest(self, paused: Mapping[str, str]) -> Breakdown:
        """Return what was counted last, or count; `paused` as `shown_reason` takes it."""
        async with self._counting:
            if self._known is None or self._clock.boottime_ns() >= self._is_fresh_until_ns:
                self._known = await self._count(paused)
            return self._known

    async def _count(self, paused: Mapping[str, str]) -> Breakdown:
        at_ns, busy_ns = self._clock.wall_ns(), 0
        count, messages = Count(paused), list(self._queue)
        for start in range(0, len(messages), AT_ONCE):
            began_ns = self._clock.boottime_ns()
            count.add(messages[start : start + AT_ONCE])
            busy_ns += self._clock.boottime_ns() - began_ns
            await asyncio.sleep(0)
        self._is_fresh_until_ns = self._clock.boottime_ns() + max(FRESH_NS, OFTEN * busy_ns)
        return count.breakdown(at_ns)
