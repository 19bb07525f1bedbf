"""What a strict server answers, without a network."""

import base64
import hmac
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.mail.dsn import DsnRequest, Notify, RecipientRequest, Ret
from relay.practice.account import Counting, PracticeAccount, PracticeBehaviour
from relay.practice.dialogue import MAX_CONTENT_BYTES, MAX_RECIPIENTS, Dialogue
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


def b64(octets: bytes) -> str:
    return base64.b64encode(octets).decode()


def test_what_is_offered() -> None:
    case = Case(is_logged_in=False)

    assert case.said("EHLO client.example").split("\r\n") == [
        "250-practice.invalid",
        "250-PIPELINING",
        f"250-SIZE {MAX_CONTENT_BYTES}",
        "250-8BITMIME",
        "250-SMTPUTF8",
        "250-AUTH PLAIN LOGIN CRAM-MD5",
        "250 ENHANCEDSTATUSCODES",
    ]


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


def test_plain_takes_its_response_at_once_or_when_asked() -> None:
    assert Case().said("RSET") == "250 2.0.0 Ok"
    case = Case(is_logged_in=False)
    assert case.said("EHLO x", "AUTH plain") == "334 "
    assert case.said(PLAIN) == "235 2.7.0 Authentication successful"
    assert case.said(f"AUTH PLAIN {PLAIN}").startswith("503 ")


def test_login_asks_for_the_user_and_for_the_password() -> None:
    for lines in (["AUTH LOGIN", b64(USER.encode())], [f"AUTH LOGIN {b64(USER.encode())}"]):
        case = Case(is_logged_in=False)
        assert case.said("EHLO x", *lines) == f"334 {b64(b'Password:')}"
        assert case.said(b64(PASSWORD.encode())).startswith("235 ")


@pytest.mark.parametrize(("key", "code"), [(PASSWORD, "235"), ("wrong", "535")])
def test_cram_md5_asks_anew_each_time_and_checks_the_digest(key: str, code: str) -> None:
    challenges = set()
    for _ in range(2):
        case = Case(is_logged_in=False)
        challenge = base64.b64decode(case.said("EHLO x", "AUTH CRAM-MD5").removeprefix("334 "))
        challenges.add(challenge)
        digest = hmac.new(key.encode(), challenge, "md5").hexdigest()
        assert case.said(b64(f"{USER} {digest}".encode()))[:3] == code

    assert len(challenges) == 2


@pytest.mark.parametrize(
    ("lines", "reply"),
    [
        (["AUTH PLAIN " + b64(b"\0mjd\0wrong")], "535 5.7.8"),
        (["AUTH PLAIN " + b64(b"\0other\0correct horse")], "535 5.7.8"),
        (["AUTH PLAIN " + b64(b"root\0mjd\0correct horse")], "535 5.7.8"),
        (["AUTH PLAIN " + b64(b"mjd")], "535 5.7.8"),
        (["AUTH PLAIN ="], "535 5.7.8"),
        (["AUTH PLAIN", "*"], "501 5.7.0"),
        (["AUTH PLAIN", "not base64"], "501 5.5.2"),
        (["AUTH LOGIN", b64(b"mjd"), b64(b"wrong")], "535 5.7.8"),
        (["AUTH CRAM-MD5 bWpk"], "501 5.7.0"),
        (["AUTH CRAM-MD5", b64(b"mjd")], "535 5.7.8"),
        (["AUTH GSSAPI"], "504 5.5.4"),
        (["AUTH"], "501 5.5.4"),
        (["HELO x", f"AUTH PLAIN {PLAIN}"], "503 5.5.1"),
    ],
)
def test_whoever_does_not_prove_to_be_the_user_sends_nothing(lines: list[str], reply: str) -> None:
    case = Case(is_logged_in=False)

    assert case.said("EHLO x", *lines).startswith(reply)
    assert case.said("MAIL FROM:<a@b>").startswith("530 5.7.0")
    assert case.said("RCPT TO:<a@b>").startswith("530 5.7.0")
    assert case.said("DATA").startswith("530 5.7.0")


@pytest.mark.parametrize(
    ("lines", "reply"),
    [
        (["EHLO"], "501 "),
        (["FOO"], "500 "),
        (["NOOP\nRSET"], "500 "),
        (["NOOP x"], "250 "),
        (["VRFY x"], "252 "),
        (["STARTTLS"], "502 "),
        (["STARTTLS now"], "501 "),
        (["MAIL FROM:a@b"], "501 "),
        (["MAIL FROM: <a@b>"], "501 "),
        (["MAIL TO:<a@b>"], "501 "),
        ([b"MAIL FROM:<\xff@b> SMTPUTF8"], "501 "),
        (["MAIL FROM:<>"], "250 2.1.0"),
        (['mail from:<"a b>"@c> size=10 body=8bitmime'], "250 2.1.0"),
        (["MAIL FROM:<a@b> AUTH=<>"], "250 2.1.0"),
        (["MAIL FROM:<a@b> RET=HDRS"], "555 "),
        ([f"MAIL FROM:<a@b> SIZE={MAX_CONTENT_BYTES + 1}"], "552 5.3.4"),
        (["MAIL FROM:<ü@b>"], "553 5.6.7"),
        (["MAIL FROM:<ü@b> SMTPUTF8"], "250 2.1.0"),
        (["MAIL FROM:<a@b>", "MAIL FROM:<a@b>"], "503 "),
        (["MAIL FROM:<a@b>", f"AUTH PLAIN {PLAIN}"], "503 "),
        (["RCPT TO:<a@b>"], "503 "),
        (["DATA"], "503 "),
        (["MAIL FROM:<a@b>", "DATA"], "554 "),
        (["MAIL FROM:<a@b>", "DATA now"], "501 "),
        (["MAIL FROM:<a@b>", "RCPT TO:<>"], "501 "),
        (["MAIL FROM:<a@b>", "RCPT TO:<ü@b>"], "553 5.6.7"),
        (["MAIL FROM:<a@b> SMTPUTF8", "RCPT TO:<ü@b>"], "250 2.1.5"),
        (["MAIL FROM:<a@b>", "RCPT TO:<c@d> NOTIFY=NEVER"], "555 "),
        (["MAIL FROM:<a@b>", *["RCPT TO:<c@d>"] * (MAX_RECIPIENTS + 1)], "452 4.5.3"),
        (["MAIL FROM:<a@b>", "RSET", "RCPT TO:<c@d>"], "503 "),
        (["MAIL FROM:<a@b>", "EHLO x", "RCPT TO:<c@d>"], "503 "),
        (["QUIT"], "221 "),
    ],
)
def test_a_command_gets_its_reply(lines: list[str | bytes], reply: str) -> None:
    assert Case().said(*lines).startswith(reply)


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


def test_overlong_content_is_refused() -> None:
    assert Case().settled(b"", is_overlong=True).startswith("552 5.3.4")


def test_content_without_a_transaction_is_nobodys() -> None:
    case = Case()

    assert case.dialogue.settle(b"x\r\n", is_overlong=False).startswith("503 ")
    assert not case.ledger.entries


def test_credentials_are_in_no_output() -> None:
    assert PASSWORD not in repr(Credentials(USER, PASSWORD))


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
