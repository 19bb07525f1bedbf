"""Reports as a sender asked for them: of success, with the whole message, in its own words (RFC 3461)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.mail.dsn import DsnRequest, Ret, encode_xtext
from relay.mail.report import Action, Failure, Reason, ReportedMessage
from tests.unit.mail.test_report import (
    HEADER,
    blocks,
    bounce,
    delay,
    failure,
    fields,
    message,
    parsed,
    parts,
    warning,
    words,
)

WHOLE = HEADER + b"\r\nAll agreed.\r\n"
FULL, HDRS = DsnRequest(Ret.FULL), DsnRequest(Ret.HDRS)


def success(recipient: str = "carol@example.com") -> Failure:
    return replace(
        failure(recipient),
        status="2.0.0",
        action=Action.RELAYED,
        diagnostic="250 2.0.0 Ok: queued as 7",
        reason=Reason.RELAYED,
    )


def asked(dsn: DsnRequest, content: bytes = WHOLE, *, is_whole: bool = True) -> ReportedMessage:
    about = message(header=content)
    return replace(about, envelope=replace(about.envelope, dsn=dsn), is_whole=is_whole)


def test_a_success_is_told_as_relayed_and_never_as_delivered() -> None:
    report = bounce(success())

    assert parsed(report)["Subject"] == "Mail Passed On"
    assert fields(blocks(report)[1]) == {
        "Final-Recipient": "rfc822; carol@example.com",
        "Action": "relayed",
        "Status": "2.0.0",
        "Remote-MTA": "dns; smtp.example.net",
        "Diagnostic-Code": "smtp; 250 2.0.0 Ok: queued as 7",
        "Last-Attempt-Date": "Sun, 01 Mar 2026 16:30:00 +0000",
    }
    assert "NO PROOF OF DELIVERY" in words(report)
    assert b"delivered" not in report.lower()


def test_failures_and_successes_stand_in_one_report() -> None:
    report = bounce(failure(), success())

    assert parsed(report)["Subject"] == "Undelivered Mail Returned to Sender"
    assert [fields(block)["Action"] for block in blocks(report)[1:]] == ["failed", "relayed"]
    assert "Passed on to the next mail server" in words(report)
    assert "Refused by the next mail server" in words(report)


def test_what_was_asked_for_is_told_in_the_senders_words() -> None:
    about = asked(DsnRequest(None, encode_xtext("batch 7+1=8")))
    report = bounce(replace(failure(), orcpt="rfc822;Alice+2BList@example.org"), about=about)
    of_message, of_alice = blocks(report)

    assert next(iter(of_message)) == "Original-Envelope-Id"
    assert fields(of_message)["Original-Envelope-Id"] == "batch 7+1=8"
    assert list(of_alice)[:2] == ["Original-Recipient", "Final-Recipient"]
    assert fields(of_alice)["Original-Recipient"] == "rfc822; Alice+List@example.org"


@pytest.mark.parametrize(
    ("about", "endings"),
    [
        (asked(HDRS), [failure()]),
        (asked(DsnRequest()), [failure()]),
        (asked(FULL, is_whole=False), [failure()]),
        (asked(FULL), [success()]),
    ],
)
def test_else_the_header_returns(about: ReportedMessage, endings: list[Failure]) -> None:
    report = bounce(*endings, about=about)

    assert parts(report)[2].get_content_type() == "text/rfc822-headers"
    assert b"All agreed." not in report
    assert b"All agreed." not in warning(delay(), about=about)


@given(st.binary(max_size=300) | st.just(b"x" * 1200), st.booleans())
def test_any_content_returns_to_the_octet(octets: bytes, is_guessed_at: bool) -> None:
    whole = HEADER + b"\r\n" + octets.replace(b"\r", b"").replace(b"\n", b"\r\n") + b"\r\n"
    about = asked(FULL, whole)
    report = bounce(failure("\u00e9@example.com" if is_guessed_at else "alice@example.com"), about=about)

    if is_guessed_at or b"\0" in octets:
        # Mailman's parser would guess from the text; and few servers take NUL.
        assert report.isascii()
        assert parts(report)[2].get_content_type() == "text/rfc822-headers"
        return
    head, _, returned = report.partition(b"Content-Type: message/rfc822\r\n")
    assert b"\r\n\r\n" + whole + b"\r\n--=_" in b"\r\n" + returned
    is_eight_bit = b"Content-Transfer-Encoding: 8bit\r\n"
    assert (is_eight_bit in head, is_eight_bit in returned) == (not whole.isascii(),) * 2
