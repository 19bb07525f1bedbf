r"""What a start need not read again: one file, replaced whole, and a second copy of it.

    relay-checkpoint 1 CRC\n
    JSON: how far each stream was read: segment number, offset, messages
    JSON: a segment, whether it is damaged, and its messages: id, offset, length, and what was said of it
    …

What lies below a stream's position and is not listed has ended.  So no segment goes that either copy needs:
segments are removed only when both are written, and damage of one file costs nothing.
Guarantees, once `write` returned: both are durable.  Crash, or an error, before: one may be older than the
other, and either is right, as nothing was removed.
"""

import contextlib
import json
import zlib
from collections.abc import Callable
from typing import NamedTuple

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.os_errors import is_not_now
from relay.spool.disk.replacing import put_in_place
from relay.spool.interface import Corrupt
from relay.spool.log.facts import Facts
from relay.spool.log.index import Index, Place, Segment
from relay.spool.log.layout import Layout, SegmentName

_MAGIC = b"relay-checkpoint 1 "
_HEAD_BYTES = len(_MAGIC) + 8 + 1
OnDamaged = Callable[[bytes, str], None]
"""Given what a damaged checkpoint holds, and what is wrong with it."""


class Read(NamedTuple):
    """How far a stream was read."""

    number: int = 0
    at: int = 0
    messages: int = 0


def encode(index: Index, positions: dict[str, Read]) -> bytes:
    lines = [_line(positions)]
    for segment in index.segments.values():
        if segment.live or segment.is_damaged:
            if segment.section is None:
                segment.section = _section(index, segment)
            lines.append(segment.section)
    body = b"".join(lines)
    return b"%s%08x\n%s" % (_MAGIC, zlib.crc32(body), body)


def decode(raw: bytes) -> tuple[Index, dict[str, Read]]:
    """Raise Corrupt."""
    body = raw[_HEAD_BYTES:]
    if raw[:_HEAD_BYTES] != b"%s%08x\n" % (_MAGIC, zlib.crc32(body)):
        raise Corrupt("a checkpoint that does not match its checksum")
    first, *sections = body.splitlines(keepends=True)
    index = Index()
    for line in sections:
        stream, number, is_damaged, rows = json.loads(line)
        segment = index.segment(SegmentName(stream, number))
        segment.is_damaged, segment.section = is_damaged, line
        for own, offset, length, *known in rows:
            queue_id = QueueId(own)
            segment.live[queue_id] = Place(offset, length).packed()
            segment.live_bytes += length
            index.where[queue_id] = segment
            for each in known:
                facts = index.facts[queue_id] = Facts()
                facts.apply(each)
                for at, begin, size in each.get("notes", ()):
                    index.note(queue_id, facts, (at, begin, size))
    return index, {stream: Read(*read) for stream, read in json.loads(first).items()}


def write(disk: Disk, layout: Layout, content: bytes) -> None:
    """Raise OSError."""
    for path in layout.checkpoints:
        with opened(disk, put_in_place(disk, path, content)):
            pass


def read(disk: Disk, layout: Layout, on_damaged: OnDamaged) -> tuple[Index, dict[str, Read]]:
    """Return what either copy says; nothing where there is none, or both are damaged.

    Raises OSError where the disk gives neither.
    """
    unread: OSError | None = None
    for path in layout.checkpoints:
        raw = b""
        try:
            with opened(disk, disk.open_read(path)) as fd:
                raw = disk.pread(fd, disk.size(fd), 0)
            return decode(raw)
        except FileNotFoundError:
            continue
        except Corrupt as fault:
            on_damaged(raw, str(fault))
            with contextlib.suppress(OSError):
                disk.unlink(path)
        except OSError as error:
            if not is_not_now(error):
                raise
            unread = error
    if unread is not None:
        raise unread
    return Index(), {}


def _section(index: Index, segment: Segment) -> bytes:
    rows: list[list[object]] = []
    for queue_id, number in segment.live.items():
        # As `unpacked`, which costs four times as much.
        row: list[object] = [queue_id, number >> 64, number >> 32 & 0xFFFFFFFF]
        if (facts := index.facts.get(queue_id)) is not None:
            row.append(facts.as_json())
        rows.append(row)
    return _line([*segment.name, segment.is_damaged, rows])


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
