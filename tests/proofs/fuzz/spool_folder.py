"""Any files under any names in any folder of a spool: it starts, sends no foreign octet and deletes none."""

import re

from relay.clock import Clock
from relay.mail.envelope import QueueId
from relay.spool.identity import is_queue_id
from relay.spool.interface import Corrupt
from relay.spool.maildir.engine import MaildirSpool
from relay.spool.maildir.layout import Layout
from relay.spool.message import message_file
from tests.fakes.clock import FakeClock
from tests.fakes.disk import ModelDisk
from tests.proofs.fuzz import spool_record
from tests.proofs.fuzz.choices import Choices
from tests.proofs.fuzz.work import bounded
from tests.unit.spool.recovering import Recovered, recover

ROOT = "/var/spool"
LAYOUT = Layout(ROOT)
QUEUE_ID = spool_record.QUEUE_ID
HOME = LAYOUT.queued(QUEUE_ID).rpartition("/")[0].removeprefix(f"{ROOT}/")
FOLDERS = ["new", "hold", HOME, "cur/00", "cur/63", "corrupt", "tmp", "bounce"]
NAMES = [
    QUEUE_ID,
    f"{QUEUE_ID}r",
    f"{QUEUE_ID}r1",
    "fedcba9876543210",
    "README",
    ".nfs01",
    "\udcff\n",
    "x" * 250,
    f"{QUEUE_ID}.1",
]
KINDS = ["file"] * 13 + ["folder", "fifo", "symlink"]
TOKENS = spool_record.TOKENS


def _prepared() -> ModelDisk:
    disk = ModelDisk()
    spool = _started(disk)
    recover(spool)
    spool.close()
    return disk


def _started(disk: ModelDisk) -> MaildirSpool:
    clock: Clock = FakeClock()
    return MaildirSpool(ROOT, disk, clock)


EMPTY = _prepared()
CALLS = 40_000
"""What a start of an empty spool costs, more than twice over."""


def target(raw: bytes) -> None:
    choices = Choices(raw)
    disk = EMPTY.after_kill()
    planted: dict[str, bytes] = {}
    for _ in range(1 + choices.number(4)):
        folder, name, kind = choices.pick(FOLDERS), choices.pick(NAMES), choices.pick(KINDS)
        content = _content(choices, name)
        path = f"{ROOT}/{folder}/{name}"
        if disk.inode(path) is None:
            disk.plant(path, content, kind=kind)
            if kind == "file" and not _may_go(folder, name, content):
                planted[path] = content

    with bounded(CALLS):
        spool = _started(disk)
        first = recover(spool)
    for entry in first.entries:
        assert entry.recipients_left >= 0
        _load(spool, entry.queue_id)
    left = set(map(_untold, _contents(disk)))
    for content in planted.values():
        assert _untold(content) in left, "what was there is gone"
    corrupt = spool.corrupt_count()
    spool.close()
    again = _again(disk)
    # What was set aside while it was loaded is no entry any more; nothing else has changed.
    assert {entry.queue_id for entry in again.entries} <= {entry.queue_id for entry in first.entries}
    assert len(first.entries) - len(again.entries) == corrupt - first.corrupt
    assert again.corrupt == corrupt
    assert again.abandoned == 0


def _untold(content: bytes) -> bytes:
    """Return a file without the marks that say that a sender was told: a start sets what a crash left out."""
    return re.sub(rb"(?<=\n)[fe]", lambda mark: mark[0].upper(), content)


def _content(choices: Choices, name: str) -> bytes:
    """Return a file, every other time one that is whole and has its right name."""
    if choices.yes():
        return spool_record.nearly_valid(choices) if choices.yes() else choices.octets(255)
    envelope = message_file.encode_envelope(QueueId(name), spool_record.ENVELOPE)
    marked = envelope.replace(b"\nTa", b"\n%ca" % choices.pick(b"TDFEXfe"))
    content = choices.octets()
    header = spool_record.sealed(content, envelope, 2)[: message_file.HEADER_BYTES]
    return choices.spoiled(header + content + marked, TOKENS)


def _may_go(folder: str, name: str, content: bytes) -> bool:
    """Return whether a crash of ours may have left it: a draft that nobody writes, notes about no message."""
    if not is_queue_id(name):
        return False
    if folder == "bounce":
        lines = [line for line in re.split(rb"[\0\n]", content) if line]
        # A line's front is lost only with a sector, and then zeros stand for all of it.
        has_lost_sector = b"\0\0" in content[510:]
        return has_lost_sector or all(line[:9] == b'{"index":'[: len(line)] for line in lines)
    start = content[: message_file.HEADER_BYTES]
    if folder != "tmp" or not (b"\0" in start or len(start) < message_file.HEADER_BYTES):
        return folder == "tmp" and _is_message(name, content)
    return start.rstrip(b"\0")[:16] == message_file.MAGIC[: len(start.rstrip(b"\0"))]


def _is_message(name: str, content: bytes) -> bool:
    """Return whether a file is a message of this id, or may be one that a crash cut off."""
    try:
        header = message_file.decode_header(content[: message_file.HEADER_BYTES])
        if len(content) < header.file_bytes or b"\0" in content:
            return len(content) <= header.file_bytes
        message_file.decode_envelope(QueueId(name), header, content[header.envelope_offset :])
    except Corrupt:
        return False
    return (
        message_file.checksum(content[message_file.HEADER_BYTES : header.envelope_offset])
        == header.content_crc
    )


def _load(spool: MaildirSpool, queue_id: QueueId) -> None:
    try:
        message = spool.load(queue_id)
        if message.content is not None:
            assert b"".join(spool.content(queue_id)) == message.content
    except Corrupt:
        return


def _again(disk: ModelDisk) -> Recovered:
    spool = _started(disk.after_kill())
    recovery = recover(spool)
    spool.close()
    return recovery


def _contents(disk: ModelDisk) -> list[bytes]:
    return list(disk.platter.contents.values())


SEEDS = [b"\0\0\0\0\0\x05hello", b"\3\0\0\0\1\0\0" + bytes(range(100)), b"\2\2\0\0\1" + b"\1\0\2\5" * 30]
