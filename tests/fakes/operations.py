"""`Operations` on a queue that is a dictionary; remembers what it was asked."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from relay.control.operations import ABSENT, BUSY, OK, Verb
from relay.mail.envelope import QueueId
from relay.status.snapshot import MessageView, QueueState, Snapshot
from tests.fakes.snapshots import a_detail, a_snapshot

AFTERWARDS: dict[Verb, QueueState] = {
    "hold": QueueState.HELD,
    "release": QueueState.WAITING,
    "retry": QueueState.WAITING,
}
"""The state that a verb leaves a message in; the other verbs end it."""


class FakeOperations:
    """Acts on messages that are not active; is `Session` too."""

    def __init__(self, messages: Iterable[MessageView] = ()) -> None:
        self.messages = {message.queue_id: message for message in messages}
        self.asked: list[tuple[str, tuple[QueueId, ...]]] = []
        self.resumed: list[str] = []
        self.shown: Snapshot = a_snapshot()
        self.is_closed = False
        self.raises: Exception | None = None

    async def snapshot(self) -> Snapshot:
        if self.raises is not None:
            raise self.raises
        return self.shown

    async def queue(self) -> Sequence[MessageView]:
        if self.raises is not None:
            raise self.raises
        return list(self.messages.values())

    async def show(self, queue_id: QueueId) -> MessageView | str:
        message = self.messages.get(queue_id)
        if message is not None and message.state is QueueState.CORRUPT:
            return "its checksum is wrong"
        return ABSENT if message is None else a_detail(message)

    async def act(self, verb: Verb, queue_ids: Sequence[QueueId]) -> dict[QueueId, str]:
        self.asked.append((verb, tuple(queue_ids)))
        return {queue_id: self._act_on(queue_id, AFTERWARDS.get(verb)) for queue_id in queue_ids}

    async def resume(self, upstream: str, *, believes: bool = False) -> str:
        self.resumed.append(f"{upstream}, believed" if believes else upstream)
        return OK if upstream in {status.name for status in self.shown.upstreams} else ABSENT

    async def close(self) -> None:
        self.is_closed = True

    def _act_on(self, queue_id: QueueId, state: QueueState | None) -> str:
        message = self.messages.get(queue_id)
        if message is None:
            return ABSENT
        if message.state is QueueState.ACTIVE:
            return BUSY
        if state is None:
            del self.messages[queue_id]
        else:
            self.messages[queue_id] = replace(message, state=state)
        return OK
