"""The server's side of an SMTP session: a table of states and commands.  Pure, without I/O.

`TABLE` says what each command does in the four states that take commands.  The rules that depend on the
client (`_check`) come before it, the grammar of the argument after it.
Guarantees: each line gets one reply; a refused command changes nothing; only a client that may relay reaches
CONTENT; nothing said before TLS counts after it (RFC 3207, 4.2).
Assumes: the owner does what the state after a line asks for before it passes the next line.
"""

import enum
from dataclasses import dataclass
from typing import Protocol

from relay.smtp import replies
from relay.smtp.commands import (
    MailTransaction,
    Refused,
    parse_host_name,
    parse_mail,
    parse_rcpt,
    split_command,
)
from relay.smtp.sasl import EXCHANGES, Credentials, PasswordCheck, SaslExchange, challenge_reply, said_in

MAX_ATTEMPTS = 3
"""Failed authentications in one session before 421."""

# A web page can make the owner's browser post text to a port of this host, which would be read as commands
# (Postfix: smtpd_forbidden_commands).
_WEB_VERBS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})
_NO_ARGUMENT = frozenset({"RSET", "QUIT", "STARTTLS", "DATA"})


class SessionState(enum.IntEnum):
    """The progress of a session; the first four states take commands."""

    GREETED = 0  # no HELO or EHLO yet, or none since TLS began
    READY = 1  # HELO or EHLO; no transaction
    SENDER = 2  # MAIL was accepted
    RECIPIENTS = 3  # a RCPT was accepted too
    EXCHANGE = 4  # a challenge of AUTH waits for its response
    VERIFYING = 5  # the owner checks the credentials, then calls `judged`
    SECURING = 6  # the owner does the TLS handshake, then calls `secured`
    CONTENT = 7  # the owner receives the content, then calls `go_on`
    OVER = 8  # the last reply was given


GREETED, READY, SENDER, RECIPIENTS, EXCHANGE, VERIFYING, SECURING, CONTENT, OVER = SessionState


@dataclass(frozen=True, slots=True)
class ServerTerms:
    hostname: str
    max_size_bytes: int
    max_recipients: int
    mechanisms: tuple[str, ...] = ()
    """Of AUTH, with the names of `sasl`; empty if no client can log in."""
    has_starttls: bool = False
    has_dsn: bool = True
    """DSN (RFC 3461) is announced, and its parameters are accepted."""


class SessionOwner(Protocol):
    """Answers the questions that are not about SMTP."""

    def sender_refusal(self, reverse_path: str, size_bytes: int) -> str | None:
        """Return a refusal, or None; must be cheap."""


_STAYS = (GREETED, READY, SENDER, RECIPIENTS)

TABLE: dict[str, tuple[SessionState | str, ...]] = {
    "HELO": (READY, READY, READY, READY),
    "EHLO": (READY, READY, READY, READY),
    "STARTTLS": (SECURING, SECURING, SECURING, SECURING),
    "AUTH": (replies.NEEDS_EHLO, EXCHANGE, *(replies.AUTH_IN_TRANSACTION,) * 2),
    "MAIL": (replies.NEEDS_HELO, SENDER, replies.NESTED_MAIL, replies.NESTED_MAIL),
    "RCPT": (replies.NEEDS_MAIL, replies.NEEDS_MAIL, RECIPIENTS, RECIPIENTS),
    "DATA": (replies.NEEDS_MAIL, replies.NEEDS_MAIL, replies.NEEDS_RECIPIENT, CONTENT),
    "RSET": (GREETED, READY, READY, READY),
    "NOOP": _STAYS,
    "HELP": _STAYS,
    "VRFY": _STAYS,
    "EXPN": (replies.NOT_IMPLEMENTED,) * 4,
    "QUIT": (OVER, OVER, OVER, OVER),
}
"""The state after each command, or its refusal, in GREETED, READY, SENDER and RECIPIENTS."""

FIXED: dict[str, str] = {
    "STARTTLS": replies.TLS_READY,
    "DATA": replies.GO_AHEAD,
    "RSET": replies.OK,
    "NOOP": replies.OK,
    "HELP": replies.HELP,
    # RFC 5321, 7.3: the same reply for every address.
    "VRFY": replies.CANNOT_VERIFY,
    "QUIT": replies.BYE,
}
"""The reply to an accepted command whose argument does not matter."""

ANSWERED_AT_A_STOP = frozenset({"EHLO", "HELO", "QUIT"})
"""Commands that are obeyed while the server stops.  Some clients take any refusal of EHLO for a permanent
one of the message (dma: it bounces, or drops it), so the MAIL behind it is refused instead."""

_WITHOUT_TRANSACTION = frozenset({GREETED, READY, OVER})


