"""What a strict server answers, without a network."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.mail.dsn import DsnRequest, Notify, RecipientRequest, Ret
from relay.practice.account import Counting, PracticeAccount, PracticeBehaviour
from relay.practice.dialogue import Dialogue
from relay.smtp.sasl import Credentials
from relay.smtp.session_machine import Then
from tests.unit.practice.tools import PASSWORD, PLAIN, USER, HandClock, limit


class Case:
    """A dialogue and the ledger behind it."""

    def __init__(self, *, has_tls: bool = False, is_logged_in: bool = True, offers_dsn: bool = False) -> None:
        behaviour = PracticeBehaviour(limit("messages", 1000), 1, Counting.AT_MAIL, offers_dsn=offers_dsn)
        account = PracticeAccount(behaviour, random.Random(1), HandClock())
        self.ledger = account.ledger
        credentials = Credentials(USER, PASSWORD)
        self.dialogue = Dialogue(account, credentials, client="unknown[127.0.0.1]", has_tls=has_tls)
        if is_logged_in:
            self.said("EHLO client.example", f"AUTH PLAIN {PLAIN}")

    def said(self, *lines: str | bytes) -> str:
        """Return the reply to the last line."""
        answers = [self.dialogue.answer(line if isinstance(line, bytes) else line.encode()) for line in lines]
        return answers[-1].reply

    def settled(self, content: bytes, mail: str = "MAIL FROM:<a@b>", *, is_overlong: bool = False) -> str:
        assert self.said(mail, "RCPT TO:<c@d>", "DATA").startswith("354 ")
        self.dialogue.dot()
        return self.dialogue.settle(content, is_overlong=is_overlong)


def test_dsn_is_taken_and_written_down_where_it_is_offered() -> None:
    case = Case(offers_dsn=True)
    assert case.said("EHLO client.example").endswith("250 DSN")
    assert case.said("MAIL FROM:<a@b> RET=HDRS ENVID=x", "RCPT TO:<c@d> NOTIFY=NEVER", "DATA").startswith(
        "354 "
    )
    case.dialogue.dot()
    case.dialogue.settle(b"Subject: x\r\n\r\n", is_overlong=False)

    (seen,) = case.ledger.entries
    assert seen.envelope.dsn == DsnRequest(Ret.HDRS, "x", (RecipientRequest(Notify.NEVER),))


def test_with_tls_nothing_goes_without_it_or_was_said_before_it() -> None:
    case = Case(has_tls=True, is_logged_in=False)

    offered = case.said("EHLO client.example")
    assert "250-STARTTLS" in offered
    assert "AUTH" not in offered
    assert case.said(f"AUTH PLAIN {PLAIN}").startswith("530 5.7.0 Must issue")
    assert case.said("MAIL FROM:<a@b>").startswith("530 5.7.0 Must issue")
    assert case.dialogue.answer(b"STARTTLS").then is Then.TLS
    case.dialogue.secured()
    assert case.said(f"AUTH PLAIN {PLAIN}").startswith("503 ")
    offered = case.said("EHLO client.example")
    assert "250-AUTH PLAIN LOGIN CRAM-MD5" in offered
    assert "STARTTLS" not in offered
    assert case.said(f"AUTH PLAIN {PLAIN}").startswith("235 ")
    assert case.said("STARTTLS").startswith("503 ")
    assert case.settled(b"").startswith("250 ")
    assert case.ledger.entries[0].envelope.protocol == "ESMTPSA"


@pytest.mark.parametrize("end", ["RSET", "EHLO x", "QUIT"])
def test_a_transaction_that_the_client_drops_is_abandoned_once(end: str) -> None:
    case = Case()
    case.said("MAIL FROM:<a@b>", end)
    case.dialogue.abandon()

    assert case.ledger.abandoned == 1


@pytest.mark.parametrize(
    ("content", "mail", "reply"),
    [
        (b"A: b\r\n\r\nc\r\n", "MAIL FROM:<a@b>", "250 2.0.0"),
        (b"bare\nLF\r\n", "MAIL FROM:<a@b>", "550 5.6.0"),
        (b"bare\rCR\r\n", "MAIL FROM:<a@b>", "550 5.6.0"),
        (b"\n\r\r\n", "MAIL FROM:<a@b>", "550 5.6.0"),
        (b"\xfc\r\n", "MAIL FROM:<a@b>", "554 5.6.1"),
        (b"\xfc\r\n", "MAIL FROM:<a@b> BODY=7BIT", "554 5.6.1"),
        (b"\xfc\r\n", "MAIL FROM:<a@b> BODY=8BITMIME", "250 2.0.0"),
        (b"\xc3\xbc\r\n", "MAIL FROM:<a@b> SMTPUTF8", "250 2.0.0"),
    ],
)
def test_content_must_keep_what_mail_promised(content: bytes, mail: str, reply: str) -> None:
    assert Case().settled(content, mail).startswith(reply)


LINES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [
            *(b"EHLO x", b"HELO x", b"STARTTLS", b"AUTH LOGIN", b"AUTH CRAM-MD5", b"AUTH PLAIN", b"*"),
            *(f"AUTH PLAIN {PLAIN}".encode(), PLAIN.encode(), b"MAIL FROM:<a@b>", b"MAIL FROM:<>"),
            *(b"RCPT TO:<c@d>", b"RCPT TO:<>", b"DATA", b"RSET", b"NOOP", b"QUIT", b"AUTH PLAIN =", b""),
        ]
    ),
)


@given(lines=st.lists(LINES, max_size=30), has_tls=st.booleans())
def test_any_line_gets_one_reply_and_no_mail_goes_without_auth(lines: list[bytes], *, has_tls: bool) -> None:
    case = Case(has_tls=has_tls, is_logged_in=False)
    is_authenticated = False
    for line in lines:
        answer = case.dialogue.answer(line)
        codes = [part[:4] for part in answer.reply.split("\r\n")]

        assert answer.reply.isascii()
        assert all(re.fullmatch(r"[2-5][0-9][0-9][ -]", code) for code in codes)
        assert [code[3] for code in codes] == ["-"] * (len(codes) - 1) + [" "]
        is_authenticated = is_authenticated or answer.reply.startswith("235 ")
        if answer.then is Then.END:
            case, is_authenticated = Case(has_tls=has_tls, is_logged_in=False), False
        if answer.then is Then.TLS:
            case.dialogue.secured()
        if answer.then is Then.CONTENT:
            assert is_authenticated
            case.dialogue.dot()
            assert case.dialogue.settle(b"", is_overlong=False).startswith("250 ")
