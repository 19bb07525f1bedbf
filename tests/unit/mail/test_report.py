"""Reports are read back with the standard library's parser."""

import email
import email.policy
import re
from dataclasses import replace
from datetime import UTC, datetime
from email.message import EmailMessage, Message

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.mail.envelope import Envelope, QueueId
from relay.mail.report import (
    SPELLED_OUT,
    Action,
    Failure,
    Reason,
    ReportedMessage,
    delay_warning,
    final_report,
)

HOST = "relay.example.net"
ARRIVAL = datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC)
LAST = datetime(2026, 3, 1, 16, 30, tzinfo=UTC)
NOW = datetime(2026, 3, 1, 16, 31, tzinfo=UTC)
UNTIL = datetime(2026, 3, 6, 12, 0, 5, tzinfo=UTC)
HEADER = b"From: mjd@example.org\r\nSubject: Minutes\r\n of the meeting\r\nMessage-ID: <1@example.org>\r\n"


def ns(instant: datetime) -> int:
    return int(instant.timestamp()) * SECOND_NS


def message(reverse_path: str = "list-owner@example.org", header: bytes = HEADER) -> ReportedMessage:
    envelope = Envelope(
        reverse_path=reverse_path,
        recipients=("alice@example.com",),
        arrival_at_ns=ns(ARRIVAL),
        client="localhost[127.0.0.1]",
        helo="mail.example.org",
        protocol="ESMTP",
    )
    return ReportedMessage(QueueId("0123456789abcdef"), envelope, header)


def failure(recipient: str = "alice@example.com") -> Failure:
    return Failure(
        recipient=recipient,
        status="5.1.1",
        action=Action.FAILED,
        diagnostic="550 5.1.1 No such user",
        remote="smtp.example.net",
        at_ns=ns(LAST),
        reason=Reason.BOUNCED,
    )


def delay(recipient: str = "alice@example.com") -> Failure:
    return replace(failure(recipient), action=Action.DELAYED, status="4.4.1", diagnostic="connection refused")


def bounce(*failures: Failure, about: ReportedMessage | None = None) -> bytes:
    return final_report(about or message(), failures, hostname=HOST, at_ns=ns(NOW))


def warning(*failures: Failure, about: ReportedMessage | None = None) -> bytes:
    return delay_warning(
        about or message(), failures, hostname=HOST, at_ns=ns(NOW), will_retry_until_ns=ns(UNTIL)
    )


def parsed(content: bytes) -> EmailMessage:
    found = email.message_from_bytes(content, policy=email.policy.default)
    assert isinstance(found, EmailMessage)
    return found


def parts(content: bytes) -> list[EmailMessage]:
    found = parsed(content)
    assert found.get_content_type() == "multipart/report"
    assert found.get_param("report-type") == "delivery-status"
    assert not found.defects
    return [part for part in found.iter_parts() if isinstance(part, EmailMessage)]


def blocks(content: bytes) -> list[Message]:
    part = parts(content)[1]
    assert part.get_content_type() == "message/delivery-status"
    payload = part.get_payload()
    assert isinstance(payload, list)
    return [block for block in payload if isinstance(block, Message)]


def fields(block: Message) -> dict[str, str]:
    return {name: " ".join(value.split()) for name, value in block.items()}


def words(content: bytes) -> str:
    return str(parts(content)[0].get_content())


def returned(content: bytes) -> bytes:
    part = parts(content)[2]
    assert part.get_content_type() == "text/rfc822-headers"
    payload = part.get_payload(decode=True)
    assert isinstance(payload, bytes)
    return payload


def test_a_failure_report_states_every_field() -> None:
    of_message, of_alice, of_bob = blocks(bounce(failure(), replace(failure("bob@example.com"), remote=None)))

    assert fields(of_message) == {
        "Reporting-MTA": f"dns; {HOST}",
        "X-relay-Queue-ID": "0123456789abcdef",
        "X-relay-Sender": "rfc822; list-owner@example.org",
        "Arrival-Date": "Sun, 01 Mar 2026 12:00:05 +0000",
    }
    of_both = {
        "Action": "failed",
        "Status": "5.1.1",
        "Diagnostic-Code": "smtp; 550 5.1.1 No such user",
        "Last-Attempt-Date": "Sun, 01 Mar 2026 16:30:00 +0000",
    }
    alice = {"Final-Recipient": "rfc822; alice@example.com", "Remote-MTA": "dns; smtp.example.net"}
    assert fields(of_alice) == of_both | alice
    assert fields(of_bob) == of_both | {"Final-Recipient": "rfc822; bob@example.com"}


