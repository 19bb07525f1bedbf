r"""The checkpoint, which saves a start from reading old records: one file, replaced whole, and a copy of it.

    CRC\n
    JSON: how far each stream was read: segment number, offset
    JSON: a segment, its end, whether it is damaged, and its messages: id, offset, length, facts
    …

A message below its stream's position that is not listed has ended.  Segments are removed only after both
copies are written, so either copy alone is enough.
Guarantees, once `write` returned: both copies are durable.  Crash, or an error, before: one copy may be older
than the other, and either is right, as nothing was removed.
"""

import json
from collections.abc import Callable, Mapping

from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.replacing import put_in_place
from relay.spool.log.index import Index, RecordPlace
from relay.spool.log.layout import LogLayout, SegmentName
from relay.spool.log.record import Position, sealed, unsealed

Checkpoint = tuple[Index, dict[str, Position]]


def encode(index: Index, positions: Mapping[str, Position]) -> bytes:
    """Encode only the sections that changed; reuse the others."""
    rows: dict[SegmentName, list[list[object]]] = {}
    for queue_id, place in index.places.items():
        if place.segment.section is None:
            known = [index.facts[queue_id].as_json()] if queue_id in index.facts else []
            rows.setdefault(place.segment.name, []).append([queue_id, place.offset, place.length, *known])
    for name, segment in index.segments.items():
        if segment.section is None:
            is_needed = name in rows or segment.is_damaged
            values = [*name, segment.end, segment.is_damaged, rows.get(name, [])]
            segment.section = _line(values) if is_needed else b""
    body = _line(positions) + b"".join([segment.section or b"" for segment in index.segments.values()])
    return sealed(body)


def decode(raw: bytes) -> Checkpoint:
    """Raise ValueError, TypeError or LookupError for a damaged checkpoint."""
    body = unsealed(raw)
    if body is None:
        raise ValueError("a checkpoint that does not match its checksum")
    first, *sections = body.splitlines(keepends=True)
    index, read = Index(), []
    for line in sections:
        stream, number, end, is_damaged, rows = json.loads(line)
        segment = index.segment(SegmentName(stream, number))
        segment.end, segment.is_damaged = end, is_damaged
        read.append(segment)
        for queue_id, offset, length, *known in rows:
            index.put(queue_id, RecordPlace(segment, offset, length))
            for each in known:
                index.apply_facts(queue_id, each)
    for segment, line in zip(read, sections, strict=True):
        segment.section = line
    return index, {stream: Position(*at) for stream, at in json.loads(first).items()}


def write(disk: Disk, layout: LogLayout, content: bytes) -> None:
    """Raise OSError."""
    for path in layout.checkpoints:
        with opened(disk, put_in_place(disk, path, content)):
            pass


def read(disk: Disk, layout: LogLayout, on_damaged: Callable[[bytes, str], object]) -> Checkpoint:
    """Return what the first good copy says; empty values if both are absent or damaged.

    `on_damaged` gets the bytes and the fault of a damaged copy.  Raises OSError if the disk gives none.
    """
    unread: OSError | None = None
    for path in layout.checkpoints:
        raw = b""
        try:
            with opened(disk, disk.open_read(path)) as fd:
                raw = disk.pread(fd, disk.size(fd), 0)
            return decode(raw)
        except FileNotFoundError:
            pass
        except (ValueError, TypeError, LookupError) as fault:
            on_damaged(raw, str(fault))
        except OSError as error:
            unread = error
    if unread is not None:
        raise unread
    return Index(), {}


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
