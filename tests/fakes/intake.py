"""An intake in memory that can refuse, fail and hang, and an observer that records events."""

import asyncio
from dataclasses import dataclass, field

from relay.mail.envelope import Draft, Envelope, QueueId
from relay.smtp.commands import Refused


class MemoryDraft:
    """Keeps its content, and the most octets that were in memory at once."""

    def __init__(self, queue_id: QueueId) -> None:
        self.queue_id = queue_id
        self.buffer = bytearray()
        self.spilled = bytearray()
        self.most_buffered_bytes = 0

    def append(self, chunk: bytes) -> None:
        self.buffer += chunk
        self.most_buffered_bytes = max(self.most_buffered_bytes, len(self.buffer))

    @property
    def buffered_bytes(self) -> int:
        return len(self.buffer)

    @property
    def is_on_disk(self) -> bool:
        return bool(self.spilled)

    def spill(self) -> None:
        self.spilled += self.buffer
        self.buffer.clear()

    def discard(self) -> None:
        self.buffer.clear()

    @property
    def content(self) -> bytes:
        return bytes(self.spilled + self.buffer)


@dataclass(frozen=True)
class Accepted:
    queue_id: QueueId
    envelope: Envelope
    content: bytes

    @property
    def trace(self) -> bytes:
        """The Received line that the listener put on top, still folded."""
        return self.content[: len(self.content) - len(self.received)]

    @property
    def received(self) -> bytes:
        """What the client sent: everything below the first header field."""
        lines = self.content.split(b"\r\n")
        folded = 1
        while folded < len(lines) and lines[folded].startswith(b"\t"):
            folded += 1
        return b"\r\n".join(lines[folded:])


class MemoryIntake:
    """Takes messages into a list. Set the attributes to make it misbehave."""

    def __init__(self) -> None:
        self.drafts: list[MemoryDraft] = []
        self.accepted: list[Accepted] = []
        self.ended: set[QueueId] = set()
        """Drafts that were discarded or passed to `accept`: the session must not touch them again."""
        self.refuses: str | None = None
        """Returned by `refusal`."""
        self.spill_error: Exception | None = None
        self.accept_error: Exception | None = None
        self.gate = asyncio.Event()
        """While it is clear, `accept` hangs."""
        self.gate.set()
        self.is_accepting = asyncio.Event()
        """Set while a caller waits in `accept`."""

    def draft(self) -> Draft:
        draft = MemoryDraft(QueueId(f"{len(self.drafts):016d}"))
        self.drafts.append(draft)
        return draft

    def refusal(self, size_bytes: int) -> str | None:  # noqa: ARG002 - the port's
        return self.refuses

    async def spill(self, draft: Draft) -> None:
        assert isinstance(draft, MemoryDraft)
        if self.spill_error is not None:
            if isinstance(self.spill_error, Refused):
                self.ended.add(draft.queue_id)
            raise self.spill_error
        draft.spill()

    async def accept(self, draft: Draft, envelope: Envelope) -> None:
        assert isinstance(draft, MemoryDraft)
        self.ended.add(draft.queue_id)
        self.is_accepting.set()
        try:
            await self.gate.wait()
        finally:
            self.is_accepting.clear()
        if self.accept_error is not None:
            raise self.accept_error
        self.accepted.append(Accepted(draft.queue_id, envelope, draft.content))

    async def discard(self, draft: Draft) -> None:
        assert draft.queue_id not in self.ended, "discarded twice"
        self.ended.add(draft.queue_id)

    @property
    def open_drafts(self) -> set[QueueId]:
        """Drafts that were not ended: leaks, if all sessions are over."""
        return {draft.queue_id for draft in self.drafts} - self.ended


@dataclass
class MemoryObserver:
    """Records the events of listeners."""

    opened: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    refusals: list[tuple[str, str]] = field(default_factory=list)
    tried: list[str | None] = field(default_factory=list)
    """The user of each refusal."""
    message_ids: list[str | None] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    faults: list[BaseException] = field(default_factory=list)

    def connection_opened(self, listener: str, client: str) -> None:
        self.opened.append(f"{listener} {client}")

    def connection_closed(self, listener: str, client: str, reason: str) -> None:  # noqa: ARG002 - the port's
        self.closed.append(reason)

    def refused(self, listener: str, client: str, phase: str, reply: str, user: str | None) -> None:  # noqa: ARG002 - the port's
        self.refusals.append((phase, reply))
        self.tried.append(user)

    def accepted(
        self,
        listener: str,  # noqa: ARG002 - the port's
        queue_id: QueueId,  # noqa: ARG002 - the port's
        envelope: Envelope,  # noqa: ARG002 - the port's
        message_id: str | None,
        *,
        size_bytes: int,
        commit_ns: int,
    ) -> None:
        assert commit_ns >= 0
        self.message_ids.append(message_id)
        self.sizes.append(size_bytes)

    def fault(self, listener: str, client: str, error: BaseException) -> None:  # noqa: ARG002 - the port's
        self.faults.append(error)
