"""Reads a header: Message-ID, and below our own Received field the subject and the client's queue id."""

import tracemalloc

import pytest

from relay.mail.header import NO_NAMES, Names, message_id_of, names_of

OURS = b"Received: from here (unknown [192.0.2.1])\r\n\tby relay.test with ESMTP id 2k1w8f76;\r\n\ttoday\r\n"
POSTFIX = b"Received: by mx.test (Postfix, from userid 1000)\r\n\tid 4ZJ1qk; today\r\n"
EXIM = (
    b"Received: from [192.0.2.2] (helo=id)\r\n\tby mx.test with esmtp (Exim 4.96 (id 7))\r\n"
    b"\t(envelope-from <id a@b>)\r\n\tid 1pXYZa-0001AB-2C\r\n\tfor b@x.test; today\r\n"
)
ELSEWHERE = b"Received: by far.test id FAR1; before\r\n"


@pytest.mark.parametrize(
    ("received", "queue_id"),
    [
        (POSTFIX, "4ZJ1qk"),
        (EXIM, "1pXYZa-0001AB-2C"),
        (b"received: from qmail (invoked by uid 7); today\r\n", ""),
        (b"", ""),
        (b"Received: id %s\r\n" % (b"x" * 500), "x" * 100),
    ],
)
def test_the_clients_queue_id_is_from_the_received_field_below_ours(received: bytes, queue_id: str) -> None:
    content = OURS + received + (ELSEWHERE if received else b"") + b"Subject: x\r\n\r\nReceived: id no\r\n"

    assert names_of(content) == Names(None, "x", queue_id)


@pytest.mark.parametrize(
    ("field", "subject"),
    [
        (b"subject:\r\n  Hello,\r\n\tworld ", "Hello, world"),
        (b"Subject: =?utf-8?B?WsO8cmljaA==?= =?iso-8859-1?q?_=FCber?= all", "Zürich über all"),
        (b"Subject: =?utf-8?q?a=0Ab?=", "a b"),
        (b"Subject: =?unknown-8bit-x?q?a?=", "=?unknown-8bit-x?q?a?="),
        (b"Subject: =?KOI8-U?q?=C1?=", "\u0430"),
        (b"Subject: =?utf-8?b?x?=", "=?utf-8?b?x?="),
        (b"Subject: =?utf-7?q?+2AA-?=", "?"),
        (b"Subject: \xff", "\ufffd"),
        (b"Subject: " + b"y" * 900, "y" * 200),
        (b"X-Subject: no", ""),
    ],
)
def test_the_subject_is_decoded_and_unfolded(field: bytes, subject: str) -> None:
    assert names_of(OURS + field + b"\r\n\r\nSubject: not this\r\n").subject == subject


@pytest.mark.parametrize(
    ("content", "message_id"),
    [
        (b"To: x\r\nmessage-id:\r\n <1@x>\r\n\t(a)\r\nSubject: y\r\n\r\n", "<1@x> (a)"),
        (b"Message-Id: <\xff@x>\r\nMessage-Id: <2@x>\r\n\r\n", "<\ufffd@x>"),
        (b"Message-ID: " + b"y" * 2000 + b"\r\n\r\n", "y" * 998),
        *((content, None) for content in (b"Message-ID:  \r\n\r\n", b"X-Message-ID: <1@x>\r\n\r\n", b"")),
        (b"To: x\r\n\r\nMessage-ID: <1@x>\r\n", None),
    ],
)
def test_the_message_id_is_the_first_of_the_header_unfolded(content: bytes, message_id: str | None) -> None:
    assert message_id_of(content) == message_id


def test_a_hostile_header_takes_no_time() -> None:
    received = b"Received: " + b"(" * 30_000
    subject = b"Subject: " + b"=?utf-8?q?" * 3_000
    assert names_of(OURS + received + b"\r\n\r\n") == NO_NAMES
    assert names_of(OURS + subject + b"\r\n\r\n").subject


@pytest.mark.measures
def test_unknown_charsets_in_subjects_do_not_fill_memory() -> None:
    def read(count: int) -> None:
        for number in range(count):
            names_of(OURS + b"Subject: =?x-%d-of-strangers?q?a?=\r\n\r\n" % number)

    read(10)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        read(500)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 20_000
