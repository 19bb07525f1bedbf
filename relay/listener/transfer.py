"""The content of one message, from 354 to the verdict on it.

Guarantees: memory is bounded by `_CHUNK_BYTES`, `SPILL_BYTES` and one read, whatever is
sent; content is read to its true end or the session ends, so that no octet of it is
ever taken for a command; a draft that is not accepted is discarded, also when the
client is lost or the session is cancelled half-way.
"""

from collections.abc import Callable

from relay.listener import replies
from relay.listener.content import ContentDecoder
from relay.listener.ports import DraftPort, IntakePort, NotAccepted
from relay.listener.wire import ClientConnection, SessionEnd
from relay.mail.envelope import Envelope

SPILL_BYTES = 256 * 1024
_CHUNK_BYTES = 32 * 1024


class Transfer:
    """One message arriving.  First `receive`, then `accept` unless there was a refusal."""

    def __init__(
        self,
        intake: IntakePort,
        draft: DraftPort,
        decoder: ContentDecoder,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._intake = intake
        self._draft: DraftPort | None = draft
        self._decoder = decoder
        self._on_fault = on_fault
        self._pending = bytearray()
        self._not_stored: str | None = None

    @property
    def refusal(self) -> str | None:
        """Return the reply that refuses the message, as far as it is known."""
        # What is wrong with the message comes first: the client need not try it again.
        fault = self._decoder.fault
        return replies.FAULTS[fault] if fault is not None else self._not_stored

    async def receive(self, wire: ClientConnection, idle_s: float, transfer_s: float) -> str | None:
        """Take the content in, to its end; return the refusal, or None if the draft is whole.

        Raises SessionEnd if the end never came.
        """
        until = wire.loop.time() + transfer_s
        try:
            while True:
                chunk = await wire.read_chunk(min(wire.loop.time() + idle_s, until))
                content = self._decoder.feed(chunk)
                is_ended = self._decoder.is_ended
                if is_ended:
                    wire.unread(self._decoder.rest)
                await self._store(content)
                if is_ended:
                    return self.refusal
                if self._decoder.is_hopeless:
                    raise SessionEnd("refused", self.refusal or replies.TOO_BIG)
        except BaseException:
            await self._discard()
            raise

    async def accept(self, envelope: Envelope) -> str | None:
        """Hand the draft to the intake; return the refusal, or None when it is durably ours.

        Nothing here is cancelled when the client goes away: the message is then queued
        though the 250 is lost, and the client may send it again (RFC 1047).
        """
        draft, self._draft = self._draft, None
        if draft is None:
            return self.refusal
        try:
            await self._intake.accept(draft, envelope)
        except NotAccepted as refused:
            return refused.reply
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not become a 5yz
            self._on_fault(error)
            return replies.INTERNAL_FAULT
        return None

    async def _store(self, content: bytes) -> None:
        """Pass content on in pieces that are not small, and out of memory when it is much."""
        if self.refusal is not None:
            await self._discard()
            return
        if self._draft is None:
            return
        if self._pending or len(content) < _CHUNK_BYTES:
            self._pending += content
            if len(self._pending) < _CHUNK_BYTES and not self._decoder.is_ended:
                return
            content = bytes(self._pending)
            self._pending.clear()
        self._draft.append(content)
        if self._draft.buffered_bytes < SPILL_BYTES:
            return
        try:
            await self._intake.spill(self._draft)
        except NotAccepted as refused:
            self._not_stored, self._draft = refused.reply, None
        except Exception as error:  # noqa: BLE001 - as in accept
            self._on_fault(error)
            self._not_stored = replies.INTERNAL_FAULT
            await self._discard()

    async def _discard(self) -> None:
        self._pending.clear()
        draft, self._draft = self._draft, None
        if draft is not None:
            await self._intake.discard(draft)
