"""The interfaces that the listener needs from other rooms.  It knows neither the spool nor metrics."""

from typing import Protocol

from relay.mail.envelope import Draft, Envelope, QueueId


class IntakePort(Protocol):
    """Takes messages.  Raises Refused (4yz) if it cannot: the client keeps the message (RFC 5321, 6.1)."""

    def draft(self) -> Draft:
        """Return an empty draft, without I/O."""

    def refusal(self, size_bytes: int) -> str | None:
        """Return the 452 reply if the declared size cannot be stored now, else None.  Cheap; no I/O."""

    async def spill(self, draft: Draft) -> None:
        """Move the buffered content out of memory.  Raises Refused, and then the draft is discarded."""

    async def accept(self, draft: Draft, envelope: Envelope) -> None:
        """Store the message durably and take responsibility: on return, 250 may be sent.

        Raises Refused, and then nothing is queued.  If the caller is cancelled, either the whole message is
        queued or nothing; both are right (RFC 5321, 4.1.1.4; RFC 1047).
        """

    async def discard(self, draft: Draft) -> None:
        """Discard the draft; never raises."""


class Observer(Protocol):
    """Takes events.  Calls are cheap and never raise.  `listener` is the address that the policy states."""

    def connection_opened(self, listener: str, client: str) -> None: ...

    def connection_closed(self, listener: str, client: str, reason: str) -> None:
        """`reason` is quit, lost, timeout, errors, refused, shutdown or fault."""

    def refused(self, listener: str, client: str, phase: str, reply: str, user: str | None) -> None:
        """Report a 4yz or 5yz.  `phase` is connect, eod, unknown, or the command in lower case.

        `user` is the name of the login, or of the attempt: unchecked text of any length from the client.
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
        """`commit_ns` is the time from the final dot to durable; `message_id` is the client's text."""

    def fault(self, listener: str, client: str, error: BaseException) -> None:
        """Report an error of the relay, or of accept.  A client in a session got 451 4.3.0."""
