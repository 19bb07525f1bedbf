"""Commands and replies: SMTP as a strict server speaks it (RFC 5321).  Pure.

Strict means: 8-bit content needs BODY=8BITMIME, UTF-8 addresses need SMTPUTF8, no CR or
LF stands alone, mail needs AUTH, and where there is TLS everything needs TLS.  A client
that passes here passes elsewhere.
Does not: find lines or the end of content (see `session`), or decide whether a message
is within the limit (see `account`).
"""

import base64
import binascii
import enum
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from relay.practice.account import PracticeAccount, PracticeTransaction
from relay.practice.login import MECHANISMS, SERVER_FIRST, Exchange, PracticeCredentials

HOSTNAME = "practice.invalid"
"""RFC 6761, 6.4: a name that exists nowhere, since this host needs none."""
MAX_CONTENT_BYTES = 64 * 1024 * 1024
MAX_RECIPIENTS = 1000

_PATH = re.compile(
    rb"(?:FROM|TO):<((?:[^<>\"\x00-\x20\x7f]|\"(?:[^\"\\\x00-\x1f\x7f]|\\[\x20-\x7e])*\")*)>(?: +(.*))?\Z",
    re.IGNORECASE,
)
_PARAMETER = re.compile(rb"SIZE=[0-9]{1,20}|BODY=(?:7BIT|8BITMIME)|SMTPUTF8|AUTH=[!-~]+", re.IGNORECASE)


class Then(enum.Enum):
    """What the server expects after a reply."""

    COMMAND = enum.auto()
    CONTENT = enum.auto()
    TLS = enum.auto()
    END = enum.auto()


@dataclass(frozen=True, slots=True)
class DialogueReply:
    """A reply, without its last CRLF, and what comes after it."""

    reply: str
    then: Then = Then.COMMAND


_OK = DialogueReply("250 2.0.0 Ok")
_NEEDS_TLS = DialogueReply("530 5.7.0 Must issue a STARTTLS command first")
_NEEDS_AUTH = DialogueReply("530 5.7.0 Authentication required")
_BAD_SEQUENCE = DialogueReply("503 5.5.1 Bad sequence of commands")
_BAD_SYNTAX = DialogueReply("501 5.5.4 Syntax error in parameters")
_UNKNOWN = DialogueReply("500 5.5.2 Command not recognized")
_UNSUPPORTED = DialogueReply("555 5.5.4 Unsupported parameter")
_TOO_BIG = DialogueReply(f"552 5.3.4 Message exceeds {MAX_CONTENT_BYTES} bytes")
_NEEDS_SMTPUTF8 = DialogueReply("553 5.6.7 A non-ASCII address needs SMTPUTF8")


