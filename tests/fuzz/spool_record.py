"""A message file of any bytes: a message that can be written again as it was, or Corrupt."""

import json
import zlib

from relay.mail.envelope import Envelope, QueueId
from relay.spool.interface import Corrupt, Status
from relay.spool.message import files, message_file
from tests.fakes.disk import ModelDisk
from tests.fuzz.choices import Choices
from tests.fuzz.work import bounded, must_be_shown

QUEUE_ID = QueueId("0123456789abcdef")
PATH = "/spool/message"
ENVELOPE = Envelope("s@example.org", ("a@example.com", "T@example.com"), 7, "h[192.0.2.1]", "h", "ESMTP")
FACTS = (
    "id",
    "reverse_path",
    "arrival_at_ns",
    "client",
    "helo",
    "protocol",
    "user",
    "smtputf8",
    "recipients",
    "dsn",
)
VALUES: tuple[object, ...] = (
    None,
    True,
    0,
    -1,
    2**70,
    1.5,
    "",
    "x",
    "a\nb",
    "\udc80",
    [],
    ["x"],
    {},
    {"id": "x"},
    {"ret": "FULL", "envid": "a+2Bb", "notify": ["SUCCESS", None], "orcpt": [None, "rfc822;a@b"]},
    {"notify": ["NEVER"]},
    {"orcpt": ["utf-8;\\x{E9}@b", "x"]},
    {"envid": "a\r\nb"},
    {"ret": None},
)
TOKENS = [
    b"\n",
    b"T",
    b"D",
    b"F\n",
    b"X",
    b"W",
    b"-",
    b"relay-message 1 ",
    b"{",
    b"}",
    b'"',
    b"\0" * 512,
    b"0",
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
        raw[raw.rfind(b"\nT") + 1] = choices.pick(b"TDFEX?")
    return choices.spoiled(bytes(raw), TOKENS)


def target(raw: bytes) -> None:
    choices = Choices(raw)
    content = nearly_valid(choices) if choices.yes() else choices.rest()
    disk = ModelDisk()
    disk.make_directory("/spool")
    disk.plant(PATH, content)
    try:
        with bounded(2_000 + 20 * content.count(b"\n")):
            message = files.read(disk, PATH, QUEUE_ID, with_content=True)
    except Corrupt as fault:
        must_be_shown(fault)
        return
    assert message.content is not None
    assert b"".join(files.stream(disk, PATH, QUEUE_ID)) == message.content
    _check(message, content)


def _check(message: message_file.Opened, content: bytes) -> None:
    """Whatever was believed is of the types that it says, and is what this version writes."""
    envelope = message.envelope
    addresses = (envelope.reverse_path, *envelope.recipients)
    assert all(type(text) is str for text in (*addresses, envelope.client, envelope.helo, envelope.protocol))
    assert type(envelope.arrival_at_ns) is int
    assert envelope.user is None or type(envelope.user) is str
    assert type(envelope.smtputf8) is bool
    assert message.entry(is_held=False).recipients_left == message.statuses.count(Status.TODO)
    for offset, status, address in zip(message.offsets, message.statuses, envelope.recipients, strict=True):
        assert content[offset:].startswith(status.value + address.encode() + b"\n")
    assert len(envelope.dsn.recipients) in (0, len(envelope.recipients))
    again = message_file.encode_envelope(QUEUE_ID, envelope)
    header = message.header._replace(envelope_crc=zlib.crc32(again), envelope_bytes=len(again))
    assert message_file.decode_envelope(QUEUE_ID, header, again).envelope == envelope


def _valid() -> bytes:
    return sealed(b"Subject: T\r\n\r\nx\r\n", message_file.encode_envelope(QUEUE_ID, ENVELOPE), 2)


# The first octet says: take the rest as it is.
SEEDS = [b"\0" + _valid(), b"\1\0\0\3\0\1\2\5hello\0\1\1", b"\1" + bytes(range(40))]
