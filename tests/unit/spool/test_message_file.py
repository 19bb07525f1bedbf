"""The bytes of a message file: what goes in comes out, and what was touched is known for it."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay.mail.dsn import DsnRequest, Notify, RecipientRequest, Ret, asked_of
from relay.mail.envelope import Envelope, QueueId, Shape
from relay.spool.interface import Corrupt, Message, Status
from relay.spool.message import message_file
from tests.fuzz.message_file import ENVELOPE, QUEUE_ID

CONTENT = b"Subject: T\r\n\r\nTo do, Done, Failed.\r\n"


def requests_for(recipients: int) -> st.SearchStrategy[DsnRequest]:
    asked = st.builds(
        RecipientRequest,
        st.none() | st.sampled_from([Notify(number) for number in range(8)]),
        st.sampled_from(["", "rfc822;a+2Bb@c", "utf-8;\u00e9@b", r"utf-8;\x{E9}@b"]),
    )
    return st.builds(
        DsnRequest,
        st.none() | st.sampled_from(Ret),
        st.sampled_from(["", "QQ314159", "a+20b"]),
        st.lists(asked, min_size=recipients, max_size=recipients).map(asked_of),
    )


texts = st.text(st.characters(codec=None), max_size=30)
"""Any text, also with line ends, controls and lone surrogates."""
addresses = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=30)
envelopes = st.builds(
    Envelope,
    reverse_path=addresses,
    recipients=st.lists(addresses, min_size=1, max_size=8).map(tuple),
    arrival_at_ns=st.integers(-(2**63), 2**63),
    client=texts,
    helo=texts,
    protocol=texts,
    user=st.none() | texts,
    smtputf8=st.booleans(),
).flatmap(lambda envelope: requests_for(len(envelope.recipients)).map(lambda dsn: replace(envelope, dsn=dsn)))


def encoded(envelope: Envelope = ENVELOPE, content: bytes = CONTENT, queue_id: QueueId = QUEUE_ID) -> bytes:
    tail = message_file.encode_envelope(queue_id, envelope)
    shape = Shape(len(content), not content.isascii(), envelope.smtputf8)
    crc = message_file.checksum(content)
    return (
        message_file.encode_header(len(content), tail, len(envelope.recipients), shape, crc) + content + tail
    )


def decoded(raw: bytes, queue_id: QueueId = QUEUE_ID) -> Message:
    """Read a file as relay.spool.message.reading does."""
    header = message_file.decode_header(raw[: message_file.HEADER_BYTES])
    if len(raw) != header.file_bytes:
        raise Corrupt("length")
    message = message_file.decode(queue_id, header, raw[header.envelope_offset :])
    content = raw[message_file.HEADER_BYTES : header.envelope_offset]
    if message_file.checksum(content) != header.content_crc:
        raise Corrupt("content")
    return message._replace(content=content)


@given(envelope=envelopes, content=st.binary(max_size=2000))
@example(envelope=ENVELOPE, content=b"")
@example(envelope=replace(ENVELOPE, recipients=("", "D", "T")), content=b"T\nD\n")
def test_what_goes_in_comes_out(envelope: Envelope, content: bytes) -> None:
    message = decoded(encoded(envelope, content))

    assert message.envelope == envelope
    assert message.statuses == (Status.TODO,) * len(envelope.recipients)
    assert message.content == content
    assert message.shape == Shape(len(content), not content.isascii(), envelope.smtputf8)
    assert (message.is_warned, message.told) == (False, frozenset())


@given(envelope=envelopes, data=st.data())
def test_each_recipient_has_one_byte_and_its_offset_finds_it(envelope: Envelope, data: st.DataObject) -> None:
    raw, count = bytearray(encoded(envelope)), len(envelope.recipients)
    statuses = data.draw(st.lists(st.sampled_from(Status), min_size=count, max_size=count))
    told = {i for i, status in enumerate(statuses) if status.is_reported and data.draw(st.booleans())}
    lines = list(message_file.lines_of(envelope, len(raw)))
    assert [line for _, line in lines] == [address.encode() + b"\n" for address in envelope.recipients]
    for index, (offset, line) in enumerate(lines):
        assert raw[offset : offset + 1 + len(line)] == b"T" + line
        raw[offset : offset + 1] = message_file.mark_of(statuses[index], is_told=index in told)
    raw[message_file.WARNED_OFFSET : message_file.WARNED_OFFSET + 1] = message_file.WARNED_BYTE

    message = decoded(bytes(raw))
    assert (message.statuses, message.told, message.is_warned) == (tuple(statuses), frozenset(told), True)
    assert (message.envelope, message.content) == (envelope, CONTENT)


def test_any_other_byte_anywhere_is_noticed() -> None:
    """Unnoticed is a status byte that becomes another status, and the one of the warning; nothing else."""
    raw = encoded()
    status_places = {offset for offset, _ in message_file.lines_of(ENVELOPE, len(raw))}
    allowed = {(place, status.value[0]) for place in status_places for status in Status}
    allowed |= {(place, octet) for place in status_places for octet in b"fes"}
    allowed |= {(message_file.WARNED_OFFSET, octet) for octet in b"W-"}
    unnoticed = set()
    for place in range(len(raw)):
        for octet in range(256):
            changed = raw[:place] + bytes([octet]) + raw[place + 1 :]
            try:
                decoded(changed)
            except Corrupt:
                continue
            if changed != raw:
                unnoticed.add((place, octet))

    assert unnoticed == {(place, octet) for place, octet in allowed if raw[place] != octet}


def test_every_truncation_and_every_octet_behind_is_noticed() -> None:
    raw = encoded()
    for length in range(len(raw)):
        for torn in (raw[:length], raw[:length] + bytes(len(raw) - length), raw + raw[:length] + b"\n"):
            with pytest.raises(Corrupt):
                decoded(torn)


def test_the_file_of_another_message_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="another message, '0123456789abcdef'"):
        decoded(encoded(), QueueId("fedcba9876543210"))


def test_the_format_of_version_1_stays_readable() -> None:
    """A file as this version writes it, byte for byte: who changes it breaks every spool in use."""
    assert encoded() == (
        b"relay-message 1 000000000000036 0000000188 0000002 -- 35ba77d5 52174f2e 13cd3fe5 -\n"
        b"Subject: T\r\n\r\nTo do, Done, Failed.\r\n"
        b'{"id":"0123456789abcdef","reverse_path":"s@example.org","arrival_at_ns":7,"client":"h[192.0.2.1]",'
        b'"helo":"h","protocol":"ESMTP","user":null,"smtputf8":false}\n'
        b"Ta@example.com\nTT@example.com\n"
    )
