"""One client's session: carries out the decisions of the state machine in `relay.smtp`.

Guarantees: one reply for each command, in order; `250` to content only after `IntakePort.accept` returned.
An error of the relay gives 451, never 5yz, without details.
Does not: know the order of commands (`relay.smtp.session_machine` does), look up names, log, or keep anything
after the connection is closed.
"""

import asyncio

from relay.listener.access import ClientPlace
from relay.listener.content import ContentDecoder
from relay.listener.listener_state import ListenerState
from relay.listener.quotas import Owner
from relay.listener.received import received_line
from relay.listener.wire import ClientConnection, SessionEnd
from relay.mail.envelope import Draft, Envelope
from relay.smtp import replies
from relay.smtp.commands import Refused
from relay.smtp.sasl import Credentials, PasswordCheck
from relay.smtp.session_machine import SessionMachine, SessionState

MAX_IDLE_COMMANDS = 100
"""Commands since the last message; a further one counts as an error (Postfix: smtpd_junk_command_limit)."""
SPILL_BYTES = 256 * 1024
_CHUNK_BYTES = 32 * 1024
"""The least that is appended to a draft at once: octets that trickle in do not cost an object each."""
STRANGERS_S = 60.0
"""From the greeting to the login: an idle stranger then frees its place for other strangers."""


