"""Any bytes as a message file give a message that can be written again unchanged, or Corrupt."""

import zlib
from dataclasses import replace

from relay.mail.envelope import Envelope, QueueId, Shape
from relay.spool.disk.durable import opened
from relay.spool.interface import Corrupt, Message
from relay.spool.message import message_file, reading
from relay.spool.message.reading import Stretch
from tests.fakes.disk import ModelDisk
from tests.fuzz.choices import Choices
from tests.fuzz.work import bounded, must_be_shown

QUEUE_ID = QueueId("0123456789abcdef")
PATH = "/spool/message"
ENVELOPE = Envelope("s@example.org", ("a@example.com", "T@example.com"), 7, "h[192.0.2.1]", "h", "ESMTP")
TOKENS = [b"\n", b"T", b"D", b"F\n", b"X", b"W", b"-", b"relay-message 1 ", b"{", b'"', b"\0" * 512, b"0"]


def sealed(content: bytes, envelope: Envelope) -> bytes:
    tail, recipients = message_file.encode_envelope(QUEUE_ID, envelope), len(envelope.recipients)
    shape = Shape(len(content), eight_bit=not content.isascii(), smtputf8=False)
    header = message_file.encode_header(len(content), tail, recipients, shape, zlib.crc32(content))
    return header + content + tail


def nearly_valid(choices: Choices) -> bytes:
    recipients = [choices.pick(("a@example.com", "", "T", "\u00e9@b")) for _ in range(3)]
    envelope = replace(ENVELOPE, recipients=tuple(recipients[: choices.number(3) + 1]), helo=choices.text())
    raw = bytearray(sealed(choices.octets(), envelope))
    for offset, _ in message_file.lines_of(envelope, len(raw)):
        raw[offset] = choices.pick(b"TTTDFEXSfest?")
    return choices.spoiled(bytes(raw), TOKENS)


def read(content: bytes) -> Message:
    disk = ModelDisk()
    disk.make_directory("/spool")
    disk.plant(PATH, content)
    with opened(disk, disk.open_read(PATH)) as fd:
        at = Stretch(fd, disk.size(fd))
        with bounded(2_000 + 20 * content.count(b"\n")):
            message = reading.read(disk, at, QUEUE_ID)
        assert b"".join(reading.stream(disk, at)) == message.content
    return message


def target(raw: bytes) -> None:
    choices = Choices(raw)
    content = nearly_valid(choices) if choices.yes() else choices.rest()
    try:
        message = read(content)
    except Corrupt as fault:
        must_be_shown(fault)
        return
    envelope = message.envelope
    assert all(message.statuses[index].is_reported for index in message.told)
    for index, (offset, line) in enumerate(message_file.lines_of(envelope, len(content))):
        mark = message_file.mark_of(message.statuses[index], is_told=index in message.told)
        assert content[offset:].startswith(mark + line)
    accepted = bytearray(content)
    for offset, _ in message_file.lines_of(envelope, len(content)):
        accepted[offset : offset + 1] = b"T"
    assert accepted.endswith(message_file.encode_envelope(QUEUE_ID, envelope))


# A first octet of 0 means: take the rest as it is.
SEEDS = [
    b"\0" + sealed(b"Subject: T\r\n\r\nx\r\n", ENVELOPE),
    b"\1\0\0\3\0\1\2\5hello\0\1\1",
    b"\1" + bytes(range(40)),
]
