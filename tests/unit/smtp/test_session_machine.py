"""The server's side of a session: every command in every state, and who may relay."""

import itertools
from base64 import b64encode

import pytest

from relay.mail.dsn import DsnRequest, Notify, RecipientRequest, Ret
from relay.smtp import replies
from relay.smtp.sasl import Credentials, PasswordCheck
from relay.smtp.session_machine import ServerTerms, SessionMachine, SessionState

GREETED, READY, SENDER, RECIPIENTS, EXCHANGE, VERIFYING, SECURING, CONTENT, OVER = SessionState
MECHANISMS = ("PLAIN", "LOGIN")
GOOD = b64encode(b"\0mjd\0open sesame")
TAKING = (GREETED, READY, SENDER, RECIPIENTS)
"""The states that take commands."""
PREFIXES: dict[SessionState, tuple[bytes, ...]] = {
    GREETED: (),
    READY: (b"EHLO x",),
    SENDER: (b"EHLO x", b"MAIL FROM:<a@b>"),
    RECIPIENTS: (b"EHLO x", b"MAIL FROM:<a@b>", b"RCPT TO:<c@d>"),
    VERIFYING: (b"EHLO x", b"AUTH PLAIN " + GOOD),
}
OFFERED = (
    "250-relay.example\r\n250-PIPELINING\r\n250-SIZE 1000\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n"
    "250-STARTTLS\r\n250-AUTH PLAIN LOGIN\r\n250-ENHANCEDSTATUSCODES\r\n250 DSN"
)
USERNAME = "334 VXNlcm5hbWU6"
NEEDS_MAIL, NESTED, IN_TRANSACTION = replies.NEEDS_MAIL, replies.NESTED_MAIL, replies.AUTH_IN_TRANSACTION
EXPECTED: dict[bytes, tuple[tuple[SessionState, ...], str | tuple[str, ...]]] = {
    b"HELO y": ((READY,) * 4, "250 relay.example"),
    b"EHLO y": ((READY,) * 4, OFFERED),
    b"STARTTLS": ((SECURING,) * 4, replies.TLS_READY),
    b"AUTH LOGIN": (
        (GREETED, EXCHANGE, SENDER, RECIPIENTS),
        (replies.NEEDS_EHLO, USERNAME, IN_TRANSACTION, IN_TRANSACTION),
    ),
    b"MAIL FROM:<e@f>": (
        (GREETED, SENDER, SENDER, RECIPIENTS),
        (replies.NEEDS_HELO, replies.SENDER_OK, NESTED, NESTED),
    ),
    b"RCPT TO:<g@h>": (
        (GREETED, READY, RECIPIENTS, RECIPIENTS),
        (NEEDS_MAIL, NEEDS_MAIL, replies.RECIPIENT_OK, replies.RECIPIENT_OK),
    ),
    b"DATA": (
        (GREETED, READY, SENDER, CONTENT),
        (NEEDS_MAIL, NEEDS_MAIL, replies.NEEDS_RECIPIENT, replies.GO_AHEAD),
    ),
    b"RSET": ((GREETED, READY, READY, READY), replies.OK),
    b"NOOP": (TAKING, replies.OK),
    b"HELP": (TAKING, replies.HELP),
    b"VRFY": (TAKING, replies.CANNOT_VERIFY),
    b"EXPN": (TAKING, replies.NOT_IMPLEMENTED),
    b"QUIT": ((OVER,) * 4, replies.BYE),
}
"""For each command in GREETED, READY, SENDER and RECIPIENTS: the next state, and the reply."""


class Owner:
    """Refuses nobody."""

    def sender_refusal(self, reverse_path: str, size_bytes: int) -> str | None:
        assert size_bytes <= 1000
        assert reverse_path in ("", "a@b", "e@f")
        return None


def machine(
    state: SessionState = GREETED,
    *,
    mechanisms: tuple[str, ...] = MECHANISMS,
    has_starttls: bool = True,
    is_trusted: bool = True,
    is_private: bool = True,
    is_tls: bool = False,
) -> SessionMachine:
    terms = ServerTerms("relay.example", 1000, 3, mechanisms, has_starttls=has_starttls)
    made = SessionMachine(terms, Owner(), is_trusted=is_trusted, is_private=is_private, is_tls=is_tls)
    for line in PREFIXES[state]:
        made.take(line)
    assert made.state is state
    return made


def snapshot(of: SessionMachine) -> tuple[object, ...]:
    transaction = of.transaction
    recipients = None if transaction is None else transaction.recipients
    return of.state, of.helo, of.user, of.is_tls, transaction, recipients, of.is_extended


@pytest.mark.parametrize(("line", "state"), list(itertools.product(EXPECTED, TAKING)))
def test_each_command_has_its_reply_and_its_next_state(line: bytes, state: SessionState) -> None:
    session = machine(state)
    before = snapshot(session)
    states, told = EXPECTED[line]
    after, reply = states[state], told if isinstance(told, str) else told[state]

    assert session.take(line) == reply
    assert session.state is after
    assert session.reason == ("quit" if after is OVER else "")
    assert session.phase == line.split()[0].decode().lower()
    assert (session.transaction is not None) == (
        after in (SENDER, RECIPIENTS, CONTENT) or (after is SECURING and state in (SENDER, RECIPIENTS))
    )
    if reply[0] in "45":
        assert snapshot(session) == before


