"""One client's session: what the machine of `relay.smtp` decides, carried out.

Guarantees: one reply per command, in order; `250` to content only after `IntakePort.accept`
returned; an error of our own is 451 and never 5yz, and tells the client nothing.
Does not: know SMTP's order (`relay.smtp.session_machine`), look up names, log, or keep
anything once the connection is closed.
"""

import asyncio

from relay.listener.access import ClientPlace
from relay.listener.content import receive
from relay.listener.quotas import Owner
from relay.listener.received import received_line
from relay.listener.shared import Reception
from relay.listener.wire import ClientConnection, SessionEnd
from relay.mail.envelope import Envelope
from relay.smtp import replies
from relay.smtp.commands import Refused
from relay.smtp.sasl import Credentials, PasswordCheck, Proof
from relay.smtp.session_machine import SessionMachine, SessionStep, Then

MAX_IDLE_COMMANDS = 100
"""Commands since the last message that was taken, from which on each counts as an error (Postfix:
smtpd_junk_command_limit)."""
MAX_STRANGERS_COMMANDS = 10
"""The same, of a client that may not relay: EHLO, STARTTLS, EHLO and three times AUTH are six."""
STRANGERS_PAUSE_S = 1.0
"""What each command after them takes beside (Postfix: smtpd_error_sleep_time), so that strangers who are
sent away and come again cost little."""

# How many of them a message needs is limited elsewhere: max_recipients, and one DATA for each MAIL.
_PHASES_OF_MAIL = frozenset({"rcpt", "data", "eod"})


