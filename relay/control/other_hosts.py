"""Messages of a shared queue that other hosts have: lists and shows them, and asks their owners to act.

A verb is left in the message's row as a wish (`relay.spool.interface.SharedSpool`).  The owner looks each
second, acts as on a verb of its own operator, and answers.  So no message is held or ended while another
host sends it; a message in a transaction is acted on once that is over.  If no owner answers in time, the
wish stays, and the host that takes the message over acts first.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar, cast

from relay.clock import Clock
from relay.control.operations import ABSENT, BUSY, UNREAD, VERBS, MessageVerb, NotDone, Results
from relay.mail.envelope import QueueId
from relay.mail.header import names_of
from relay.mail.text import clean
from relay.sender.threads import SpoolThread
from relay.spool.interface import Full, Message, SharedSpool, Unavailable
from relay.status.snapshot import MessageView, QueueState

ROWS_AT_ONCE = 100
LOOK_SECONDS = 1.0
ANSWER_SECONDS = 10.0
"""How long to wait for the answer of a message's owner."""
Returned = TypeVar("Returned")
Act = Callable[[MessageVerb, Sequence[QueueId], Sequence[QueueState]], Awaitable[Results]]


class OtherHosts:
    def __init__(self, spool_thread: SpoolThread, clock: Clock) -> None:
        self._spool_thread, self._clock = spool_thread, clock

    async def listed(self) -> AsyncIterator[list[MessageView]]:
        """Yield all messages of other hosts, in order, a page at a time.  Raises NotDone."""
        first = ""
        while page := await self._asked(lambda spool: spool.others(first, ROWS_AT_ONCE)):  # noqa: B023 - called now
            yield [self._row(*each) for each in page]
            first = f"{page[-1][0].queue_id}!"  # comes right after that id in the database's order

    async def found(self, queue_id: QueueId) -> tuple[Message, MessageView] | None:
        """Return a message of another host, None if it has none of this id.  Raises NotDone."""
        for message, host in await self._asked(lambda spool: spool.others(queue_id, 1)):
            if message.queue_id == queue_id:
                return message, self._row(message, host)
        return None

    async def act(
        self, verb: MessageVerb, queue_ids: Sequence[QueueId], states: Collection[QueueState]
    ) -> Results:
        """Have the owners act.  A message that no other host has gets no result."""
        try:
            hosts = await self._asked(lambda spool: spool.ask(queue_ids, " ".join((verb, *states))))
            answers: Mapping[QueueId, str | None] = {}
            for _ in range(int(ANSWER_SECONDS / LOOK_SECONDS * 4)):
                if all(answers.get(each) for each in hosts):
                    break
                await asyncio.sleep(LOOK_SECONDS / 4)
                answers = await self._asked(lambda spool: spool.answers(list(hosts)))
        except NotDone as why:
            return dict.fromkeys(queue_ids, str(why))
        # A message that ended without an answer was relayed.
        return {
            each: answers.get(each, ABSENT) or f"requested from {host or 'the next host'}; no answer yet"
            for each, host in hosts.items()
        }

    async def serve(self, act: Act) -> None:
        """Carry out the wishes of other hosts, for ever; return if the queue is not shared."""
        while self._spool_thread.is_shared:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                for wish, queue_ids in (await self._asked(lambda spool: spool.wishes())).items():
                    verb, *states = wish.split()
                    results: Results = dict.fromkeys(queue_ids, f"that host does not know the command {wish}")
                    if verb in VERBS and {*states} <= {*QueueState}:
                        results = await act(verb, queue_ids, [QueueState(each) for each in states])
                    # The wishes without a final result stay, and are read again.
                    done = {each: of for each, of in results.items() if of not in (BUSY, UNREAD, ABSENT)}
                    await self._asked(lambda spool: spool.answer(wish, done))  # noqa: B023 - called now
            except NotDone:
                pass  # the sender reports the spool's trouble

    async def _asked(self, function: Callable[[SharedSpool], Returned]) -> Returned:
        try:
            return await self._spool_thread.call(lambda spool: function(cast(SharedSpool, spool)))
        except (Full, Unavailable) as trouble:
            raise NotDone(clean(str(trouble))) from trouble

    def _row(self, message: Message, host: str) -> MessageView:
        envelope, now_ns, left = message.envelope, self._clock.wall_ns(), recipients_left(message)
        due_at_ns = message.next_attempt_at_ns if (message.next_attempt_at_ns or 0) > now_ns else None
        state = QueueState.DEFERRED if due_at_ns else QueueState.WAITING
        state = QueueState.HELD if message.is_held else state if left else QueueState.REPORTING
        return MessageView(
            message.queue_id,
            state,
            message.shape.size_bytes,
            envelope.arrival_at_ns,
            max(0, now_ns - envelope.arrival_at_ns),
            envelope.reverse_path,
            len(left),
            left,
            next_attempt_at_ns=due_at_ns,
            client=envelope.client,
            user=envelope.user,
            host=host,
            **names_of(message.head)._asdict(),
        )


def recipients_left(message: Message) -> tuple[str, ...]:
    return tuple(message.envelope.recipients[index] for index in message.left)
