"""Any lines and events at the machine of a session: replies, and never a transaction of who may not."""

import re

from relay.smtp.sasl import PasswordCheck
from relay.smtp.session_machine import ServerTerms, SessionMachine, SessionState, SessionStep, Then
from tests.proofs.fuzz.choices import Choices
from tests.proofs.fuzz.work import bounded

TOKENS = [
    b"EHLO x", b"HELO x", b"NOOP", b"RSET", b"QUIT", b"DATA", b"HELP", b"VRFY x", b"EXPN x", b"STARTTLS",
    b"MAIL FROM:<a@b>", b"MAIL FROM:<> SIZE=9 BODY=8BITMIME", b"MAIL FROM:<a@b> SMTPUTF8", b"RCPT TO:<c@d>",
    b"RCPT TO:<\xc3\xa9@d>", b"RCPT TO: c@d", b"MAIL FROM:<a@b> RET=FULL ENVID=x",
    b"RCPT TO:<c@d> NOTIFY=NEVER ORCPT=rfc822;x", b"AUTH PLAIN", b"AUTH PLAIN AGEAYg==", b"AUTH LOGIN",
    b"AUTH LOGIN YQ==", b"AUTH CRAM-MD5", b"AGEAYg==", b"YQ==", b"*", b"=", b"\xff", b" ", b"\t", b"GET /",
]  # fmt: skip
DUE = [b"EHLO x", b"MAIL FROM:<a@b>", b"RCPT TO:<c@d>", b"DATA"]
_REPLY = re.compile(r"(?:[2-5][0-9][0-9]-[ -~]*\r\n)*[2-5][0-9][0-9] [ -~]*\Z")
_IN_MAIL = (SessionState.SENDER, SessionState.RECIPIENTS)


class _Owner:
    """Refuses now and then."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices

    def _refusal(self) -> str | None:
        return "450 4.0.0 Not now" if self._choices.number(8) == 7 else None

    def sender_refusal(self, reverse_path: str, size_bytes: int) -> str | None:
        assert size_bytes <= 5000
        assert not {"\r", "\n", "\0"} & set(reverse_path)
        return self._refusal()

    def recipient_refusal(self, recipient: str) -> str | None:
        assert "@" in recipient
        return self._refusal()


def target(raw: bytes) -> None:
    choices = Choices(raw)
    mechanisms = choices.pick([(), ("PLAIN", "LOGIN"), ("PLAIN", "LOGIN", "CRAM-MD5")])
    terms = ServerTerms(
        "h.example",
        5000,
        3,
        mechanisms,
        has_starttls=choices.yes(),
        is_strict=choices.yes(),
        nonce=lambda: "n",
    )
    is_trusted = choices.yes()
    session = SessionMachine(
        terms, _Owner(choices), is_trusted=is_trusted, is_private=choices.yes(), is_tls=choices.yes()
    )
    for number in range(choices.number(40)):
        with bounded(3_000):
            step = _told(session, choices, DUE[number % len(DUE)])
        _check(session, step, is_trusted=is_trusted)
        if step.then is Then.END:
            assert session.state is SessionState.OVER
            return
        _carry_out(session, step, choices)
        assert (session.state in _IN_MAIL) == (session.transaction is not None)


def _told(session: SessionMachine, choices: Choices, due: bytes) -> SessionStep:
    """Say what is due, another line or any octets, and have a proof judged by chance."""
    match choices.number(8):
        case 7:
            line = choices.octets()
        case 6:
            line = choices.spoiled(choices.pick(TOKENS), TOKENS)
        case 4 | 5:
            line = choices.pick(TOKENS)
        case _:
            line = due
    before, had = session.state, session.transaction
    step = session.respond(line) if before is SessionState.EXCHANGE else session.take(line)
    if step.then is Then.VERIFY:
        assert step.proof is not None
        return session.judged(choices.pick(list(PasswordCheck)))
    if step.reply[0] in "45" and step.then is Then.COMMAND and before is not SessionState.EXCHANGE:
        assert (session.state, session.transaction) == (before, had), "a refused command changes nothing"
    return step


def _check(session: SessionMachine, step: SessionStep, *, is_trusted: bool) -> None:
    assert _REPLY.fullmatch(step.reply), step.reply
    assert session.transaction is None or is_trusted or session.user is not None
    if step.then is Then.CONTENT:
        assert session.transaction is not None
        assert 1 <= len(session.transaction.recipients) <= 3
        assert session.helo is not None


def _carry_out(session: SessionMachine, step: SessionStep, choices: Choices) -> None:
    match step.then:
        case Then.TLS if choices.yes():
            session.go_on()
        case Then.TLS:
            session.secured()
            assert (session.helo, session.user, session.transaction) == (None, None, None)
        case Then.CONTENT:
            session.go_on()
        case Then.RESPONSE if choices.number(8) == 7:
            session.go_on()  # the line could not be read


SEEDS = [
    b"\0\1\0\1\0\0\x14",  # a client that may relay, five messages
    b"\2\1\0\0\1\0\x14" + b"\0\0" + b"\4\x11\0" * 6,  # a stranger that logs in
    b"\2\1\1\0\0\0\x14" + b"\4\x09" + b"\0\0" + b"\4\x15",  # STARTTLS at a strict server
]