class ClientSession(ClientConnection):
    """The `SessionOwner` of its machine."""

    def __init__(
        self, reception: Reception, place: ClientPlace, opening: "asyncio.Task[None] | None" = None
    ) -> None:
        """Hold a place that was counted in, to the end.  `opening` makes the connection."""
        super().__init__(asyncio.get_running_loop())
        if opening is not None:
            self.task = opening
        self._reception = reception
        self.place = place
        place.give_way = self._give_way
        self._label = str(place.client)
        self._machine = SessionMachine(
            reception.terms,
            self,
            is_trusted=place.may_relay,
            is_private=place.client.is_loopback,
            is_tls=False,
        )
        self._errors = 0
        self._idle_commands = 0
        self._session_until = 0.0
        self._login: str | None = None
        """The hash of the password that the client knew."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        room = self._reception
        self._machine.is_tls = self.is_tls
        room.sessions.add(self)
        room.admission.step(self.place)
        room.observer.connection_opened(room.name, self._label)
        self.task = self.loop.create_task(self._handle_client())
        # Not in the coroutine: cancelled before its first step, it would do nothing.
        self.task.add_done_callback(self._leave)

    def _leave(self, _ended: object) -> None:
        room = self._reception
        self.let_go()
        room.sessions.discard(self)
        room.admission.leave(self.place)
        room.observer.connection_closed(room.name, self._label, self.reason)

    def _give_way(self) -> None:
        self._tell_refused(replies.GIVES_WAY)
        self.end("crowded", replies.GIVES_WAY)

    # Asked by the machine.

    def sender_refusal(self, reverse_path: str, size_bytes: int) -> str | None:
        """Raise SessionEnd where its user is gone, or has another password by now."""
        user, room = self._machine.user, self._reception
        if user is not None:
            if self._login != self._login_now():
                raise SessionEnd("refused", replies.LOGIN_CHANGED)
            if not room.listen.may_send(user, reverse_path):
                return replies.NOT_YOUR_SENDER
        if room.quotas.is_full(Owner.of(user, self._label)):
            return replies.TOO_MUCH_QUEUED
        return room.intake.refusal(size_bytes)

    def recipient_refusal(self, recipient: str) -> str | None:  # noqa: ARG002 - all are taken; the upstream decides
        return None

    # The loop.

    async def _handle_client(self) -> None:
        self.reply(self._reception.greeting)
        self._session_until = self.loop.time() + self._reception.session_s
        try:
            end = await self._serve()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not become a 5yz, or end others
            self._reception.observer.fault(self._reception.name, self._label, error)
            end = SessionEnd("fault", replies.INTERNAL_FAULT)
        self.reason = end.reason
        if end.reply is not None and end.reply[0] in "45":
            self._tell_refused(end.reply)
        await self.finish(end.reply, linger=end.reason != "quit")

    async def _serve(self) -> SessionEnd:
        try:
            while True:
                await self._obey_next()
        except SessionEnd as end:
            return end

    async def _obey_next(self) -> None:
        """Raise SessionEnd."""
        deadline, errors = self._command_deadline, self._errors
        try:
            step: SessionStep | None = self._machine.take(
                await self.read_line(deadline), is_stopping=self.is_stopping
            )
            while step is not None and step.then is not Then.COMMAND:
                step = await self._carry_out(step)
            if step is not None:
                self.say(step.reply)
        except Refused as refused:
            self.say(refused.reply)
        if self._machine.phase not in _PHASES_OF_MAIL or not self.place.may_relay:
            await self._count_idleness(errors)
        if self._errors >= self._reception.listen.max_errors:
            raise SessionEnd("errors", replies.TOO_MANY_ERRORS)
        await self.flush_much(deadline)

    @property
    def _command_deadline(self) -> float:
        return min(self.loop.time() + self._reception.command_s, self._session_until)

    async def _count_idleness(self, errors_before: int) -> None:
        """Count a command that brought no mail; of very many each is an error, if it was none by itself."""
        may_relay = self.place.may_relay
        self._idle_commands += 1
        if self._idle_commands <= (MAX_IDLE_COMMANDS if may_relay else MAX_STRANGERS_COMMANDS):
            return
        if self._errors == errors_before:
            self._errors += 1
        if not may_relay:
            await self.flush(self._command_deadline)
            await asyncio.sleep(STRANGERS_PAUSE_S)

    def say(self, reply: str) -> None:
        """Tell the observer of a refusal; 5yz count against the client."""
        self.reply(reply)
        if reply[0] in "45":
            self._tell_refused(reply)
            self._errors += reply[0] == "5"

    async def _carry_out(self, step: SessionStep) -> SessionStep | None:
        """Return the next step; None where no reply follows.  Raises Refused, SessionEnd."""
        match step.then:
            case Then.RESPONSE:
                self.say(step.reply)
                return await self._respond()
            case Then.VERIFY:
                return await self._verify(step.proof)
            case Then.CONTENT:
                return SessionStep(await self._take_content(step.reply))
            case Then.TLS:
                return await self._secure(step.reply)
        raise SessionEnd(step.reason, step.reply)

    async def _respond(self) -> SessionStep:
        try:
            return self._machine.respond(await self.read_line(self._command_deadline))
        except Refused as refused:
            self._machine.go_on()
            is_too_long = refused.reply == replies.LINE_TOO_LONG
            return SessionStep(replies.AUTH_LINE_TOO_LONG if is_too_long else refused.reply)

    async def _verify(self, proof: Proof | None) -> SessionStep:
        room, place, users = self._reception, self.place, self._reception.users
        if users is None or not isinstance(proof, Credentials):
            raise AssertionError("a proof that was not asked for")
        room.admission.step(place)
        check = await room.guesses.judge(
            place.client.origin, lambda: users.verify(proof.name, proof.password)
        )
        step = self._machine.judged(check)
        if check is PasswordCheck.RIGHT:
            room.admission.log_in(place)
            self._idle_commands = 0
            self._login = self._login_now()
        return step

    def _login_now(self) -> str | None:
        users, name = self._reception.users, self._machine.user
        return None if users is None or name is None else users.hash_of(name)

    async def _secure(self, reply: str) -> SessionStep | None:
        """Forget what the client said before TLS (RFC 3207, 4.2)."""
        context = self._reception.tls
        if context is None:
            raise AssertionError("TLS that is not offered")
        if self.has_unread:
            raise SessionEnd("refused", replies.TLS_PIPELINED)
        self.say(reply)
        await self.start_tls(context)
        self._reception.admission.step(self.place)
        self._machine.secured()
        return None

    async def _take_content(self, go_ahead: str) -> str:
        """Return the reply to one message.  Raises Refused, SessionEnd."""
        room, machine, transaction = self._reception, self._machine, self._machine.transaction
        if transaction is None:
            raise AssertionError("content without a transaction")
        draft, protocol, helo = room.intake.draft(), machine.protocol, machine.helo or ""
        trace = received_line(
            helo=helo,
            address=self.place.client.address,
            hostname=room.hostname,
            protocol=protocol,
            queue_id=draft.queue_id,
            wall_ns=room.clock.wall_ns(),
        )
        draft.append(trace)
        decoder = room.decoder_for(self.place.client)
        self.say(go_ahead)
        try:
            await receive(
                self, decoder, draft, room.intake, idle_s=room.content_s, transfer_s=room.transfer_s
            )
        finally:
            machine.go_on()
            machine.phase = "eod"
        ended_at_ns = room.clock.boottime_ns()
        envelope = Envelope(
            reverse_path=transaction.reverse_path,
            recipients=tuple(transaction.recipients),
            arrival_at_ns=room.clock.wall_ns(),
            client=self._label,
            helo=helo,
            protocol=protocol,
            user=machine.user,
            smtputf8=transaction.smtputf8 and not (transaction.is_ascii and decoder.has_ascii_header),
            dsn=transaction.dsn,
        )
        await room.intake.accept(draft, envelope)
        room.quotas.took(Owner.of(envelope.user, self._label))
        room.observer.accepted(
            room.name,
            draft.queue_id,
            envelope,
            decoder.message_id,
            size_bytes=len(trace) + decoder.size_bytes,
            commit_ns=room.clock.boottime_ns() - ended_at_ns,
        )
        self._errors = self._idle_commands = 0
        return replies.queued(draft.queue_id)

    def _tell_refused(self, reply: str) -> None:
        room, machine = self._reception, self._machine
        room.observer.refused(room.name, self._label, machine.phase, reply, machine.named_user)
