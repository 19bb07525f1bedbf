"""Marks in a file of any bytes: status bytes of the recipients that were read, or Corrupt and nothing."""

from relay.spool.disk.durable import opened
from relay.spool.interface import Corrupt, Message, Status
from relay.spool.maildir.marks import Marks
from relay.spool.message.message_file import HEADER_BYTES, encode_envelope, lines_of
from tests.fakes.disk import ModelDisk
from tests.fuzz.choices import Choices
from tests.fuzz.message_file import ENVELOPE, PATH, QUEUE_ID, planted, read, sealed
from tests.fuzz.work import bounded, must_be_shown

LINES = [
    b"%c%s\n" % (mark, address) for mark in b"TDFfSsd?" for address in (b"a@example.com", b"T@example.com")
]
TOKENS = [*LINES, *(address.encode() + b"\n" for address in ENVELOPE.recipients), b"W", b"\n", b"\0" * 512]
WHOLE = sealed(b"Subject: T\r\n\r\nx\r\n", encode_envelope(QUEUE_ID, ENVELOPE), 2)


def target(raw: bytes) -> None:
    choices = Choices(raw)
    marks = {i: choices.pick(list(Status)[1:]) for i in range(2) if choices.yes()}
    told = [i for i, status in marks.items() if status.is_reported and choices.yes()]
    content = choices.spoiled(WHOLE, TOKENS) if choices.yes() else choices.rest()
    disk = planted(content)
    before = _message(disk)
    with opened(disk, disk.open_update(PATH)) as fd:
        try:
            with bounded(200):
                lines = Marks(disk, fd, ENVELOPE)
                lines.mark(marks)
        except Corrupt as fault:
            must_be_shown(fault)
            assert disk.peek(PATH) == content
            return
        lines.tell(told)
        lines.warn()
    after = disk.peek(PATH)
    kept = bytearray(after)
    for offset, line in lines_of(ENVELOPE, len(content)):
        assert after[offset + 1 :].startswith(line)
        kept[offset] = content[offset]
    kept[HEADER_BYTES - 2] = content[HEADER_BYTES - 2]
    assert kept == content
    if before is not None and before.envelope == ENVELOPE:
        assert read(disk) == before.after(marks)._replace(told=before.told.union(told), is_warned=True)


def _message(disk: ModelDisk) -> Message | None:
    try:
        return read(disk)
    except Corrupt:
        return None


SEEDS = [b"\0\0\0" + WHOLE, b"\1\1\1\1\1\0\1\5", b"\1\2\0\0\1\7\6\1\0\1" + bytes(range(30))]
