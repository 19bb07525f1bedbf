"""One SMTP session: what each command means (RFC 5321, 3 and 4).

The order of a session is greeting, EHLO or HELO, then any number of transactions of
MAIL, RCPT and DATA.  Guarantees: one reply per command, in order; `250` to content only
after `Intake.accept` returned; nobody relays who may not; an error of our own is 451
and never 5yz, and tells the client nothing.
Does not: look up names, log, or keep anything once the connection is closed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import ClassVar

from relay.listener import replies
from relay.listener.access import Client, ClientPlace
from relay.listener.auth import read_credentials
from relay.listener.command import Refused, parse_host_name, parse_mail, parse_rcpt, split_command
from relay.listener.content import ContentDecoder
from relay.listener.received import protocol_name, received_line
from relay.listener.reception import Reception, Seconds
from relay.listener.transfer import Transfer
from relay.listener.users import PasswordCheck, Users
from relay.listener.wire import BadLine, ClientConnection, SessionEnd
from relay.mail.envelope import Envelope

MAX_ATTEMPTS = 3
"""Failed authentications in one session before 421."""

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

# A page in the owner's browser can make it post text to a port on this host, which would
# be read as commands (Postfix: smtpd_forbidden_commands).
_WEB_VERBS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})


@dataclass(slots=True)
class MailTransaction:
    """What MAIL and RCPT have said so far."""

    reverse_path: str
    smtputf8: bool
    recipients: dict[str, None] = field(default_factory=dict)
    """In order, each once."""


class ClientSession(ClientConnection):
    """The session on one connection."""

    COMMANDS: ClassVar[dict[str, Callable[["ClientSession", str | None], Awaitable[None]]]]

    def __init__(self, reception: Reception, admitted: ClientPlace | None = None) -> None:
        """Begin; `admitted` is the place that it has already, as behind `Handshakes`."""
        super().__init__(asyncio.get_running_loop())
        self._reception = reception
        self._admitted = admitted
        self._place: ClientPlace
        self._client: Client
        self._label = "unknown"
        self._is_trusted = False
        self._user: str | None = None
        self._transaction: MailTransaction | None = None
        self._phase = "connect"
        self._errors = 0
        self._idle_commands = 0
        self._began_at = 0.0
        self._attempts = 0
        self._is_in_content = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start, under the eyes of the register."""
        super().connection_made(transport)
        # Only a test's transport has no socket; then there is no descriptor to count.
        connected = transport.get_extra_info("socket")
        self._fd = -1 if connected is None else connected.fileno()
        self._reception.register.add(self)

    async def _handle_client(self) -> None:
        """Serve the connection from its first octet to its last."""
        room = self._reception
        try:
            await self._admit()
        except Exception as error:  # noqa: BLE001 - the last line: a session must not take others with it
            room.observer.fault(room.name, self._label, error)
        finally:
            if not self._is_lost:
                self.transport.abort()
            room.register.remove(self)

    async def _admit(self) -> None:
        """Serve the client if there is room for it."""
        room = self._reception
        if self._admitted is not None:
            self._place = self._admitted
        elif self.session.peer is not None:
            client = Client.of_peer(self.session.peer[0])
            self._place = room.place_for(client, lambda: self.send_away(replies.GIVES_WAY))
        else:
            return  # gone before we looked
        self._client = self._place.client
        self._label = str(self._client)
        self._is_trusted = self._place.may_relay
        refusal = None if self._admitted else room.enter(self._place, self._fd)
        if refusal is not None:
            room.observer.refused(room.name, self._label, self._phase, refusal)
            await self.finish(refusal, linger=False)
            return
        room.admission.step(self._place)
        room.observer.connection_opened(room.name, self._label)
        reason = "fault"
        try:
            end = await self._serve()
            reason = end.reason
            if end.reply is not None and end.reply[0] in "45":
                room.observer.refused(room.name, self._label, self._phase, end.reply)
            await self.finish(end.reply, linger=reason != "quit")
        except asyncio.CancelledError:
            reason = "crowded" if self._is_sent_away else "shutdown"
            raise
        finally:
            room.admission.leave(self._place)
            room.observer.connection_closed(room.name, self._label, reason)

    def send_away(self, text: str) -> None:
        """Give way to another client, at once."""
        room = self._reception
        room.observer.refused(room.name, self._label, self._phase, text)
        super().send_away(text)

    async def _serve(self) -> SessionEnd:
        """Greet and obey until the session is over; return how it ended."""
        room = self._reception
        try:
            self.reply(room.greeting)
            self._began_at = self.loop.time()
            while True:
                await self._obey_next()
        except SessionEnd as end:
            return end

    async def _obey_next(self) -> None:
        """Read one command and obey it.  Raises SessionEnd."""
        now = self.loop.time()
        session_until = self._began_at + self._seconds.session
        if now >= session_until:
            raise SessionEnd("timeout", replies.IDLE_TOO_LONG)
        deadline = min(now + self._seconds.command, session_until)
        errors = self._errors
        try:
            line = await self.read_line(deadline)
            verb, argument = split_command(line)
            command = self.COMMANDS.get(verb)
            self._phase = "unknown" if command is None else verb.lower()
            if command is None:
                self._refuse_unknown(verb)
            else:
                await command(self, argument)
        except (BadLine, Refused) as refused:
            self.say(refused.reply)
        except SessionEnd:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not become a 5yz
            self._tell_fault(error)
            self.say(replies.INTERNAL_FAULT)
            self._errors += 1
            if self._is_in_content:
                # Content would be read as commands if we went on.
                raise SessionEnd("fault") from None
        await self._count_idleness(errors)
        if self._errors >= self._reception.listen.max_errors:
            raise SessionEnd("errors", replies.TOO_MANY_ERRORS)
        await self.flush_much(deadline)

    @property
    def _seconds(self) -> Seconds:
        room = self._reception
        return room.seconds if self._place.may_relay else room.strangers_seconds

    async def _count_idleness(self, errors_before: int) -> None:
        """Count a command that brought no mail; of very many each is one error, if it was none by itself."""
        may_relay = self._place.may_relay
        if may_relay and self._phase in _PHASES_OF_MAIL:
            return
        self._idle_commands += 1
        if self._idle_commands <= (MAX_IDLE_COMMANDS if may_relay else MAX_STRANGERS_COMMANDS):
            return
        if self._errors == errors_before:
            self._errors += 1
        if not may_relay:
            await self.flush(self.loop.time() + self._seconds.command)
            await asyncio.sleep(STRANGERS_PAUSE_S)

    def say(self, reply: str) -> None:
        """Reply, and tell of it if it is a refusal; 5yz count against the client."""
        self.reply(reply)
        if reply[0] in "45":
            room = self._reception
            room.observer.refused(room.name, self._label, self._phase, reply)
            self._errors += reply[0] == "5"

    def _refuse_unknown(self, verb: str) -> None:
        if verb in _WEB_VERBS:
            raise SessionEnd("refused", replies.NOT_SMTP)
        self.say(replies.UNKNOWN_COMMAND)

    # Commands.  The names and the signature are aiosmtpd's.

    async def smtp_HELO(self, hostname: str | None) -> None:
        """Begin without extensions (RFC 5321, 4.1.1.1)."""
        self._greet(parse_host_name(hostname), extended=False)
        self.say(f"250 {self._reception.hostname}")

    async def smtp_EHLO(self, hostname: str | None) -> None:
        """Begin with extensions (RFC 5321, 4.1.1.1)."""
        self._greet(parse_host_name(hostname), extended=True)
        starttls = self._reception.offers_starttls and not self.is_tls
        self.say(self._reception.ehlo_reply(starttls=starttls, auth=self._offers_auth))

    async def smtp_NOOP(self, arg: str | None) -> None:  # noqa: ARG002 - RFC 5321, 4.1.1.9: ignored
        """Do nothing."""
        self.say(replies.OK)

    async def smtp_HELP(self, arg: str | None) -> None:  # noqa: ARG002 - one text for all
        """Say where to read."""
        self.say(replies.HELP)

    async def smtp_VRFY(self, arg: str | None) -> None:  # noqa: ARG002 - nothing to learn here
        """Answer the same whatever is asked (RFC 5321, 7.3)."""
        self.say(replies.CANNOT_VERIFY)

    async def smtp_EXPN(self, arg: str | None) -> None:  # noqa: ARG002 - as above
        """Refuse (RFC 5321, 7.3)."""
        self.say(replies.NOT_IMPLEMENTED)

    async def smtp_RSET(self, arg: str | None) -> None:
        """Forget the transaction."""
        _require_none(arg)
        self._transaction = None
        self.say(replies.OK)

    async def smtp_QUIT(self, arg: str | None) -> None:
        """End the session."""
        _require_none(arg)
        raise SessionEnd("quit", replies.BYE)

    async def smtp_STARTTLS(self, arg: str | None) -> None:
        """Go on under TLS, and forget what was said before it (RFC 3207, 4.2)."""
        _require_none(arg)
        context = self._reception.tls
        if self.is_tls:
            raise Refused(replies.TLS_ACTIVE)
        if context is None or not self._reception.offers_starttls:
            raise Refused(replies.TLS_NOT_OFFERED)
        if self.has_unread:
            raise SessionEnd("refused", replies.TLS_PIPELINED)
        self.say(replies.TLS_READY)
        await self.start_tls(context)
        self._reception.admission.step(self._place)
        self.session = self._create_session()
        self._transaction = None
        self._user = None

    async def smtp_AUTH(self, arg: str | None) -> None:
        """Let a user of the users file in (RFC 4954)."""
        room = self._reception
        users = self._check_auth_allowed()
        if arg is None:
            raise Refused(replies.AUTH_SYNTAX)
        origin = self._client.origin
        if room.guesses.is_blocked(origin):
            raise Refused(replies.AUTH_LATER)
        name, password = await read_credentials(arg, self._ask)
        room.admission.step(self._place)
        match await room.guesses.judge(origin, lambda: users.verify(name, password)):
            case PasswordCheck.RIGHT:
                room.admission.log_in(self._place)
                self._user = name
                self._idle_commands = 0
                self.say(replies.AUTHENTICATED)
                return
            case PasswordCheck.LATER:
                raise Refused(replies.AUTH_LATER)
        self._attempts += 1
        if self._attempts >= MAX_ATTEMPTS:
            raise SessionEnd("errors", replies.TOO_MANY_ATTEMPTS)
        raise Refused(replies.AUTH_FAILED)

    async def smtp_MAIL(self, arg: str | None) -> None:
        """Begin a transaction."""
        self._check_may_relay()
        if self.session.host_name is None:
            raise Refused(replies.NEEDS_HELO)
        if self._transaction is not None:
            raise Refused(replies.NESTED_MAIL)
        mail = parse_mail(arg)
        if mail.size_bytes > self._reception.listen.max_size:
            raise Refused(replies.TOO_BIG)
        refusal = self._reception.intake.refusal(mail.size_bytes)
        if refusal is not None:
            raise Refused(refusal)
        self._transaction = MailTransaction(mail.reverse_path, mail.smtputf8)
        self.say(replies.SENDER_OK)

    async def smtp_RCPT(self, arg: str | None) -> None:
        """Add a recipient; one that is already there is taken once."""
        self._check_may_relay()
        transaction = self._transaction
        if transaction is None:
            raise Refused(replies.NEEDS_MAIL)
        recipient = parse_rcpt(arg, smtputf8=transaction.smtputf8)
        if recipient not in transaction.recipients:
            if len(transaction.recipients) >= self._reception.listen.max_recipients:
                raise Refused(replies.TOO_MANY_RECIPIENTS)
            transaction.recipients[recipient] = None
        self.say(replies.RECIPIENT_OK)

    async def smtp_DATA(self, arg: str | None) -> None:
        """Take the content in; with it the transaction ends, whatever came of it."""
        _require_none(arg)
        transaction = self._transaction
        if transaction is None:
            raise Refused(replies.NEEDS_MAIL)
        if not transaction.recipients:
            raise Refused(replies.NEEDS_RECIPIENT)
        self._transaction = None
        await self._take_content(transaction)

    # Inside.

    def _greet(self, name: str, *, extended: bool) -> None:
        self.session.host_name = name
        self.session.extended_smtp = extended
        self._transaction = None

    @property
    def _offers_auth(self) -> bool:
        return self._reception.offers_auth(self._client, is_tls=self.is_tls)

    def _check_may_relay(self) -> None:
        """Raise Refused for a client that is in no network of ours and has not authenticated."""
        room = self._reception
        if self._is_trusted or self._user is not None:
            return
        if self._offers_auth:
            raise Refused(replies.NEEDS_AUTH)
        if room.users is not None and room.offers_starttls:
            raise Refused(replies.NEEDS_TLS_THEN_AUTH)
        raise Refused(replies.NOT_A_CLIENT)

    def _check_auth_allowed(self) -> Users:
        """Return who may log in; raise Refused where AUTH is not permitted now (RFC 4954, 4)."""
        users = self._reception.users
        if users is None:
            raise Refused(replies.AUTH_NOT_OFFERED)
        if not self.session.extended_smtp:
            raise Refused(replies.NEEDS_EHLO)
        if not self._offers_auth:
            raise Refused(replies.NEEDS_TLS)
        if self._user is not None:
            raise Refused(replies.AUTH_TWICE)
        if self._transaction is not None:
            raise Refused(replies.AUTH_IN_TRANSACTION)
        return users

    async def _ask(self, challenge: str) -> bytes:
        """Send a challenge and return the response.  Raises BadLine, SessionEnd."""
        self.say(f"334 {challenge}")
        try:
            return await self.read_line(self.loop.time() + self._seconds.command)
        except BadLine as bad:
            is_long = bad.reply == replies.LINE_TOO_LONG
            raise BadLine(replies.AUTH_LINE_TOO_LONG if is_long else bad.reply) from None

    async def _take_content(self, transaction: MailTransaction) -> None:
        """Receive and accept one message.  Raises SessionEnd; anything else cannot be gone on from."""
        room = self._reception
        draft = room.intake.draft()
        protocol = protocol_name(
            extended=self.session.extended_smtp,
            tls=self.is_tls,
            authenticated=self._user is not None,
            smtputf8=transaction.smtputf8,
        )
        trace = received_line(
            helo=self.session.host_name or "",
            address=self._client.address,
            hostname=room.hostname,
            protocol=protocol,
            queue_id=draft.queue_id,
            wall_ns=room.clock.wall_ns(),
        )
        draft.append(trace)
        decoder = ContentDecoder(
            room.listen.max_size, room.listen.max_hops, normalise=room.listen.bare_newlines == "normalise"
        )
        transfer = Transfer(room.intake, draft, decoder, self._tell_fault)
        self.say(replies.GO_AHEAD)
        self._is_in_content = True
        refusal = await transfer.receive(self, room.seconds.content, room.seconds.transfer)
        self._is_in_content = False
        self._phase = "eod"
        ended_at_ns = room.clock.boottime_ns()
        envelope = Envelope(
            reverse_path=transaction.reverse_path,
            recipients=tuple(transaction.recipients),
            arrival_at_ns=room.clock.wall_ns(),
            client=self._label,
            helo=self.session.host_name or "",
            protocol=protocol,
            user=self._user,
            smtputf8=transaction.smtputf8,
        )
        refusal = refusal or await transfer.accept(envelope)
        if refusal is not None:
            raise Refused(refusal)
        commit_ns = room.clock.boottime_ns() - ended_at_ns
        size_bytes = len(trace) + decoder.size_bytes
        room.observer.accepted(room.name, draft.queue_id, envelope, size_bytes, commit_ns)
        self._errors = 0
        self._idle_commands = 0
        self.say(replies.queued(draft.queue_id))

    def _tell_fault(self, error: BaseException) -> None:
        self._reception.observer.fault(self._reception.name, self._label, error)


def _require_none(argument: str | None) -> None:
    if argument is not None:
        raise Refused(replies.NO_ARGUMENT_ALLOWED)


ClientSession.COMMANDS = {
    name.removeprefix("smtp_"): getattr(ClientSession, name)
    for name in vars(ClientSession)
    if name.startswith("smtp_")
}
