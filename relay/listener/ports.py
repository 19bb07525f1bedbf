"""What the listener needs from other rooms: it knows no spool and no metrics."""

from typing import Protocol

from relay.mail.draft import Draft
from relay.mail.envelope import Envelope, QueueId


class IntakePort(Protocol):
    """Raises Refused with a 4yz where a message is not taken; the client keeps it (RFC 5321, 6.1)."""

    def draft(self) -> Draft:
        """Do no I/O."""

    def refusal(self, size_bytes: int) -> str | None:
        """Return the 452 reply if this declared size cannot be stored now.  Cheap; no I/O."""

    async def spill(self, draft: Draft) -> None:
        """Move what is buffered out of memory.  Raises Refused; the draft is gone then."""

    async def accept(self, draft: Draft, envelope: Envelope) -> None:
        """Store the message durably and take responsibility: on return, 250 may be sent.

        Raises Refused, and then nothing is queued.  If the caller is cancelled, the message is queued whole
        or not at all; both are right (RFC 5321, 4.1.1.4; RFC 1047).
        """

    async def discard(self, draft: Draft) -> None:
        """Never raise."""


class Observer(Protocol):
    """Every call is cheap and never raises.  `listener` is the address as the policy writes it."""

    def connection_opened(self, listener: str, client: str) -> None: ...

    def connection_closed(self, listener: str, client: str, reason: str) -> None:
        """`reason` is quit, lost, timeout, errors, refused, shutdown or fault."""

    def refused(self, listener: str, client: str, phase: str, reply: str, user: str | None) -> None:
        """Tell of 4yz or 5yz; `phase` is connect, eod, unknown, or the command in lower case.

        `user` logged in, or tried to; never looked up, as long and as strange as the client likes.
        """

    def accepted(
        self,
        listener: str,
        queue_id: QueueId,
        envelope: Envelope,
        message_id: str | None,
        *,
        size_bytes: int,
        commit_ns: int,
    ) -> None:
        """`commit_ns` is from the final dot to durable; `message_id` as the client wrote it."""

    def fault(self, listener: str, client: str, error: BaseException) -> None:
        """Log an error of our own making; the client was told 451 4.3.0."""