MAIL_REFUSED = {
    b"MAIL": "501 5.5.4",
    b"MAIL TO:<a@b>": "501 5.5.4",
    b"MAIL FROM:<a>": "501 5.1.7",
    b"MAIL FROM:<a@b>x": "501 5.5.4",
    "MAIL FROM:<é@b>".encode(): "553 5.6.7",
    b"MAIL FROM:<a@b> BODY": "501 5.5.4",
    b"MAIL FROM:<a@b> BODY=9BIT": "501 5.5.4",
    b"MAIL FROM:<a@b> SIZE=x": "501 5.5.4",
    b"MAIL FROM:<a@b> SIZE=1001": "552 5.3.4",
    b"MAIL FROM:<a@b> SMTPUTF8=1": "501 5.5.4",
    b"MAIL FROM:<a@b> RET": "501 5.5.4",
    b"MAIL FROM:<a@b> ENVID=+": "501 5.5.4",
    b"MAIL FROM:<a@b> X=Y": "555 5.5.4",
}


@pytest.mark.parametrize(
    "line",
    [
        *(b"HELO", b"EHLO", b"STARTTLS x", b"AUTH", b"AUTH GSSAPI", b"AUTH PLAIN ?", b"RCPT", b"RCPT TO:<>"),
        *(b"RCPT TO:<a@b> X=Y", b"DATA x", b"RSET x", b"QUIT x", b"BDAT 1", b"", b"\xff", *MAIL_REFUSED),
    ],
)
def test_a_refused_line_changes_nothing_and_the_reply_says_why(line: bytes) -> None:
    for state in TAKING:
        session = machine(state)
        before = snapshot(session)

        assert session.take(line).startswith(MAIL_REFUSED.get(line, "5") if state is READY else "5")
        assert snapshot(session) == before


@pytest.mark.parametrize(
    ("is_trusted", "has_users", "has_starttls", "is_private", "is_tls"),
    list(itertools.product([False, True], repeat=5)),
)
@pytest.mark.parametrize("line", [b"MAIL FROM:<a@b>", b"RCPT TO:<a@b>"])
def test_only_a_trusted_client_may_relay_without_a_login(
    line: bytes, *, is_trusted: bool, has_users: bool, has_starttls: bool, is_private: bool, is_tls: bool
) -> None:
    session = machine(
        mechanisms=MECHANISMS if has_users else (),
        has_starttls=has_starttls,
        is_trusted=is_trusted,
        is_private=is_private,
        is_tls=is_tls,
    )
    session.take(b"EHLO x")
    told = session.take(line)

    if is_trusted:
        assert told == (replies.SENDER_OK if line.startswith(b"MAIL") else replies.NEEDS_MAIL)
    elif has_users and (is_private or is_tls):
        assert told == replies.NEEDS_AUTH
    elif has_users and has_starttls:
        assert told == replies.NEEDS_TLS_THEN_AUTH
    else:
        assert told == replies.NOT_A_CLIENT


def test_a_client_that_logged_in_may_relay_until_tls_begins() -> None:
    session = machine(VERIFYING, is_trusted=False)
    assert session.proof == Credentials("mjd", "open sesame")
    assert session.judged(PasswordCheck.RIGHT) == replies.AUTHENTICATED
    assert session.user == "mjd"
    assert session.take(b"AUTH LOGIN") == replies.AUTH_TWICE
    assert session.take(b"MAIL FROM:<a@b>") == replies.SENDER_OK
    assert session.protocol == "ESMTPA"
    session.take(b"RCPT TO:<c@d>")
    session.take(b"STARTTLS")
    session.secured()

    assert snapshot(session) == (GREETED, None, None, True, None, None, False)
    assert session.take(b"MAIL FROM:<a@b>") == replies.NEEDS_AUTH
    assert session.take(b"AUTH LOGIN") == replies.NEEDS_EHLO


def test_a_repeated_recipient_counts_once_with_its_last_parameters_and_too_many_get_452() -> None:
    session = machine(READY)
    lines = [
        b"MAIL FROM:<a@b> RET=HDRS ENVID=x+2By",
        b"RCPT TO:<1@b> NOTIFY=SUCCESS",
        b"RCPT TO:<2@b>",
        b"RCPT TO:<1@b> NOTIFY=DELAY ORCPT=rfc822;c@d",
        b"RCPT TO:<3@b>",
        b"RCPT TO:<4@b>",
        b"RCPT TO:<3@b>",
    ]
    told = [session.take(line)[:3] for line in lines]

    assert told == ["250", "250", "250", "250", "250", "452", "250"]
    assert session.transaction is not None
    assert session.transaction.recipients == ("1@b", "2@b", "3@b")
    last = RecipientRequest(Notify.DELAY, "rfc822;c@d")
    none = RecipientRequest()
    assert session.transaction.dsn == DsnRequest(Ret.HDRS, "x+2By", (last, none, none))
