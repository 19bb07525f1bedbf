"""The bytes of a message file: every change is noticed, and the format stays as it is.

tests/engines tests round trips of each engine, and tests/fuzz those of any marks.
"""

from dataclasses import replace

from relay.mail.dsn import NO_REQUEST, DsnRequest, RecipientRequest, Ret
from relay.spool.interface import Corrupt, Status
from relay.spool.message import message_file
from tests.fuzz.message_file import ENVELOPE, read, sealed

WHOLE = sealed(b"Subject: T\r\n\r\nTo do, Done, Failed.\r\n", ENVELOPE)
STATUSES = b"".join(status.value for status in Status) + b"fes"
"""All status bytes.  A small letter says that the sender was told."""


def is_sound(raw: bytes) -> bool:
    try:
        read(raw)
    except Corrupt:
        return False
    return True


def other_octets(place: int) -> list[int]:
    """Return other octets for a place: with one bit changed, and those that such places may hold."""
    return sorted({WHOLE[place] ^ 1, WHOLE[place] ^ 0x80, *STATUSES, *b"W-\n"} - {WHOLE[place]})


def test_a_changed_octet_anywhere_is_noticed() -> None:
    """Exceptions are a status byte that becomes another status, and the byte of the warning."""
    lines = message_file.lines_of(ENVELOPE, len(WHOLE))
    allowed = {(offset, octet) for offset, _ in lines for octet in STATUSES}
    allowed |= {(message_file.WARNED_OFFSET, octet) for octet in b"W-"}
    for place in range(len(WHOLE)):
        for octet in other_octets(place):
            changed = WHOLE[:place] + bytes([octet]) + WHOLE[place + 1 :]
            assert is_sound(changed) == ((place, octet) in allowed)


def test_every_truncation_and_all_appended_octets_are_noticed() -> None:
    for length in range(len(WHOLE)):
        assert not is_sound(WHOLE[:length])
        assert not is_sound(WHOLE[:length] + bytes(len(WHOLE) - length))
        assert not is_sound(WHOLE + WHOLE[:length] + b"\n")


def test_the_format_of_version_1_stays_readable() -> None:
    """A file as this version writes it, byte for byte.  A change of it breaks every spool in use."""
    assert WHOLE == (
        b"relay-message 1 000000000000036 0000000188 0000002 -- 35ba77d5 52174f2e 13cd3fe5 -\n"
        b"Subject: T\r\n\r\nTo do, Done, Failed.\r\n"
        b'{"id":"0123456789abcdef","reverse_path":"s@example.org","arrival_at_ns":7,"client":"h[192.0.2.1]",'
        b'"helo":"h","protocol":"ESMTP","user":null,"smtputf8":false}\n'
        b"Ta@example.com\nTT@example.com\n"
    )


def test_the_senders_requests_for_reports_are_kept_as_they_were_asked() -> None:
    asked = RecipientRequest("SUCCESS,DELAY", r"utf-8;\x{E9}@b"), NO_REQUEST
    envelope = replace(ENVELOPE, dsn=DsnRequest(Ret.HDRS, "a+2Bb", asked))
    raw = sealed(b"", envelope)

    assert read(raw).envelope == envelope
    assert (
        rb'"dsn":{"ret":"HDRS","envid":"a+2Bb","notify":["SUCCESS,DELAY",null],"orcpt":["utf-8;\\x{E9}@b",null]}'
    ) in raw
