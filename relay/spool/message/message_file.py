r"""The bytes of one message file, version 1.

    relay-message 1 CONTENT_BYTES ENVELOPE_BYTES RECIPIENTS 8u CONTENT_CRC ENVELOPE_CRC HEADER_CRC W\n
    …content, octet for octet as it will be sent, before dot-stuffing…
    {"id": …, "reverse_path": …, …}\n
    Tfirst@recipient.example\n
    Dsecond@recipient.example\n

The envelope follows the content, so that content can be streamed to disk before its length is known.  All
fields of the header have fixed widths, so the header is written last, in place.  `8` stands for eight-bit
content and `u` for SMTPUTF8, else `-`.  Each recipient is one line whose first byte is the status.  The
status of a failure, or of a success that the sender asked to be told of, is lower case once a report told it.
In a published file only the status bytes change, and `W`: it is `-` until the sender is warned of a delay.

The envelope has `dsn` only if the message came with DSN parameters: `ret`, `envid`, and `notify` and `orcpt`
with a value or null for each recipient.  Each is there only if it was given.

Every part has a CRC-32.  The envelope's counts each status as `T`; the header's covers the bytes before it.
A file that does not match in length, checksum or id is `Corrupt`.  Encoding and decoding only: no I/O.
"""

import json
import re
import zlib
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, NamedTuple

from relay.mail.dsn import DsnRequest, RecipientRequest, Ret, asked_of
from relay.mail.envelope import Envelope, QueueId, Shape
from relay.spool.interface import Corrupt, Message, Status

MAGIC = b"relay-message 1 "
_HEADER = re.compile(
    rb"relay-message 1 ([0-9]{15}) ([0-9]{10}) ([0-9]{7}) ([8-])([u-]) "
    rb"([0-9a-f]{8}) ([0-9a-f]{8}) ([0-9a-f]{8}) ([W-])\n\Z"
)
HEADER_BYTES = 16 + 15 + 1 + 10 + 1 + 7 + 1 + 2 + 1 + 8 + 1 + 8 + 1 + 8 + 3
WARNED_OFFSET = HEADER_BYTES - 2
WARNED_BYTE = b"W"
_CHECKED_BYTES = HEADER_BYTES - 3 - 8
"""The part of the header that its own checksum covers."""
_STATUSES = {status.value[0]: status for status in Status}
_TOLD = {status.value.lower()[0]: status for status in Status if status.is_reported}
_in_json = json.JSONEncoder(separators=(",", ":")).encode


class Header(NamedTuple):
    content_bytes: int
    envelope_bytes: int
    recipient_count: int
    eight_bit: bool
    smtputf8: bool
    content_crc: int
    envelope_crc: int
    is_warned: bool

    @property
    def file_bytes(self) -> int:
        return HEADER_BYTES + self.content_bytes + self.envelope_bytes

    @property
    def envelope_offset(self) -> int:
        return HEADER_BYTES + self.content_bytes

    @property
    def shape(self) -> Shape:
        return Shape(self.content_bytes, self.eight_bit, self.smtputf8)


def encode_header(content_bytes: int, envelope: bytes, recipient_count: int, shape: Shape, crc: int) -> bytes:
    """`crc` is the CRC-32 of the content; `shape` has its flags."""
    flags = b"%c%c" % (b"8" if shape.eight_bit else b"-", b"u" if shape.smtputf8 else b"-")
    start = b"%s%015d %010d %07d %s %08x %08x " % (
        MAGIC,
        content_bytes,
        len(envelope),
        recipient_count,
        flags,
        crc,
        zlib.crc32(envelope),
    )
    return b"%s%08x -\n" % (start, zlib.crc32(start))


def decode_header(raw: bytes) -> Header:
    match = _HEADER.match(raw)
    if match is None:
        raise Corrupt("no relay-message 1 header" if raw else "empty file")
    if int(match[8], 16) != zlib.crc32(raw[:_CHECKED_BYTES]):
        raise Corrupt("the header does not match its checksum")
    return Header(
        int(match[1]),
        int(match[2]),
        int(match[3]),
        match[4] == b"8",
        match[5] == b"u",
        int(match[6], 16),
        int(match[7], 16),
        match[9] == WARNED_BYTE,
    )


