"""Reports are read back with the standard library's parser, and with Mailman's bounce detector."""

import email
import email.policy
from dataclasses import replace
from email.message import EmailMessage, Message
from typing import Any, NamedTuple

import pytest
from flufl.bounce import all_failures, scan_message
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.mail.dsn import NO_REQUEST, NOTHING_ASKED, DsnRequest, Note, RecipientRequest, Ret, encode_xtext
from relay.mail.envelope import Envelope, QueueId
from relay.mail.report import Reason, report

ARRIVAL_NS = 1_772_366_405 * SECOND_NS
LAST_NS = ARRIVAL_NS + 16_200 * SECOND_NS
UNTIL_NS = ARRIVAL_NS + 432_000 * SECOND_NS
ARRIVAL, LAST, UNTIL = (
    *("Sun, 01 Mar 2026 12:00:05 +0000", "Sun, 01 Mar 2026 16:30:05 +0000"),
    "Fri, 06 Mar 2026 12:00:05 +0000",
)
HEADER = b"From: mjd@example.org\r\nSubject: Minutes\r\n of the meeting\r\nMessage-ID: <1@example.org>\r\n"
WHOLE = HEADER + b"\r\nAll agreed.\r\n"
FULL = DsnRequest(Ret.FULL)


Ended = tuple[str, Note]
"""The address of a recipient, and what became of it."""


class Reported(NamedTuple):
    envelope: Envelope
    content: bytes
    is_whole: bool


def message(
    reverse_path: str = "list-owner@example.org",
    content: bytes = WHOLE,
    dsn: DsnRequest = NOTHING_ASKED,
    *,
    is_whole: bool = True,
) -> Reported:
    envelope = Envelope(
        reverse_path, ("alice@example.com",), ARRIVAL_NS, "x[127.0.0.1]", "x", "ESMTP", dsn=dsn
    )
    return Reported(envelope, content, is_whole)


def failed(recipient: str = "alice@example.com", reason: Reason = Reason.BOUNCED, **others: Any) -> Ended:
    status, text = {
        Reason.RELAYED: ("2.0.0", "250 2.0.0 Ok: queued as 7"),
        Reason.DELAYED: ("4.4.1", "connection refused"),
    }.get(reason, ("5.1.1", "550 5.1.1 No such user"))
    note = Note(0, status, reason.value, text, "smtp.example.net", LAST_NS)
    return recipient, replace(note, **others)


def delayed(recipient: str = "alice@example.com", **others: Any) -> Ended:
    return failed(recipient, Reason.DELAYED, **others)


def relayed(recipient: str = "carol@example.com") -> Ended:
    return failed(recipient, Reason.RELAYED)


def written(*ended: Ended, about: Reported | None = None) -> bytes:
    notes = [replace(note, index=index) for index, (_, note) in enumerate(ended)]
    is_warning = any(note.reason == Reason.DELAYED for note in notes)
    envelope, content, is_whole = about or message()
    return report(
        QueueId(f"0123456789abcdef{'w' if is_warning else 'r'}"),
        replace(envelope, recipients=tuple(address for address, _ in ended)),
        content,
        notes,
        is_whole=is_whole,
        hostname="relay.example.net",
        sender="MAILER-DAEMON@relay.example.net",
        until_ns=UNTIL_NS if is_warning else None,
    )


def parsed(content: bytes) -> EmailMessage:
    found = email.message_from_bytes(content, policy=email.policy.default)
    assert isinstance(found, EmailMessage)
    return found


def parts(content: bytes) -> list[EmailMessage]:
    found = parsed(content)
    assert (found.get_content_type(), found.get_param("report-type")) == (
        "multipart/report",
        "delivery-status",
    )
    assert not found.defects
    return [part for part in found.iter_parts() if isinstance(part, EmailMessage)]


def blocks(content: bytes) -> list[dict[str, str]]:
    """Return the fields of the message, then of each recipient."""
    payload = parts(content)[1].get_payload()
    assert isinstance(payload, list)
    return [dict(block.items()) for block in payload if isinstance(block, Message)]


def words(content: bytes) -> str:
    return str(parts(content)[0].get_content())


def returned(content: bytes) -> bytes:
    part = parts(content)[2]
    assert part.get_content_type() == "text/rfc822-headers"
    payload = part.get_payload(decode=True)
    assert isinstance(payload, bytes)
    return payload


