"""The bytes of a history file.  Pure.

Text, one fact a line, so that `cat` shows it:

    relay-history 1 6e2f…c1 5f3a9c01          version, boot id, CRC-32 of the text before it
    group 92 1b2c3d4e                         so many bytes follow, with this CRC-32
    at 8412345678901 1760000000123456789 1760000000123456789
    reserved 8412345678901 8414145678901 1 3
    ended 8412000000000 8412300000000

A group is what was appended at once; it is there whole or not at all.  Its lines:

    at BOOTTIME WALL MARK                      when it was written, by both clocks
    reserved ID DEADLINE MESSAGES RECIPIENTS   a transaction may be in flight from now on
    ended ID INSTANT                           it ended
    charged INSTANT MESSAGES RECIPIENTS        so much ended then; what is left of older lines

All instants but WALL and MARK are boottime of the boot that the first line names, in
nanoseconds, negative if before it.  MARK is the latest that the wall clock has ever
implied that instant to be: the high-water mark for ages across a reboot.

Does not: touch a disk, or know what time it is.
"""

import re
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from relay.reply import clean


class HistoryError(Exception):
    """The history cannot be read or written, so nothing may be sent: the account fails closed.

    The text is for the operator: which file, what is wrong, what to do.
    """


class Reserved(NamedTuple):
    """A transaction that may be in flight until its deadline."""

    id: int
    """Unique within a boot: the instant of the reservation, made so."""
    deadline_ns: int
    messages: int
    recipients: int


class Ended(NamedTuple):
    """The end of a reservation."""

    id: int
    ended_at_ns: int


class Charged(NamedTuple):
    """Slots that ended at an instant (rounded up, if old)."""

    ended_at_ns: int
    messages: int
    recipients: int


Record = Reserved | Ended | Charged


class At(NamedTuple):
    """One instant by both clocks."""

    boottime_ns: int
    wall_ns: int
    mark_ns: int
    """The wall clock's high-water mark, carried on by boottime: at least `wall_ns`."""


class Contents(NamedTuple):
    """What some bytes of a history say."""

    records: list[Record]
    at: At | None
    """Of the last whole group; None if there is none."""
    end: int
    """The offset in `content` behind the last whole group; what follows was torn."""


_VERSION = b"relay-history 1 "
_HEADER = re.compile(rb"(relay-history 1 ([0-9A-Za-z-]{1,64})) ([0-9a-f]{8})\n")
_GROUP = re.compile(rb"^group ([0-9]{1,9}) ([0-9a-f]{8})\n", re.MULTILINE)
_KINDS = {"reserved": Reserved, "ended": Ended, "charged": Charged}
_WORDS = {kind: word for word, kind in _KINDS.items()}


def shifted(record: Record, by_ns: int) -> Record:
    """Return a record as another timeline tells it.  Ids are instants, and move along."""
    match record:
        case Reserved():
            return Reserved(record.id + by_ns, record.deadline_ns + by_ns, record.messages, record.recipients)
        case Ended():
            return Ended(record.id + by_ns, record.ended_at_ns + by_ns)
        case Charged():
            return Charged(record.ended_at_ns + by_ns, record.messages, record.recipients)


def header(boot_id: str) -> bytes:
    """Return the first line of a file whose instants belong to this boot."""
    line = _VERSION + boot_id.encode("ascii")
    return line + f" {zlib.crc32(line):08x}\n".encode()


def group(at: At, records: Iterable[Record]) -> bytes:
    """Return one group: what is appended at once."""
    lines = [f"at {at.boottime_ns} {at.wall_ns} {at.mark_ns}\n"]
    lines += [f"{_WORDS[type(record)]} {' '.join(map(str, record))}\n" for record in records]
    content = "".join(lines).encode()
    return f"group {len(content)} {zlib.crc32(content):08x}\n".encode() + content


def read_header(content: bytes) -> tuple[str, int]:
    """Return the boot id and the offset of the first group.  Raises HistoryError."""
    match = _HEADER.match(content)
    if match is not None and zlib.crc32(match[1]) == int(match[3], 16):
        return match[2].decode(), match.end()
    start = clean(content[:40])
    if content.startswith(b"relay-history ") and not content.startswith(_VERSION):
        raise HistoryError(f"a history of another version of this program: {start!r}")
    raise HistoryError(f"byte 0: not a history, or its first line is damaged: {start!r}")


def read_groups(content: bytes, start: int, origin: int = 0) -> Contents:
    """Return what whole groups say, from an offset on; `origin` is where `content` stands in its file.

    Only the last group can have been torn by a crash, since each is durable before the
    next begins.  So a bad one with a good one behind it is damage: raises HistoryError.
    """
    records: list[Record] = []
    at: At | None = None
    end = start
    while end < len(content):
        framed = _framed(content, end)
        if framed is None:
            if any(_framed(content, match.start()) for match in _GROUP.finditer(content, end + 1)):
                raise HistoryError(f"byte {origin + end}: a damaged group with whole groups behind it")
            break
        lines, after = framed
        at = _read_lines(lines, records, origin + end)
        end = after
    return Contents(records, at, end)


def _framed(content: bytes, start: int) -> tuple[bytes, int] | None:
    """Return the lines of the group at an offset, and the offset behind it; None if it is not whole."""
    match = _GROUP.match(content, start)
    if match is None:
        return None
    after = match.end() + int(match[1])
    lines = content[match.end() : after]
    if len(lines) != int(match[1]) or zlib.crc32(lines) != int(match[2], 16):
        return None
    return lines, after


def _read_lines(lines: bytes, records: list[Record], start: int) -> At:
    """Add the records of one group; its checksum was right, so anything odd is another program's."""
    try:
        first, *others = lines.decode("ascii").splitlines()
        at = At(*_numbers(first, "at"))
        for line in others:
            word = line.partition(" ")[0]
            records.append(_KINDS[word](*_numbers(line, word)))
    except (ValueError, KeyError, TypeError) as error:
        raise HistoryError(f"byte {start}: a group that this version cannot read") from error
    return at


def _numbers(line: str, word: str) -> Sequence[int]:
    first, *numbers = line.split(" ")
    if first != word:
        raise ValueError(line)
    return [int(number) for number in numbers]
