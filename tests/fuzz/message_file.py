"""A message file of any bytes: a message that can be written again as it was, or Corrupt."""

import json
import zlib

from relay.mail.envelope import Envelope, QueueId
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
FACTS = (
    *("id", "reverse_path", "arrival_at_ns", "client", "helo", "protocol", "user", "smtputf8", "recipients"),
    *("dsn", "boot_id", "boottime_ns"),
)
VALUES: tuple[object, ...] = (
    *(None, True, 0, -1, 2**70, 1.5, "", "x", "a\nb", "\udc80", [], ["x"], {}, {"id": "x"}),
    {"ret": "FULL", "envid": "a+2Bb", "notify": ["SUCCESS", None], "orcpt": [None, "rfc822;a@b"]},
    {"notify": ["NEVER"]},
    {"orcpt": ["utf-8;\\x{E9}@b", "x"]},
    {"envid": "a\r\nb"},
    {"ret": None},
)
TOKENS = [
    *(b"\n", b"T", b"D", b"F\n", b"X", b"W", b"-", b"relay-message 1 ", b"{", b"}", b'"', b"\0" * 512, b"0")
]


def sealed(content: bytes, tail: bytes, recipients: int, *, lies: int = 0) -> bytes:
    """Return a file whose checksums are right, whatever is in it."""
    shape = message_file.shape_of(ENVELOPE, len(content), eight_bit=not content.isascii())
    header = message_file.encode_header(len(content), tail, recipients + lies, shape, zlib.crc32(content))
    return header + content + tail


def nearly_valid(choices: Choices) -> bytes:
    """Return a file with right checksums about wrong facts, and perhaps damage on top of it."""
    facts: dict[str, object] = dict(
        json.loads(message_file.encode_envelope(QUEUE_ID, ENVELOPE).split(b"\n")[0])
    )
    for _ in range(choices.number(3)):
        if choices.yes():
            facts[choices.pick(FACTS)] = choices.pick(VALUES)
        else:
            facts.pop(choices.pick(FACTS), None)
    line = choices.octets() if choices.number(8) == 7 else json.dumps(facts).encode()
    recipients = [choices.pick((b"a@example.com", b"", b"T", b"\xff", b"\xc3\xa9@b")) for _ in range(3)]
    recipients = recipients[: choices.number(4)]
    tail = b"\n".join([line, *(b"T" + each for each in recipients)]) + b"\n"
    raw = bytearray(sealed(choices.octets(), tail, len(recipients), lies=choices.number(12) == 11))
    if recipients and choices.yes():
        raw[raw.rfind(b"\nT") + 1] = choices.pick(b"TDFEXSfest?")
    return choices.spoiled(bytes(raw), TOKENS)


def planted(content: bytes) -> ModelDisk:
    """Return a disk with a file of these bytes."""
    disk = ModelDisk()
    disk.make_directory("/spool")
    disk.plant(PATH, content)
    return disk


def read(disk: ModelDisk) -> Message:
    """Raise Corrupt."""
    with opened(disk, disk.open_read(PATH)) as fd:
        at = Stretch(fd, disk.size(fd))
        with bounded(2_000 + 20 * disk.peek(PATH).count(b"\n")):
            message = reading.read(disk, at, QUEUE_ID)
        assert b"".join(reading.stream(disk, at)) == message.content
    return message


def target(raw: bytes) -> None:
    choices = Choices(raw)
    content = nearly_valid(choices) if choices.yes() else choices.rest()
    try:
        message = read(planted(content))
    except Corrupt as fault:
        must_be_shown(fault)
        return
    # Whatever was believed is of the types that it says, and is what this version writes.
    envelope = message.envelope
    addresses = (envelope.reverse_path, *envelope.recipients)
    assert all(type(text) is str for text in (*addresses, envelope.client, envelope.helo, envelope.protocol))
    assert type(envelope.arrival_at_ns) is int
    assert envelope.user is None or type(envelope.user) is str
    assert type(envelope.smtputf8) is bool
    assert len(envelope.dsn.recipients) in (0, len(envelope.recipients))
    assert all(message.statuses[index].is_reported for index in message.told)
    for index, (offset, line) in enumerate(message_file.lines_of(envelope, len(content))):
        mark = message_file.mark_of(message.statuses[index], is_told=index in message.told)
        assert content[offset:].startswith(mark + line)
    again = message_file.encode_envelope(QUEUE_ID, envelope)
    lines = message_file.marked(again, message)
    header = message_file.decode_header(content[: message_file.HEADER_BYTES])
    header = header._replace(envelope_crc=zlib.crc32(again), envelope_bytes=len(again))
    assert message_file.decode(QUEUE_ID, header, lines) == message._replace(content=None)


def _valid() -> bytes:
    return sealed(b"Subject: T\r\n\r\nx\r\n", message_file.encode_envelope(QUEUE_ID, ENVELOPE), 2)


# The first octet says: take the rest as it is.
SEEDS = [b"\0" + _valid(), b"\1\0\0\3\0\1\2\5hello\0\1\1", b"\1" + bytes(range(40))]