def test_a_report_states_every_field() -> None:
    requests = RecipientRequest("", "rfc822;Alice+2BList@example.org"), NO_REQUEST
    about = message(dsn=DsnRequest(None, encode_xtext("batch 7+1=8"), requests))
    found = written(failed(), failed("bob@example.com", remote=None, diagnostic="gone"), about=about)

    assert parsed(found)["Message-ID"] == "<0123456789abcdefr@relay.example.net>"
    assert parsed(found)["Subject"] == "Undelivered Mail Returned to Sender"
    of_bob = {
        "Final-Recipient": "rfc822; bob@example.com",
        "Action": "failed",
        "Status": "5.1.1",
        "Diagnostic-Code": "X-relay; gone",
        "Last-Attempt-Date": LAST,
    }
    of_alice = {
        "Original-Recipient": "rfc822; Alice+List@example.org",
        **of_bob,
        "Final-Recipient": "rfc822; alice@example.com",
        "Remote-MTA": "dns; smtp.example.net",
        "Diagnostic-Code": "smtp; 550 5.1.1 No such user",
    }
    assert blocks(found) == [
        {
            "Reporting-MTA": "dns; relay.example.net",
            "X-relay-Queue-ID": "0123456789abcdef",
            "X-relay-Sender": "rfc822; list-owner@example.org",
            "Arrival-Date": ARRIVAL,
            "Original-Envelope-Id": "batch 7+1=8",
        },
        of_alice,
        of_bob,
    ]
    assert list(blocks(found)[1])[:2] == ["Original-Recipient", "Final-Recipient"]
    for shown in ("<alice@example.com>", "<bob@example.com>", "550 5.1.1 No such user", "smtp.example.net"):
        assert shown in words(found)


def test_a_warning_says_until_when_mail_is_retried_and_dates_only_real_attempts() -> None:
    waiting = delayed("bob@example.com", remote=None, diagnostic="it waits for its turn")
    found = written(delayed(), waiting)

    assert parsed(found)["Subject"] == "Delayed Mail (still being retried)"
    assert parsed(found)["Message-ID"] == "<0123456789abcdefw@relay.example.net>"
    _, of_alice, of_bob = blocks(found)
    assert of_bob == {
        "Final-Recipient": "rfc822; bob@example.com",
        "Action": "delayed",
        "Status": "4.4.1",
        "Diagnostic-Code": "X-relay; it waits for its turn",
        "Will-Retry-Until": UNTIL,
    }
    assert of_alice["Last-Attempt-Date"] == LAST
    assert "WARNING ONLY" in words(found)
    assert UNTIL in words(found)


def test_each_recipient_stands_below_what_became_of_it() -> None:
    shown = words(written(failed(), relayed()))
    expected = ["Refused by the next", "<alice@example.com>", "Passed on to the next", "<carol@example.com>"]

    assert sorted(expected, key=shown.index) == expected


def test_non_ascii_addresses_are_encoded_for_programs_and_readable_for_people() -> None:
    found = written(failed("jürgen+x@bücher.example"), about=message("jürgen@bücher.example"))

    not_ascii = [line for line in found.split(b"\r\n") if not line.isascii()]
    assert not_ascii == ["To: <jürgen@bücher.example>".encode()]
    of_message, of_recipient = blocks(found)
    assert of_message["X-relay-Sender"] == r"utf-8; j\x{FC}rgen@b\x{FC}cher.example"
    assert of_recipient["Final-Recipient"] == r"utf-8; j\x{FC}rgen\x{2B}x@b\x{FC}cher.example"
    assert "<jürgen+x@bücher.example>" in words(found)


@pytest.mark.parametrize(
    ("about", "recipient"),
    [
        (message(dsn=DsnRequest(Ret.HDRS)), failed()),
        (message(), failed()),
        (message(dsn=FULL, is_whole=False), failed()),
        (message(dsn=FULL), relayed()),
        (message(dsn=FULL), delayed()),
        (message(dsn=FULL, content=WHOLE + b"\0\r\n"), failed()),
        (message(dsn=FULL, content=WHOLE + b"\xc3\xbc\r\n"), failed()),
    ],
)
def test_a_report_returns_only_the_header_unless_ret_full_applies(about: Reported, recipient: Ended) -> None:
    assert returned(written(recipient, about=about)) == HEADER


@given(st.text(st.characters(max_codepoint=127, exclude_characters="\0"), max_size=300) | st.just("x" * 1200))
def test_ret_full_returns_the_message_octet_for_octet(text: str) -> None:
    whole = WHOLE + text.encode() + b"\r\n"
    found = written(failed(), about=message(dsn=FULL, content=whole))

    assert found.partition(b"Content-Type: message/rfc822\r\n\r\n")[2].startswith(whole + b"\r\n--=_")