def test_a_delay_warning_says_until_when_it_is_tried() -> None:
    content = warning(delay())

    found = parsed(content)
    assert found["Subject"] == "Delayed Mail (still being retried)"
    assert found["Message-ID"] == f"<0123456789abcdefw@{HOST}>"
    assert fields(blocks(content)[1]) == {
        "Final-Recipient": "rfc822; alice@example.com",
        "Action": "delayed",
        "Status": "4.4.1",
        "Remote-MTA": "dns; smtp.example.net",
        "Diagnostic-Code": "X-relay; connection refused",
        "Last-Attempt-Date": "Sun, 01 Mar 2026 16:30:00 +0000",
        "Will-Retry-Until": "Fri, 06 Mar 2026 12:00:05 +0000",
    }
    assert "WARNING ONLY" in words(content)
    assert "Fri, 06 Mar 2026 12:00:05 +0000" in words(content)


def test_the_part_for_people_tells_refused_expired_and_removed_apart() -> None:
    content = bounce(
        failure("refused@example.com"),
        replace(failure("late@example.com"), reason=Reason.EXPIRED, diagnostic="451 4.3.0 Try later"),
        replace(failure("gone@example.com"), reason=Reason.OPERATOR, diagnostic=None, remote=None),
    )

    text = words(content)
    order = [
        *("Refused by the next mail server:", "<refused@example.com>", "550 5.1.1 No such user"),
        *("(upstream: smtp.example.net)", "Not passed on within the time allowed", "<late@example.com>"),
        *("451 4.3.0 Try later", "Removed from the queue by an operator", "<gone@example.com>"),
    ]
    assert [text.find(line) for line in order] == sorted(text.find(line) for line in order)
    assert all(line in text for line in order)
    assert text.count("upstream:") == 2


def test_the_original_header_is_returned_and_no_more() -> None:
    assert returned(bounce(failure())) == HEADER
    assert returned(bounce(failure(), about=message(header=HEADER + b"\r\nsecret\r\n"))) == HEADER
    assert returned(bounce(failure(), about=message(header=b"\r\nsecret\r\n"))) == b""
    assert returned(bounce(failure(), about=message(header=b""))) == b""


@pytest.mark.parametrize(
    "header",
    [
        "Subject: Grüße\r\n".encode(),
        "Subject: Grüße\r\n".encode("latin-1"),
        b"Subject: \0 nul\r\n",
        b"Subject: bare\nLF and\rCR \r\n",
        b"Subject: trailing space \x80 \r\n.\r\n",
        b"X: " + b"y" * 2000 + b"\r\n",
    ],
)
def test_an_unusual_original_header_is_quoted_and_read_back_unchanged(header: bytes) -> None:
    content = bounce(failure(), about=message(header=header))

    assert content.isascii()
    assert returned(content) == header


def test_a_non_ascii_recipient_is_named_for_machines_and_people() -> None:
    content = bounce(failure("jürgen+x@bücher.example"))

    assert content.isascii()
    assert fields(blocks(content)[1])["Final-Recipient"] == (
        "utf-8; j\\x{FC}rgen\\x{2B}x@b\\x{FC}cher.example"
    )
    assert "<jürgen+x@bücher.example>" in words(content)


def test_only_the_address_of_a_non_ascii_sender_is_not_7_bit() -> None:
    content = bounce(failure(), about=message("jürgen@bücher.example"))

    lines = [line for line in content.split(b"\r\n") if not line.isascii()]
    assert lines == ["To: <jürgen@bücher.example>".encode()]
    assert fields(blocks(content)[0])["X-relay-Sender"] == "utf-8; j\\x{FC}rgen@b\\x{FC}cher.example"


def test_a_header_that_quotes_a_boundary_cannot_end_a_part() -> None:
    first = bounce(failure())
    boundary = parsed(first).get_boundary()
    assert boundary is not None

    content = bounce(failure(), about=message(header=f"X: y\r\n--{boundary}--\r\n".encode()))

    assert len(parts(content)) == 3
    assert parsed(content).get_boundary() != boundary