class ClientSession(ClientConnection):
    """The `SessionOwner` of its state machine."""

    reason = "shutdown"
    """Why the session ended, as in `SessionEnd`.  A session that is cancelled keeps this value."""

    def __init__(self, listener: ListenerState, place: ClientPlace) -> None:
        """`place` is counted by `Admission.enter`; the session calls `leave` at its end."""
        super().__init__(asyncio.get_running_loop())
        self._listener, self.place = listener, place
        self._label = str(place.client)
        self._errors = self._idle_commands = 0
        self._login: str | None = None
        """The password hash that the client logged in with."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        listener, place = self._listener, self.place
        self._machine = SessionMachine(
            listener.terms,
            self,
            is_trusted=place.may_relay,
            is_private=place.client.is_loopback,
            is_tls=self.is_tls,
        )
        self._began_at = self.loop.time()
        listener.sessions.add(self)
        listener.observer.connection_opened(listener.name, self._label)
        self.task = self.loop.create_task(self._handle_client())
        # Not in the coroutine: a task that is cancelled before its first step runs no `finally`.
        self.task.add_done_callback(self._leave)

    def _leave(self, _ended: object) -> None:
        listener = self._listener
        self.transport.abort()
        self.cancel_timer()
        listener.sessions.discard(self)
        listener.admission.leave(self.place)
        listener.observer.connection_closed(listener.name, self._label, self.reason)

    def sender_refusal(self, reverse_path: str, size_bytes: int) -> str | None:
        """Return a refusal of MAIL, or None.  Raises SessionEnd if the user is gone or has a new password."""
        user, listener = self._machine.user, self._listener
        if user is not None:
            if self._login != listener.users.hash_of(user):
                raise SessionEnd("refused", replies.LOGIN_CHANGED)
            if not listener.listen.may_send(user, reverse_path):
                return replies.NOT_YOUR_SENDER
        if Owner.of(user, self._label) in listener.quotas.full:
            return replies.TOO_MUCH_QUEUED
        return listener.intake.refusal(size_bytes)

    async def _handle_client(self) -> None:
        self.reply(self._listener.greeting)
        try:
            while True:
                await self._obey_next()
        except SessionEnd as end:
            self.reason = end.reason
            if end.reply is not None:
                self._say(end.reply)
        except Exception as error:  # noqa: BLE001 - no error may become a 5yz, or end other sessions
            self.reason = "fault"
            self._listener.observer.fault(self._listener.name, self._label, error)
            self._say(replies.INTERNAL_FAULT)
        await self.finish(linger=self.reason != "quit")

    async def _obey_next(self) -> None:
        """Read one command and reply to it.  Raises SessionEnd."""
        line = await self.read_line(self._command_deadline)
        try:
            reply: str | None = self._machine.take(line, is_stopping=self.is_stopping)
            while reply is not None and not self._machine.takes_commands:
                reply = await self._carry_out(reply)
            if reply is not None:
                self._say(reply)
        except Refused as refused:
            self._say(refused.reply)
        self._idle_commands += self._machine.phase not in {"rcpt", "eod"}
        errors = self._errors + max(0, self._idle_commands - MAX_IDLE_COMMANDS)
        if errors >= self._listener.listen.max_errors:
            raise SessionEnd("errors", replies.TOO_MANY_ERRORS)

    @property
    def _command_deadline(self) -> float:
        listener = self._listener
        session_s = listener.session_s if self.place.may_relay else min(STRANGERS_S, listener.session_s)
        return min(self.loop.time() + listener.command_s, self._began_at + session_s)

    def _say(self, reply: str) -> None:
        """Add a reply; report 4yz and 5yz to the observer, and count 5yz as errors of the client."""
        self.reply(reply)
        if reply[0] in "45":
            listener, machine = self._listener, self._machine
            listener.observer.refused(listener.name, self._label, machine.phase, reply, machine.named_user)
            self._errors += reply[0] == "5"

    async def _carry_out(self, reply: str) -> str | None:
        """Carry out the machine's state; return the next reply, or None.  Raises Refused, SessionEnd."""
        match self._machine.state:
            case SessionState.EXCHANGE:
                self._say(reply)
                return self._machine.respond(await self.read_line(self._command_deadline))
            case SessionState.VERIFYING:
                return await self._verify(self._machine.proof)
            case SessionState.CONTENT:
                return await self._take_content(reply)
            case SessionState.SECURING:
                await self._secure(reply)
                return None
        raise SessionEnd(self._machine.reason, reply)

    async def _verify(self, proof: Credentials | None) -> str:
        listener, place = self._listener, self.place
        if proof is None:
            raise AssertionError("nothing to verify")
        check = await listener.lockouts.check(
            place.client.origin, lambda: listener.users.verify(proof.name, proof.password)
        )
        reply = self._machine.judged(check)
        if check is PasswordCheck.RIGHT:
            listener.admission.log_in(place)
            self._login = listener.users.hash_of(proof.name)
        return reply

    async def _secure(self, reply: str) -> None:
        """Start TLS, and discard what the client said before (RFC 3207, 4.2).  Raises SessionEnd."""
        context = self._listener.tls
        if context is None:
            raise AssertionError("TLS that is not offered")
        if self.has_unread:
            raise SessionEnd("refused", replies.TLS_PIPELINED)
        self._say(reply)
        await self.start_tls(context)
        self._machine.secured()

    async def _take_content(self, go_ahead: str) -> str:
        """Receive and accept one message; return the reply.  Raises Refused, SessionEnd."""
        listener, machine, transaction = self._listener, self._machine, self._machine.transaction
        if transaction is None:
            raise AssertionError("content without a transaction")
        draft, protocol, helo = listener.intake.draft(), machine.protocol, machine.helo or ""
        trace = received_line(
            helo=helo,
            address=self.place.client.address,
            hostname=listener.hostname,
            protocol=protocol,
            queue_id=draft.queue_id,
            wall_ns=listener.clock.wall_ns(),
        )
        draft.append(trace)
        decoder = listener.decoder_for(self.place.client)
        self._say(go_ahead)
        try:
            await self._receive(decoder, draft)
        finally:
            machine.go_on()
            machine.phase = "eod"
        ended_at_ns = listener.clock.boottime_ns()
        envelope = Envelope(
            reverse_path=transaction.reverse_path,
            recipients=tuple(transaction.recipients),
            arrival_at_ns=listener.clock.wall_ns(),
            client=self._label,
            helo=helo,
            protocol=protocol,
            user=machine.user,
            smtputf8=transaction.smtputf8 and not (transaction.is_ascii and decoder.has_ascii_header),
            dsn=transaction.dsn,
        )
        await listener.intake.accept(draft, envelope)
        listener.observer.accepted(
            listener.name,
            draft.queue_id,
            envelope,
            decoder.message_id,
            size_bytes=len(trace) + decoder.size_bytes,
            commit_ns=listener.clock.boottime_ns() - ended_at_ns,
        )
        self._errors = self._idle_commands = 0
        return replies.queued(draft.queue_id)

    async def _receive(self, decoder: ContentDecoder, draft: Draft) -> None:
        """Read the content to its end; on return the draft is complete.

        Raises Refused at the end, SessionEnd if the end does not come.  After either, or if the session is
        cancelled, the draft is discarded.  Memory is bounded by `_CHUNK_BYTES`, `SPILL_BYTES` and one read.
        """
        listener, pending, not_stored = self._listener, bytearray(), ""
        until = self.loop.time() + listener.transfer_s
        try:
            while not decoder.is_ended:
                if decoder.is_hopeless:
                    raise SessionEnd("refused", decoder.refusal or replies.TOO_BIG)
                chunk = await self.read_chunk(min(self.loop.time() + listener.content_s, until))
                pending += decoder.feed(chunk)
                if decoder.refusal or not_stored:
                    pending.clear()
                elif len(pending) >= _CHUNK_BYTES or decoder.is_ended:
                    draft.append(bytes(pending))
                    pending.clear()
                    if draft.buffered_bytes >= SPILL_BYTES:
                        try:
                            await listener.intake.spill(draft)
                        except Refused as refused:
                            not_stored = refused.reply
            self.unread(decoder.rest)
            # A fault of the message comes first: its 5yz keeps the client from trying again.
            if refusal := decoder.refusal or not_stored:
                raise Refused(refusal)
        except BaseException:
            if not not_stored:  # a failed spill discarded it
                await listener.intake.discard(draft)
            raise
