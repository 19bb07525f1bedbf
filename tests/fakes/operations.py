"""An operator of a queue that is a dictionary; remembers what it was asked."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from relay.control.operations import ABSENT, OK, TABLE, UNCHANGED, UNREAD, Deed, NotDone, PolicyInForce, Verb
from relay.control.operator import AskedId, Operator
from relay.mail.envelope import QueueId
from relay.status.filters import EVERYTHING, By, Filters, GroupRow, Listed, Summary
from relay.status.plan import Plan
from relay.status.snapshot import MessageView, QueueState, Snapshot, UpstreamState
from relay.verdicts.operator_pause import PauseAsked
from tests.fakes.snapshots import AT_NS, a_detail, a_plan, a_snapshot, an_upstream

AFTERWARDS: dict[Verb, QueueState] = {
    "hold": QueueState.HELD,
    "release": QueueState.WAITING,
    "retry": QueueState.WAITING,
}
"""The state that a verb leaves a message in; the other verbs end it."""


class FakeOperations(Operator):
    """Acts on messages that are not active."""

    def __init__(self, messages: Iterable[MessageView] = ()) -> None:
        self.messages = {message.queue_id: message for message in messages}
        self.asked: list[tuple[str, tuple[QueueId, ...]]] = []
        self.in_force = PolicyInForce(Path("/etc/relay/policy.yaml"), "spool: ./spool\n")
        self.chunks: list[bytes] = []
        """The content of each message."""
        self.content_ends = OK
        self.among: tuple[QueueState, ...] = ()
        """The states that the last verb was to act on; none stands for all."""
        self.resumed: list[str] = []
        self.paused: list[tuple[str, PauseAsked]] = []
        self.planned: list[tuple[str, Path]] = []
        self.foretold: Plan = a_plan()
        self.shown: Snapshot = a_snapshot()
        self.raises: Exception | None = None
        self.is_refused_again = False
        """What is resumed is refused at once."""
        self.rows_before_fault: int | None = None
        """So many rows of a listing there are before a fault ends it."""
        self.acts_before_fault: int | None = None
        """So many verbs are carried out before a fault."""

    async def snapshot(self) -> Snapshot:
        if self.raises is not None:
            raise self.raises
        return self.shown

    async def policy(self) -> PolicyInForce:
        return self.in_force

    async def rows(
        self, filters: Filters = EVERYTHING, limit: int | None = None
    ) -> AsyncGenerator[Sequence[MessageView], None]:
        for number, view in enumerate([each.view for each in self._every(filters)][:limit]):
            if number == self.rows_before_fault:
                raise RuntimeError("odd")
            yield [view]

    async def summary(self, filters: Filters, by: By, limit: int | None = None) -> list[GroupRow]:
        adding = Summary(by)
        adding.add(self._every(filters))
        return adding.rows(limit)

    def _every(self, filters: Filters) -> list[Listed]:
        if self.raises is not None:
            raise self.raises
        every = [Listed(view, AT_NS - view.arrival_at_ns) for view in self.messages.values()]
        return [each for each in every if filters.judge(each)]

    async def plan(self, text: str, path: Path) -> Plan:
        if self.raises is not None:
            raise self.raises
        self.planned.append((text, path))
        return self.foretold

    async def show(self, queue_id: AskedId) -> MessageView:
        message = self.messages.get(queue_id)
        if message is None:
            raise NotDone(UNREAD if self.shown.recovering else ABSENT)
        if message.state is QueueState.CORRUPT:
            raise NotDone("its checksum is wrong")
        return message if message.recipient_statuses else a_detail(message)

    async def content(self, queue_id: AskedId) -> AsyncGenerator[bytes, None]:
        if queue_id not in self.messages:
            raise NotDone(ABSENT)
        for chunk in self.chunks:
            yield chunk
        if self.content_ends != OK:
            raise NotDone(self.content_ends)

    async def act(
        self, verb: Verb, queue_ids: Sequence[AskedId], states: Sequence[QueueState] = ()
    ) -> dict[QueueId, str]:
        if self.acts_before_fault is not None and len(self.asked) >= self.acts_before_fault:
            self.raises = RuntimeError("gone")
            raise self.raises
        self.asked.append((verb, tuple(queue_ids)))
        self.among = tuple(states)
        return {queue_id: self._act_on(queue_id, verb) for queue_id in queue_ids}

    async def pause(self, upstream: str, asked: PauseAsked) -> str:
        self.paused.append((upstream, asked))
        if upstream not in {status.name for status in self.shown.upstreams}:
            return ABSENT
        until_ns = None if asked.length_ns is None else self.shown.at_ns + asked.length_ns
        paused = an_upstream(state=UpstreamState.PAUSED, because="by anna", paused_until_ns=until_ns)
        self.shown = a_snapshot(upstream=replace(paused, paused_by=asked.by))
        return OK

    async def resume(self, upstream: str, *, believes: bool = False) -> str:
        self.resumed.append(f"{upstream}, believed" if believes else upstream)
        states = {status.name: status.state for status in self.shown.upstreams}
        if upstream not in states:
            return ABSENT
        if states[upstream] is UpstreamState.OPEN:
            return UNCHANGED
        if not self.is_refused_again:
            self.shown = a_snapshot()
        return OK

    def _act_on(self, queue_id: QueueId, verb: Verb) -> str:
        message = self.messages.get(queue_id)
        if message is None:
            return UNREAD if self.shown.recovering else ABSENT
        deed = TABLE[verb].deed_of(message)
        if isinstance(deed, str):
            return deed
        if deed is Deed.NOTHING:
            return UNCHANGED
        state = AFTERWARDS.get(verb)
        if state is None:
            del self.messages[queue_id]
        else:
            self.messages[queue_id] = replace(message, state=state)
        return OK
