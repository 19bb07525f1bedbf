"""A message in a record, or in a file of its own: to bytes and back.

The bytes are a message file of the maildir's format, its recipients all to do; what became of them since is
said by `facts`.  Raises Corrupt for what does not match its checksums, Absent for a file that is gone.
"""

from dataclasses import replace

from relay.clock import Clock
from relay.mail.envelope import Envelope, QueueId
from relay.mail.header import message_id_of
from relay.queue.sorting import Sorter
from relay.spool.durable import Disk
from relay.spool.interface import INLINE_BYTES, Corrupt
from relay.spool.log import record
from relay.spool.log.layout import LogLayout
from relay.spool.log.record import HEAD_BYTES, INLINE, MESSAGES, Record
from relay.spool.maildir import files, message_file
from relay.spool.maildir.files import absence
from relay.spool.maildir.message_file import HEADER_BYTES, Opened

_FRONT_BYTES = 64 * 1024


def encode(
    queue_id: QueueId, envelope: Envelope, content_bytes: int, crc: int, clock: Clock, *, eight_bit: bool
) -> tuple[bytes, bytes]:
    """Return the bytes before and behind the content.  ValueError for what could not be read back."""
    stamped = replace(envelope, boot_id=clock.boot_id(), boottime_ns=clock.boottime_ns())
    tail = message_file.encode_envelope(queue_id, stamped)
    shape = message_file.shape_of(envelope, content_bytes, eight_bit=eight_bit)
    return message_file.encode_header(content_bytes, tail, len(envelope.recipients), shape, crc), tail


def decode(queue_id: QueueId, payload: bytes, *, sorter: Sorter | None = None) -> Opened:
    """Return the message of a sound record's payload."""
    header = message_file.decode_header(payload[:HEADER_BYTES])
    message = message_file.decode_envelope(queue_id, header, payload[header.envelope_offset :])
    content = payload[HEADER_BYTES : header.envelope_offset]
    front = content[:_FRONT_BYTES]
    message.message_id = message_id_of(front)
    if sorter is not None:
        message.sorted = sorter.sort(message.envelope, lambda: front)
    message.content = content if len(content) <= INLINE_BYTES else None
    return message


class Messages:
    """Reads them."""

    def __init__(self, disk: Disk, layout: LogLayout) -> None:
        self._disk = disk
        self._layout = layout

    def of(self, found: Record, *, sorter: Sorter | None = None) -> Opened:
        if found.kind not in MESSAGES:
            raise Corrupt("another record stands there")
        if found.kind in INLINE:
            return decode(found.queue_id, found.payload, sorter=sorter)
        with absence(found.queue_id):
            path = self._layout.content(found.queue_id)
            return files.read(self._disk, path, found.queue_id, with_content=True, sorter=sorter)


def sound_record(raw: bytes, mark: bytes, queue_id: QueueId, at: int) -> Record:
    """Return the record of a message that `raw` is.  Raises Corrupt."""
    found = record.decode_head(mark, raw)
    if found is None or found[1] != queue_id:
        raise Corrupt("its record's head is damaged")
    head = found[0]
    payload = raw[HEAD_BYTES + head.id_bytes :]
    if not record.is_sound(head, payload):
        raise Corrupt("its record does not match its checksums")
    return Record(head.kind, queue_id, payload, head.number, at)


def payload_of(raw: bytes, queue_id: QueueId) -> bytes:
    """Return what a damaged record has behind its head, for a human being."""
    return raw[HEAD_BYTES + len(queue_id) :]


def front_of(payload: bytes) -> bytes:
    """Return the first part of a sound record's content."""
    header = message_file.decode_header(payload[:HEADER_BYTES])
    return payload[HEADER_BYTES : header.envelope_offset][:_FRONT_BYTES]


def recipients_of(raw: bytes, mark: bytes) -> int:
    """Return how many recipients a damaged record's message has; 0 where its head is damaged too."""
    found = record.decode_head(mark, raw)
    return 0 if found is None else found[0].number