def test_ten_thousand_failures_make_one_report_that_names_them_all() -> None:
    failures = [failure(f"user{n}@example.com") for n in range(10_000)]

    content = bounce(*failures)

    named = re.findall(rb"^Final-Recipient: rfc822; (\S+)\r$", content, re.MULTILINE)
    assert [n.decode() for n in named] == [f.recipient for f in failures]
    assert f"And {10_000 - SPELLED_OUT} more" in words(content)


HOSTILE = st.one_of(
    st.text(max_size=60),
    st.text(alphabet='ab@\r\n \t\0\x85\u2028\u202e:;<>"=-\\ü', max_size=60),
    st.sampled_from(
        [
            "x\r\nBcc: victim@example.org",
            "x\r\n\r\n--boundary",
            "a" * 3000,
            "ü" * 3000,
            "word " * 600,
            "550 " + "y" * 1999,
            "\ud800@example.org",
        ]
    ),
)
HOSTILE_FAILURE = st.builds(
    Failure,
    recipient=HOSTILE,
    status=HOSTILE,
    action=st.sampled_from(Action),
    diagnostic=st.none() | HOSTILE,
    remote=st.none() | HOSTILE,
    at_ns=st.integers(),
    reason=st.sampled_from(Reason),
)
HOSTILE_HEADER = st.one_of(
    st.binary(max_size=400),
    st.lists(
        st.sampled_from([b"\r\n", b"\r", b"\n", b"--", b"Subject: x", b"\0", b"\xff", b" ", b"." * 1200]),
        max_size=20,
    ).map(b"".join),
)


@given(
    reverse_path=HOSTILE.filter(bool),
    header=HOSTILE_HEADER,
    failures=st.lists(HOSTILE_FAILURE, min_size=1, max_size=4),
    hostname=HOSTILE,
    is_warning=st.booleans(),
)
@example(
    reverse_path="a@b",
    header=b"",
    failures=[failure("x\nFinal-Recipient: rfc822; y")],
    hostname=HOST,
    is_warning=False,
)
def test_nothing_from_outside_breaks_a_report(
    reverse_path: str, header: bytes, failures: list[Failure], hostname: str, *, is_warning: bool
) -> None:
    about = message(reverse_path, header)
    if is_warning:
        content = delay_warning(about, failures, hostname=hostname, at_ns=ns(NOW), will_retry_until_ns=0)
    else:
        content = final_report(about, failures, hostname=hostname, at_ns=ns(NOW))

    assert content.endswith(b"\r\n")
    lines = content.split(b"\r\n")
    assert max(map(len, lines)) <= 998
    assert not any(b"\r" in line or b"\n" in line or b"\0" in line for line in lines)
    beyond_ascii = [line for line in lines if not line.isascii()]
    assert all(line.startswith(b"To: ") for line in beyond_ascii)
    assert len(beyond_ascii) <= (not reverse_path.isascii())
    # compat32 parses structure only; what is inside a hostile address is not the structure.
    found = email.message_from_bytes(content)
    assert found.get_content_type() == "multipart/report"
    assert found.keys() == [
        *("From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted", "MIME-Version", "Content-Type")
    ]
    payload = found.get_payload()
    assert isinstance(payload, list)
    kinds = [part.get_content_type() for part in payload if isinstance(part, Message)]
    assert kinds == ["text/plain", "message/delivery-status", "text/rfc822-headers"]
    of_message, *of_recipients = blocks(content)
    assert set(of_message.keys()) == {"Reporting-MTA", "X-relay-Queue-ID", "X-relay-Sender", "Arrival-Date"}
    assert [block["Action"] for block in of_recipients] == [f.action.value for f in failures]
    assert all(block.get_all("Final-Recipient", []) for block in of_recipients)
    assert not any(block.defects for block in [of_message, *of_recipients])


@pytest.mark.parametrize(
    ("remote", "literal"),
    [("192.0.2.7", "dns; [192.0.2.7]"), ("2001:db8::7", "dns; [IPv6:2001:db8::7]")],
)
def test_an_upstream_that_has_no_name_is_told_as_an_address_literal(remote: str, literal: str) -> None:
    assert fields(blocks(bounce(replace(failure(), remote=remote)))[1])["Remote-MTA"] == literal