def encode_envelope(queue_id: QueueId, envelope: Envelope) -> bytes:
    """Return the envelope with every recipient to do.  Raises ValueError if it could not be read back."""
    if not envelope.recipients or any("\n" in address for address in envelope.recipients):
        raise ValueError("no recipient, or a recipient that contains a newline")
    facts = {
        "id": queue_id,
        "reverse_path": envelope.reverse_path,
        "arrival_at_ns": envelope.arrival_at_ns,
        "client": envelope.client,
        "helo": envelope.helo,
        "protocol": envelope.protocol,
        "user": envelope.user,
        "smtputf8": envelope.smtputf8,
    }
    if envelope.boot_id:
        facts |= {"boot_id": envelope.boot_id, "boottime_ns": envelope.boottime_ns}
    if dsn := _dsn_facts(envelope.dsn):
        facts["dsn"] = dsn
    lines = [_in_json(facts)]
    lines += ["T" + address for address in envelope.recipients]
    return ("\n".join(lines) + "\n").encode()


def decode(queue_id: QueueId, header: Header, raw: bytes) -> Message:
    """Return the message of the envelope `raw`, without content.  Raises Corrupt."""
    end = raw.find(b"\n") + 1
    lines = raw[end:].split(b"\n")
    if lines.pop() != b"" or len(lines) != header.recipient_count or not lines:
        raise Corrupt("the envelope is truncated, or its header counts other recipients")
    # The checksum counts each status as `T`.  If no recipient is marked, `raw` matches as it is.
    if zlib.crc32(raw) != header.envelope_crc:
        as_accepted = raw[:end] + b"".join([b"T%s\n" % line[1:] for line in lines])
        if zlib.crc32(as_accepted) != header.envelope_crc:
            raise Corrupt("the envelope does not match its checksum")
    try:
        statuses = tuple([_STATUSES.get(line[0]) or _TOLD[line[0]] for line in lines])
        told = frozenset([index for index, line in enumerate(lines) if line[0] in _TOLD])
        # Decode first: `loads` would guess the encoding of bytes.
        facts = json.loads(raw[:end].decode())
        recorded_id = facts.pop("id")
        if "dsn" in facts:
            facts["dsn"] = _dsn_of(facts["dsn"], len(lines))
        envelope = Envelope(recipients=tuple([line[1:].decode() for line in lines]), **facts)
    except (LookupError, ValueError, TypeError) as error:
        # The checksum does not cover statuses, and a later version may write other facts.
        raise Corrupt("the envelope cannot be read") from error
    if recorded_id != queue_id:
        raise Corrupt(f"it contains another message, {str(recorded_id)[:20]!r}")
    return Message(queue_id, envelope, header.shape, statuses, told, is_warned=header.is_warned)


def lines_of(envelope: Envelope, file_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield the offset of each recipient's line in a file of this length, and the line without status."""
    addresses = [address.encode() + b"\n" for address in envelope.recipients]
    lengths = [1 + len(address) for address in addresses]
    return zip(accumulate(lengths[:-1], initial=file_bytes - sum(lengths)), addresses, strict=True)


def mark_of(status: Status, *, is_told: bool) -> bytes:
    return status.value.lower() if is_told else status.value


def _dsn_facts(dsn: DsnRequest) -> dict[str, object]:
    notify = [asked.notify or None for asked in dsn.recipients]
    orcpt = [asked.orcpt or None for asked in dsn.recipients]
    facts = {
        "ret": dsn.ret,
        "envid": dsn.envid,
        "notify": any(notify) and notify,
        "orcpt": any(orcpt) and orcpt,
    }
    return {name: fact for name, fact in facts.items() if fact}


def _dsn_of(facts: dict[str, Any], recipients: int) -> DsnRequest:
    # The values were checked when they were accepted, and the checksum covers them.
    none: list[Any] = [None] * recipients
    notify, orcpt = facts.get("notify", none), facts.get("orcpt", none)
    asked = [RecipientRequest(*(each or "" for each in pair)) for pair in zip(notify, orcpt, strict=True)]
    return DsnRequest(Ret(facts["ret"]) if "ret" in facts else None, facts.get("envid", ""), asked_of(asked))


def checksum(chunk: bytes, before: int = 0) -> int:
    """Return the CRC-32 of content up to this chunk, given the CRC-32 of the content before it."""
    return zlib.crc32(chunk, before)