class Dialogue:
    """What one client said so far, and what it is answered."""

    def __init__(
        self, account: PracticeAccount, credentials: PracticeCredentials, *, client: str, has_tls: bool
    ) -> None:
        self._account = account
        self._credentials = credentials
        self._client = client
        self._has_tls = has_tls
        self._is_secured = False
        self._helo = ""
        self._is_esmtp = False
        self._is_authenticated = False
        self._exchange: Exchange | None = None
        self._transaction: PracticeTransaction | None = None

    def answer(self, line: bytes) -> DialogueReply:
        """Return the answer to one line, given without its CRLF."""
        if b"\r" in line or b"\n" in line or b"\0" in line:
            return _UNKNOWN
        if self._exchange is not None:
            return self._continue(self._exchange, line)
        verb, _, argument = line.partition(b" ")
        command = self._COMMANDS.get(verb.upper())
        if command is None:
            return _UNKNOWN
        if self._has_tls and not self._is_secured and verb.upper() not in self._WITHOUT_TLS:
            return _NEEDS_TLS
        return command(self, argument)

    def secured(self) -> None:
        """Begin anew under TLS: nothing said before is remembered (RFC 3207, 4.2)."""
        self._is_secured = True
        self._helo, self._is_esmtp = "", False

    def dot(self) -> None:
        """Note the instant at which the final dot arrived."""
        if self._transaction is not None:
            self._transaction.dot_at_ns = self._account.now_ns()

    def settle(self, content: bytes, *, is_overlong: bool) -> str:
        """Return the reply to the final dot, decided now; the transaction is over."""
        transaction, self._transaction = self._transaction, None
        if transaction is None:
            return _BAD_SEQUENCE.reply
        return self._account.settle(
            transaction, content, _TOO_BIG.reply if is_overlong else _fault(transaction, content)
        )

    def abandon(self) -> None:
        """Drop the transaction, if there is one: by RSET, by a new EHLO, or with the connection."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            self._account.abandon(transaction)

    def _hello(self, argument: bytes, *, is_esmtp: bool) -> bool:
        name = argument.strip()
        if not name or not name.isascii() or b" " in name:
            return False
        self.abandon()
        self._helo, self._is_esmtp = name.decode("ascii"), is_esmtp
        return True

    def _ehlo(self, argument: bytes) -> DialogueReply:
        if not self._hello(argument, is_esmtp=True):
            return _BAD_SYNTAX
        can_log_in = self._is_secured or not self._has_tls
        lines = [
            HOSTNAME,
            f"SIZE {MAX_CONTENT_BYTES}",
            "8BITMIME",
            "SMTPUTF8",
            "PIPELINING",
            "ENHANCEDSTATUSCODES",
            "AUTH PLAIN LOGIN CRAM-MD5" if can_log_in else "STARTTLS",
        ]
        return DialogueReply("\r\n".join([*(f"250-{line}" for line in lines[:-1]), f"250 {lines[-1]}"]))

    def _helo_command(self, argument: bytes) -> DialogueReply:
        return DialogueReply(f"250 {HOSTNAME}") if self._hello(argument, is_esmtp=False) else _BAD_SYNTAX

    def _starttls(self, argument: bytes) -> DialogueReply:
        if argument:
            return _BAD_SYNTAX
        if not self._has_tls:
            return DialogueReply("502 5.5.1 STARTTLS is not offered")
        if self._is_secured:
            return _BAD_SEQUENCE
        return DialogueReply("220 2.0.0 Ready to start TLS", Then.TLS)

    def _auth(self, argument: bytes) -> DialogueReply:
        """Begin an exchange (RFC 4954, 4)."""
        if not self._is_esmtp or self._is_authenticated or self._transaction is not None:
            return _BAD_SEQUENCE
        name, _, initial = argument.partition(b" ")
        mechanism = MECHANISMS.get(name.upper())
        if mechanism is None:
            return DialogueReply("504 5.5.4 Unrecognized authentication mechanism")
        if initial and name.upper() in SERVER_FIRST:
            return DialogueReply("501 5.7.0 This mechanism takes no initial response")
        exchange = mechanism(self._credentials, secrets.token_hex(16))
        challenge = next(exchange)
        if initial:
            # RFC 4954, 4: a single `=` is an empty initial response.
            return self._continue(exchange, b"" if initial == b"=" else initial)
        self._exchange = exchange
        return _challenge(challenge)

    def _continue(self, exchange: Exchange, line: bytes) -> DialogueReply:
        """Take one response of an exchange."""
        self._exchange = None
        if line == b"*":
            return DialogueReply("501 5.7.0 Authentication cancelled")
        try:
            response = base64.b64decode(line, validate=True)
        except binascii.Error:
            return DialogueReply("501 5.5.2 Cannot decode the response")
        try:
            challenge = exchange.send(response)
        except StopIteration as end:
            self._is_authenticated = end.value is True
            if self._is_authenticated:
                return DialogueReply("235 2.7.0 Authentication successful")
            return DialogueReply("535 5.7.8 Authentication credentials invalid")
        self._exchange = exchange
        return _challenge(challenge)

    def _mail(self, argument: bytes) -> DialogueReply:
        """Begin a transaction (RFC 5321, 4.1.1.2)."""
        if not self._is_authenticated:
            return _NEEDS_AUTH
        if self._transaction is not None:
            return _BAD_SEQUENCE
        path = _path(b"FROM", argument)
        if path is None:
            return _BAD_SYNTAX
        address, words = path
        parameters = _parameters(words)
        if parameters is None:
            return _UNSUPPORTED
        if int(parameters.get(b"SIZE", b"0")) > MAX_CONTENT_BYTES:
            return _TOO_BIG
        smtputf8 = b"SMTPUTF8" in parameters
        if not address.isascii() and not smtputf8:
            return _NEEDS_SMTPUTF8
        self._transaction = PracticeTransaction(
            mail_at_ns=self._account.now_ns(),
            reverse_path=address,
            client=self._client,
            helo=self._helo,
            protocol=("UTF8SMTP" if smtputf8 else "ESMTP") + ("SA" if self._is_secured else "A"),
            user=self._credentials.user.decode("utf-8"),
            is_eight_bit=parameters.get(b"BODY") == b"8BITMIME",
            smtputf8=smtputf8,
        )
        return DialogueReply("250 2.1.0 Ok")

    def _rcpt(self, argument: bytes) -> DialogueReply:
        """Add a recipient (RFC 5321, 4.1.1.3)."""
        if self._transaction is None:
            return _BAD_SEQUENCE if self._is_authenticated else _NEEDS_AUTH
        path = _path(b"TO", argument)
        if path is None or not path[0]:
            return _BAD_SYNTAX
        address, words = path
        if words:
            return _UNSUPPORTED
        if not address.isascii() and not self._transaction.smtputf8:
            return _NEEDS_SMTPUTF8
        if len(self._transaction.recipients) >= MAX_RECIPIENTS:
            return DialogueReply("452 4.5.3 Too many recipients")
        if (refusal := self._account.why_refused(address)) is not None:
            return DialogueReply(refusal)
        self._transaction.recipients.append(address)
        return DialogueReply("250 2.1.5 Ok")

    def _content(self, argument: bytes) -> DialogueReply:
        """Ask for the content (RFC 5321, 4.1.1.4)."""
        if argument:
            return _BAD_SYNTAX
        if self._transaction is None:
            return _BAD_SEQUENCE if self._is_authenticated else _NEEDS_AUTH
        if not self._transaction.recipients:
            return DialogueReply("554 5.5.1 No valid recipients")
        return DialogueReply("354 End data with <CR><LF>.<CR><LF>", Then.CONTENT)

    def _rset(self, _argument: bytes) -> DialogueReply:
        self.abandon()
        return _OK

    def _noop(self, _argument: bytes) -> DialogueReply:
        return _OK

    def _vrfy(self, _argument: bytes) -> DialogueReply:
        return DialogueReply("252 2.5.0 Cannot verify, but will try")

    def _quit(self, _argument: bytes) -> DialogueReply:
        self.abandon()
        return DialogueReply("221 2.0.0 Bye", Then.END)

    _COMMANDS: ClassVar[dict[bytes, Callable[["Dialogue", bytes], DialogueReply]]] = {
        b"EHLO": _ehlo,
        b"HELO": _helo_command,
        b"STARTTLS": _starttls,
        b"AUTH": _auth,
        b"MAIL": _mail,
        b"RCPT": _rcpt,
        b"DATA": _content,
        b"RSET": _rset,
        b"NOOP": _noop,
        b"VRFY": _vrfy,
        b"QUIT": _quit,
    }
    _WITHOUT_TLS: ClassVar = frozenset({b"EHLO", b"HELO", b"STARTTLS", b"NOOP", b"RSET", b"QUIT"})


def _challenge(challenge: bytes) -> DialogueReply:
    return DialogueReply(f"334 {base64.b64encode(challenge).decode('ascii')}")


def _path(keyword: bytes, argument: bytes) -> tuple[str, bytes] | None:
    """Return the address between the brackets and what follows them, or None."""
    match = _PATH.match(argument)
    if match is None or not argument.upper().startswith(keyword):
        return None
    try:
        return match[1].decode("utf-8"), match[2] or b""
    except UnicodeDecodeError:
        return None


def _parameters(words: bytes) -> dict[bytes, bytes] | None:
    """Return the parameters of MAIL in upper case, or None if one is not ours to know."""
    parameters = {}
    for word in words.split():
        if not _PARAMETER.fullmatch(word):
            return None
        name, _, value = word.upper().partition(b"=")
        parameters[name] = value
    return parameters


def _fault(transaction: PracticeTransaction, content: bytes) -> str | None:
    """Return the reply to content that breaks the protocol, or None."""
    if not content.count(b"\r\n") == content.count(b"\r") == content.count(b"\n"):
        return "550 5.6.0 A CR or LF stands alone (RFC 5321, 2.3.8)"
    if not (content.isascii() or transaction.is_eight_bit or transaction.smtputf8):
        return "554 5.6.1 8-bit content without BODY=8BITMIME (RFC 6152)"
    return None