class SessionMachine:
    def __init__(
        self, terms: ServerTerms, owner: SessionOwner, *, is_trusted: bool, is_private: bool, is_tls: bool
    ) -> None:
        """`is_trusted`: may relay without AUTH.  `is_private`: nobody can read a password on the wire."""
        self.state = GREETED
        self.phase = "connect"
        """The last command in lower case, or `unknown`."""
        self.helo: str | None = None
        self.is_extended = False
        """The client said EHLO."""
        self.user: str | None = None
        self.is_tls = is_tls
        self.transaction: MailTransaction | None = None
        """Set in SENDER, RECIPIENTS and CONTENT."""
        self.proof: Credentials | None = None
        """The credentials that the client claims, in VERIFYING."""
        self.reason = ""
        """Why the session ended, in OVER: quit, refused, errors or shutdown."""
        self._terms = terms
        self._owner = owner
        self._is_trusted = is_trusted
        self._is_private = is_private
        self._attempts = 0
        self._exchange: SaslExchange | None = None
        self._claimed = ""

    @property
    def named_user(self) -> str | None:
        """Return the user whom the last command tried to log in, else the user who logged in."""
        return self._claimed or self.user

    @property
    def protocol(self) -> str:
        """Return the `with` of a Received line, by the registry of RFC 3848 and RFC 6531, 4.3."""
        if not self.is_extended:
            return "SMTP"
        is_utf8 = self.transaction is not None and self.transaction.smtputf8
        name = "UTF8SMTP" if is_utf8 else "ESMTP"
        return name + ("S" if self.is_tls else "") + ("A" if self.user is not None else "")

    @property
    def takes_commands(self) -> bool:
        return self.state <= RECIPIENTS

    def take(self, line: bytes, *, is_stopping: bool = False) -> str:
        """Obey one command line, given without its CRLF; a server that stops obeys few commands.

        Return the reply, which is empty in VERIFYING.
        """
        before = self.state
        if before > RECIPIENTS:
            raise _out_of_order("a command", before)
        verb, argument = split_command(line)
        self._claimed = ""
        row = TABLE.get(verb)
        self.phase = "unknown" if row is None else verb.lower()
        if is_stopping and verb not in ANSWERED_AT_A_STOP:
            return self._end(replies.CLOSING, "shutdown")
        if row is None:
            return self._end(replies.NOT_SMTP, "refused") if verb in _WEB_VERBS else replies.UNKNOWN_COMMAND
        after = row[before]
        try:
            self._check(verb, argument)
            if isinstance(after, str):
                return after
            reply = self._obey(verb, argument)
        except Refused as refused:
            return refused.reply
        self.state = VERIFYING if self.proof is not None else after
        if after in _WITHOUT_TRANSACTION:
            self.transaction = None
        if after is OVER:
            self.reason = "quit"
        return reply

    def respond(self, line: bytes) -> str:
        """Take a response to a challenge of AUTH; return the reply, which is empty in VERIFYING."""
        if self.state is not EXCHANGE or self._exchange is None:
            raise _out_of_order("a response", self.state)
        try:
            reply = self._advance(self._exchange, line)
        except Refused as refused:
            self.state = READY
            return refused.reply
        self.state = EXCHANGE if self.proof is None else VERIFYING
        return reply

    def judged(self, check: PasswordCheck) -> str:
        if self.state is not VERIFYING:
            raise _out_of_order("a judgement", self.state)
        self.state, self.proof = READY, None
        match check:
            case PasswordCheck.RIGHT:
                self.user = self._claimed
                return replies.AUTHENTICATED
            case PasswordCheck.LATER:
                return replies.AUTH_LATER
        self._attempts += 1
        if self._attempts >= MAX_ATTEMPTS:
            return self._end(replies.TOO_MANY_ATTEMPTS, "errors")
        return replies.AUTH_FAILED

    def secured(self) -> None:
        if self.state is not SECURING:
            raise _out_of_order("TLS", self.state)
        self.is_tls = True
        self.helo = self.user = self.transaction = None
        self.is_extended = False
        self.state = GREETED

    def go_on(self) -> None:
        """Take commands again.  With its content a transaction ends, accepted or not (RFC 5321, 4.1.1.4)."""
        if RECIPIENTS < self.state < OVER:
            self.state = GREETED if self.helo is None else READY
            self.transaction = None

    def _end(self, reply: str, reason: str) -> str:
        self.state, self.transaction, self.reason = OVER, None, reason
        return reply

    @property
    def _offers_auth(self) -> bool:
        """Offer no mechanism if others could read the password."""
        return bool(self._terms.mechanisms) and (self.is_tls or self._is_private)

    @property
    def _takes_dsn(self) -> bool:
        """Take no DSN parameters after HELO: no extension was announced (RFC 5321, 4.1.1.11: 555)."""
        return self._terms.has_dsn and self.is_extended

    def _check(self, verb: str, argument: str | None) -> None:
        """Apply the rules that depend on the client.  Raises Refused."""
        if argument is not None and verb in _NO_ARGUMENT:
            raise Refused(replies.NO_ARGUMENT_ALLOWED)
        match verb:
            case "MAIL" | "RCPT" if not self._is_trusted and self.user is None:
                if self._offers_auth:
                    raise Refused(replies.NEEDS_AUTH)
                needs_tls = self._terms.mechanisms and self._terms.has_starttls
                raise Refused(replies.NEEDS_TLS_THEN_AUTH if needs_tls else replies.NOT_A_CLIENT)
            case "AUTH" if not self._terms.mechanisms:
                raise Refused(replies.AUTH_NOT_OFFERED)
            case "AUTH" if not self.is_extended:
                raise Refused(replies.NEEDS_EHLO)
            case "AUTH" if not self._offers_auth:
                raise Refused(replies.NEEDS_TLS)
            case "AUTH" if self.user is not None:
                raise Refused(replies.AUTH_TWICE)  # RFC 4954, 4
            case "STARTTLS" if self.is_tls:
                raise Refused(replies.TLS_ACTIVE)
            case "STARTTLS" if not self._terms.has_starttls:
                raise Refused(replies.TLS_NOT_OFFERED)

    def _obey(self, verb: str, argument: str | None) -> str:
        match verb:
            case "HELO" | "EHLO":
                return self._hello(verb, argument)
            case "AUTH":
                return self._auth(argument)
            case "MAIL":
                return self._mail(argument)
            case "RCPT":
                return self._rcpt(argument)
            case _:
                return FIXED[verb]

    def _hello(self, verb: str, argument: str | None) -> str:
        terms = self._terms
        self.helo, self.is_extended = parse_host_name(argument), verb == "EHLO"
        if not self.is_extended:
            return f"250 {terms.hostname}"
        lines = [terms.hostname, "PIPELINING", f"SIZE {terms.max_size_bytes}", "8BITMIME", "SMTPUTF8"]
        if terms.has_starttls and not self.is_tls:
            lines.append("STARTTLS")
        if self._offers_auth:
            lines.append(f"AUTH {' '.join(terms.mechanisms)}")
        lines.append("ENHANCEDSTATUSCODES")
        if terms.has_dsn:
            lines.append("DSN")
        return "\r\n".join([*(f"250-{line}" for line in lines[:-1]), f"250 {lines[-1]}"])

    def _auth(self, argument: str | None) -> str:
        if argument is None:
            raise Refused(replies.AUTH_SYNTAX)
        name, _, initial = argument.partition(" ")
        if name.upper() not in self._terms.mechanisms:
            raise Refused(replies.AUTH_UNKNOWN.format(" or ".join(self._terms.mechanisms)))
        exchange = EXCHANGES[name.upper()]()
        challenge = next(exchange)
        if initial:
            return self._advance(exchange, initial.encode("utf-8", "surrogateescape"))
        self._exchange = exchange
        return challenge_reply(challenge)

    def _advance(self, exchange: SaslExchange, line: bytes) -> str:
        self._exchange = None
        try:
            challenge = exchange.send(said_in(line))
        except StopIteration as end:
            proof: Credentials = end.value
            self.proof, self._claimed = proof, proof.name
            return ""
        self._exchange = exchange
        return challenge_reply(challenge)

    def _mail(self, argument: str | None) -> str:
        mail = parse_mail(argument, has_dsn=self._takes_dsn)
        if mail.size_bytes > self._terms.max_size_bytes:
            raise Refused(replies.TOO_BIG)
        if (refusal := self._owner.sender_refusal(mail.reverse_path, mail.size_bytes)) is not None:
            raise Refused(refusal)
        self.transaction = mail
        return replies.SENDER_OK

    def _rcpt(self, argument: str | None) -> str:
        if self.transaction is None:
            raise AssertionError("a recipient without a transaction")
        asked = self.transaction.asked
        recipient, request = parse_rcpt(argument, smtputf8=self.transaction.smtputf8, has_dsn=self._takes_dsn)
        if recipient not in asked and len(asked) >= self._terms.max_recipients:
            raise Refused(replies.TOO_MANY_RECIPIENTS)
        # If a recipient is named twice, its last request counts.
        asked[recipient] = request
        return replies.RECIPIENT_OK


def _out_of_order(what: str, state: SessionState) -> AssertionError:
    return AssertionError(f"{what} while the session is {state.name}")