HOSTILE = st.text(max_size=60) | st.sampled_from(
    ["x\r\nBcc: victim@example.org", "\r\n\r\n--=_", "y" * 3000, "ü" * 3000, "word " * 600]
)
HOSTILE_HEADER = st.binary(max_size=400) | st.lists(
    st.sampled_from([b"\r\n", b"\r", b"\n", b"--", b"Subject: x", b"\0", b"\xff", b" ", b"." * 1200]),
    max_size=20,
).map(b"".join)
ADDRESSES = st.sampled_from(
    ["a@b", '"a <b>; \\" c"@d', "é@b", '"é <a@b>"@c', f"{'l' * 984}@b", f"{'é' * 480}@b"]
)
HOSTILE_NOTES = st.builds(
    Note,
    index=st.just(0),
    status=st.just("5.0.0") | HOSTILE.map(lambda text: text[:300]),
    diagnostic=st.none() | HOSTILE | HOSTILE.map("550 {}".format),
    remote=st.none() | HOSTILE.map(lambda text: text[:300]),
    at_ns=st.integers(),
    reason=st.sampled_from(Reason).map(str),
)
ORCPTS = st.sampled_from(["", "rfc822;a+40b", "utf-8;é@b", r"utf-8;\x{E9}", "x;" + "y" * 900])
HOSTILE_RECIPIENTS = st.tuples(ADDRESSES, HOSTILE_NOTES, ORCPTS)


@given(ADDRESSES, HOSTILE_HEADER, st.lists(HOSTILE_RECIPIENTS, min_size=1, max_size=4))
def test_nothing_from_outside_breaks_a_report(
    reverse_path: str, header: bytes, recipients: list[tuple[str, Note, str]]
) -> None:
    dsn = DsnRequest(recipients=tuple(RecipientRequest("", orcpt) for *_, orcpt in recipients))
    ended = [(address, note) for address, note, _ in recipients]
    content = written(*ended, about=message(reverse_path, header, dsn, is_whole=False))

    assert content.endswith(b"\r\n")
    lines = content.split(b"\r\n")
    assert max(map(len, lines)) <= 998
    assert not any(b"\r" in line or b"\n" in line or b"\0" in line for line in lines)
    assert all(line.isascii() or line.startswith(b"To: ") for line in lines)
    # compat32 parses only the structure, to which the inside of a hostile address does not belong.
    assert email.message_from_bytes(content).keys() == [
        *("From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted", "MIME-Version", "Content-Type")
    ]
    assert [part.get_content_type() for part in parts(content)] == [
        *("text/plain", "message/delivery-status", "text/rfc822-headers")
    ]
    expected = (b"\r\n" + header).partition(b"\r\n\r\n")[0][2:]
    assert returned(content).removesuffix(b"\r\n") == expected.removesuffix(b"\r\n")
    of_message, *of_recipients = blocks(content)
    assert set(of_message) == {"Reporting-MTA", "X-relay-Queue-ID", "X-relay-Sender", "Arrival-Date"}
    assert [block["Action"] for block in of_recipients] == [Reason(note.reason).action for _, note in ended]
    assert all(block["Final-Recipient"] for block in of_recipients)


def test_a_header_that_quotes_a_boundary_cannot_end_a_part() -> None:
    boundary = parsed(written(failed())).get_boundary()
    assert boundary is not None
    content = written(failed(), about=message(content=f"X: y\r\n--{boundary}--\r\n".encode()))

    assert len(parts(content)) == 3
    assert parsed(content).get_boundary() != boundary


NAMES = st.from_regex(r"[a-z]{1,8}(\.[a-z]{1,8})?@[a-z]{1,8}\.example", fullmatch=True)


@given(bad=st.lists(NAMES, unique=True, min_size=1, max_size=5), good=st.lists(NAMES, max_size=3))
def test_a_list_manager_scores_exactly_the_failed_recipients(bad: list[str], good: list[str]) -> None:
    others = [relayed(address) for address in good if address not in bad]
    found = email.message_from_bytes(written(*map(failed, bad), *others, failed("jürgen@bücher.example")))

    assert all_failures(found) == (frozenset(), frozenset(address.encode() for address in bad))


GUESSED_FROM = b"Subject: the following addresses had\r\n <victim@example.org>\r\n"


@pytest.mark.parametrize(
    ("recipient", "content"),
    [(delayed(), GUESSED_FROM + WHOLE), (delayed("jürgen@bücher.example"), WHOLE), (relayed(), WHOLE)],
)
def test_a_list_manager_scores_nobody_for_a_warning_or_a_success(recipient: Ended, content: bytes) -> None:
    found = written(recipient, about=message(content=content))

    assert not scan_message(email.message_from_bytes(found))
    assert b"delivered" not in found.lower()  # an upstream does not say so
