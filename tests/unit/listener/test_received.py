"""The one line that is added: whatever a client calls itself, it stays one header field."""

import email
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from hypothesis import given
from hypothesis import strategies as st

from relay.listener.received import received_line
from relay.mail.envelope import QueueId

INSTANT_NS = 1_763_688_780_999_999_999


def _line(helo: str, address: str = "192.0.2.1") -> bytes:
    return received_line(
        helo=helo,
        address=address,
        hostname="relay.example",
        protocol="ESMTP",
        queue_id=QueueId("0123456789abcdef"),
        wall_ns=INSTANT_NS,
    )


def test_line_is_the_one_of_rfc_5321() -> None:
    assert _line("mx.example.org") == (
        b"Received: from mx.example.org (unknown [192.0.2.1])\r\n"
        b"\tby relay.example with ESMTP id 0123456789abcdef;\r\n"
        b"\tFri, 21 Nov 2025 01:33:00 +0000\r\n"
    )
    assert b"(unknown [IPv6:2001:db8::1])" in _line("x", "2001:db8::1")


@given(st.text(max_size=400))
def test_no_helo_breaks_the_line_or_forges_a_clause(helo: str) -> None:
    line = _line(helo)
    folded = line.split(b"\r\n")
    header = email.message_from_bytes(line + b"Subject: x\r\n\r\n")

    assert re.fullmatch(rb"Received: from [A-Za-z0-9.:_\-\[\]?]+ \(unknown \[192\.0\.2\.1\]\)", folded[0])
    assert len(folded) == 4
    assert all(len(part) <= 998 for part in folded)
    assert header.keys() == ["Received", "Subject"]
    date = header["Received"].rpartition(";")[2].strip()
    assert parsedate_to_datetime(date) == datetime(2025, 11, 21, 1, 33, tzinfo=UTC)
