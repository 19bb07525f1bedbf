"""What one client says to the practice smarthost, and what the account makes of it.  Pure.

Strict (`ServerTerms.is_strict`), and besides: 8-bit content needs BODY=8BITMIME, no CR or LF
stands alone, mail needs AUTH.  A client that passes here passes elsewhere.
Does not: find lines or the end of content (`conversation`), or decide whether a message
is within the limit (`account`).
"""

import secrets
from collections.abc import Callable

from relay.practice.account import PracticeAccount, PracticeTransaction
from relay.smtp import replies
from relay.smtp.commands import has_control
from relay.smtp.sasl import EXCHANGES, TOKEN_EXCHANGES, BearerToken, Credentials, PasswordCheck, Proof
from relay.smtp.session_machine import (
    MailTransaction,
    ServerTerms,
    SessionMachine,
    SessionState,
    SessionStep,
    Then,
)

HOSTNAME = "practice.invalid"
"""RFC 6761, 6.4: a name that exists nowhere, since this host needs none."""
MAX_CONTENT_BYTES = 64 * 1024 * 1024
MAX_RECIPIENTS = 1000

_BARE = "550 5.6.0 A CR or LF stands alone (RFC 5321, 2.3.8)"
_EIGHT_BIT = "554 5.6.1 8-bit content without BODY=8BITMIME (RFC 6152)"


TokenCheck = Callable[[BearerToken], bool]
"""Whether an access token is good now, for the user that it came with."""


class Dialogue:
    """One session, the `SessionOwner` of its machine."""

    def __init__(
        self,
        account: PracticeAccount,
        credentials: Credentials,
        *,
        client: str,
        has_tls: bool,
        is_token: TokenCheck | None = None,
    ) -> None:
        """With `is_token` an access token logs in, too."""
        terms = ServerTerms(
            HOSTNAME,
            MAX_CONTENT_BYTES,
            MAX_RECIPIENTS,
            mechanisms=(*EXCHANGES, *(() if is_token is None else TOKEN_EXCHANGES)),
            has_starttls=has_tls,
            is_strict=True,
            nonce=lambda: f"{secrets.token_hex(16)}@{HOSTNAME}",
            has_dsn=account.offers_dsn,
        )
        self._account = account
        self._credentials = credentials
        self._is_token = is_token
        self._client = client
        self._machine = SessionMachine(terms, self, is_trusted=False, is_private=not has_tls, is_tls=False)
        self._transaction: PracticeTransaction | None = None

    def answer(self, line: bytes) -> SessionStep:
        """Take a line without its CRLF; never return a VERIFY."""
        machine = self._machine
        if has_control(line):
            return SessionStep(replies.BAD_LINE_END)
        step = machine.respond(line) if machine.state is SessionState.EXCHANGE else machine.take(line)
        if step.then is Then.VERIFY and step.proof is not None:
            is_right = self._is_proven_by(step.proof)
            step = machine.judged(PasswordCheck.RIGHT if is_right else PasswordCheck.WRONG)
        if machine.transaction is not (self._transaction and self._transaction.said):
            self.abandon()
            self._begin(machine.transaction)
        return step

    def _is_proven_by(self, proof: Proof) -> bool:
        if isinstance(proof, BearerToken):
            return self._is_token is not None and self._is_token(proof)
        return self._credentials.are_proven_by(proof)

    def secured(self) -> None:
        self._machine.secured()

    def dot(self) -> None:
        """Note the instant at which the final dot arrived."""
        if self._transaction is not None:
            self._transaction.dot_at_ns = self._account.now_ns()

    def settle(self, content: bytes, *, is_overlong: bool) -> str:
        """Decide now; the transaction is over."""
        transaction, self._transaction = self._transaction, None
        self._machine.go_on()
        if transaction is None:
            return replies.NEEDS_MAIL
        fault = replies.TOO_BIG if is_overlong else _fault(transaction.said, content)
        return self._account.settle(transaction, content, fault)

    def abandon(self) -> None:
        """Drop a transaction, if any: by RSET, by a new EHLO, or with the connection."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            self._account.abandon(transaction)

    # Asked by the machine.

    def sender_refusal(self, reverse_path: str, size_bytes: int) -> str | None:  # noqa: ARG002 - any that fits
        return None

    def recipient_refusal(self, recipient: str) -> str | None:
        return self._account.why_refused(recipient)

    def _begin(self, said: MailTransaction | None) -> None:
        if said is None:
            return
        self._transaction = PracticeTransaction(
            said,
            mail_at_ns=self._account.now_ns(),
            client=self._client,
            helo=self._machine.helo or "",
            protocol=self._machine.protocol,
            user=self._credentials.name,
        )


def _fault(said: MailTransaction, content: bytes) -> str | None:
    if not content.count(b"\r\n") == content.count(b"\r") == content.count(b"\n"):
        return _BARE
    if not (content.isascii() or said.eight_bit or said.smtputf8):
        return _EIGHT_BIT
    return None
