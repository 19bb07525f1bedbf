"""The bytes of a history file, and those of its lock.  Pure.

Text, one fact a line, so that `cat` shows it:

    relay-history 4 6e2f…c1 5f3a9c01          version, boot id, CRC-32 of the text before it
    group 115 1b2c3d4e                        so many bytes follow, with this CRC-32
    at 8412345678901 1760000000123456789 1760000000123456789
    reserved 17 8412345678901 8414145678901 1 3 0 5120 sender=a@b.example:1:3:5120
    ended 16 8412300000000

A group is one commit; it is there whole or not at all.  Behind the last one the file may have zeros: room
for the next ones, so that the file need not grow with each.  The lines of a group:

    at BOOTTIME WALL MARK                      when it was written, by both clocks
    issued ID                                  no id up to this one is given again
    reserved ID START DEADLINE MESSAGES RECIPIENTS CONNECTIONS BYTES SHARE…
                                               a transaction may be in flight from now on
    ended ID INSTANT                           it ended
    charged ID START END MESSAGES RECIPIENTS CONNECTIONS BYTES SHARE…
                                               so much ended then; ID 0: several, rounded up to one instant

A share is `FOR_EACH=KEY:MESSAGES:RECIPIENTS:BYTES`: so much of it was of this sender, domain, client,
user or lane.  A line has shares of those kinds of key that some limit of its writer had; what has none of
a kind may have been of any key, and counts for every one, as does the key `%`.

All instants but WALL and MARK are boottime of the boot that the first line names, in nanoseconds,
negative if before it.  MARK is the latest that the wall clock has ever implied that instant to be: the
high-water mark for ages across a reboot.  Marks ascend through groups, rewrites and boots, so no two
groups have the same.

The lock holds one line, written in place within one sector once a group is durable, and not synced itself:

    relay-history-end +000001760000000123456789 1b2c3d4e

A history whose last whole group has a lesser mark has lost durable groups: it was cut, damaged at its end,
removed, or put back from a copy.  An empty or torn lock says nothing.
"""

import re
import zlib
from collections.abc import Iterable
from typing import NamedTuple

from relay.mail.text import clean
from relay.throttle.events import Ended, Event, Issued, Share, Slot


class DamagedHistory(Exception):  # noqa: N818 - a state of the file
    """What is wrong, and where."""


class At(NamedTuple):
    boottime_ns: int
    wall_ns: int
    mark_ns: int
    """The wall clock's high-water mark, carried on by boottime: at least `wall_ns`."""


class Contents(NamedTuple):
    events: list[Event]
    at: At | None
    """Of the last whole group; None if there is none."""
    end: int
    """The offset behind the last whole group; what follows was torn."""
    first_end: int
    """The offset behind the first group."""


MARK_BYTES = 53
_VERSION = b"relay-history 4 "
_HEADER = re.compile(rb"(relay-history 4 ([0-9A-Za-z-]{1,64})) ([0-9a-f]{8})\n")
_GROUP = re.compile(rb"group ([0-9]{1,9}) ([0-9a-f]{8})\n")
_SEARCHED_TIMES = 4
"""How often the octets behind a damaged group are looked at, at most: work stays linear."""
_AT = re.compile("at (-?[0-9]{1,24}) (-?[0-9]{1,24}) (-?[0-9]{1,24})")
_MARK_WORD = b"relay-history-end "
_MARK = re.compile(rb"(relay-history-end ([+-][0-9]{24})) ([0-9a-f]{8})\n")


def header(boot_id: str) -> bytes:
    line = _VERSION + boot_id.encode("ascii")
    return line + b" %08x\n" % zlib.crc32(line)


def group(at: At, events: Iterable[Event]) -> bytes:
    lines = [f"at {at.boottime_ns} {at.wall_ns} {at.mark_ns}\n", *map(_line, events)]
    content = "".join(lines).encode("ascii")
    return b"group %d %08x\n" % (len(content), zlib.crc32(content)) + content


def read_header(content: bytes) -> tuple[str, int]:
    """Return the boot id and the offset of the first group.  Raises DamagedHistory."""
    match = _HEADER.match(content)
    if match is not None and zlib.crc32(match[1]) == int(match[3], 16):
        return match[2].decode(), match.end()
    start = clean(content[:40])
    if re.match(rb"relay-history (?!4 )", content):
        raise DamagedHistory(f"a history of another version of this program: {start!r}")
    raise DamagedHistory(f"byte 0: not a history, or its first line is damaged: {start!r}")


def read_groups(content: bytes, start: int, origin: int = 0) -> Contents:
    """Read whole groups from an offset on; `origin` is where `content` stands in its file.

    Each group is durable before the next begins, so a crash can only tear the last.  A bad group with
    a good one behind it is damage.  Raises DamagedHistory.
    """
    events: list[Event] = []
    at: At | None = None
    end = first_end = start
    while end < len(content):
        framed = _framed(content, end)
        if framed is None:
            if _may_hold_a_group(content, end + 1):
                raise DamagedHistory(f"byte {origin + end}: a damaged group with whole groups behind it")
            break
        lines, end_of_group = framed
        at = _read_lines(lines, events, origin + end)
        first_end = first_end if first_end > start else end_of_group
        end = end_of_group
    return Contents(events, at, end, first_end)


def mark_line(mark_ns: int) -> bytes:
    text = _MARK_WORD + b"%+025d" % mark_ns
    return text + b" %08x\n" % zlib.crc32(text)


def read_mark(content: bytes) -> int | None:
    """Return None if the lock says nothing.  Raises DamagedHistory if it is no lock of ours."""
    match = _MARK.match(content)
    if match is not None and zlib.crc32(match[1]) == int(match[3], 16):
        return int(match[2])
    front = content.rstrip(b"\0")
    if not front.startswith(_MARK_WORD) and not _MARK_WORD.startswith(front):
        raise DamagedHistory("not the lock of a history")
    return None


def _may_hold_a_group(content: bytes, start: int) -> bool:
    """Whether a whole group stands behind an offset, or the search for one is too long.

    A torn tail is a part of one group and holds no such line, so many of them are no trace of a crash.
    """
    left_bytes = _SEARCHED_TIMES * len(content)
    for match in _GROUP.finditer(content, start):
        if match.end() + int(match[1]) <= len(content):
            left_bytes -= int(match[1])
        if left_bytes < 0 or _framed(content, match.start()):
            return True
    return False


def _framed(content: bytes, start: int) -> tuple[bytes, int] | None:
    """Return the lines of the group at an offset, and the offset behind it; None if it is not whole."""
    match = _GROUP.match(content, start)
    if match is None or (end := match.end() + int(match[1])) > len(content):
        return None
    lines = content[match.end() : end]
    return (lines, end) if zlib.crc32(lines) == int(match[2], 16) else None


def _read_lines(lines: bytes, events: list[Event], start: int) -> At:
    """Refuse anything odd: the checksum was right, so another program wrote it."""
    try:
        first, *others = lines.decode("ascii").splitlines()
        if (match := _AT.fullmatch(first)) is None:
            raise ValueError(first)
        events += map(_event, others)
    except ValueError as error:
        raise DamagedHistory(f"byte {start}: a group that this version cannot read") from error
    return At(int(match[1]), int(match[2]), int(match[3]))


def _line(event: Event) -> str:
    match event:
        case Ended(slot_id, at_ns):
            return f"ended {slot_id} {at_ns}\n"
        case Issued(slot_id):
            return f"issued {slot_id}\n"
        case Slot():
            word = "reserved" if event.is_open else "charged"
            shares = (f" {kind}={key}:{m}:{r}:{b}" for kind, key, m, r, b in event.shares)
            return f"{word} {' '.join(map(str, event[:7]))}{''.join(shares)}\n"


def _event(line: str) -> Event:
    """Raise ValueError where it is none."""
    word, *words = line.split(" ")
    match word, words:
        case "ended", [slot_id, at_ns]:
            return Ended(int(slot_id), int(at_ns))
        case "issued", [slot_id]:
            return Issued(int(slot_id))
        case "reserved" | "charged", [
            slot_id,
            start_ns,
            until_ns,
            messages,
            recipients,
            connections,
            size,
            *shares,
        ]:
            weights = int(messages), int(recipients), int(connections), int(size)
            instants = int(start_ns), int(until_ns)
            slot = Slot(int(slot_id), *instants, *weights, tuple(map(_share, shares)), word == "reserved")
            # A negative weight would make room for others.
            if min(weights) >= 0 and slot.id >= slot.is_open:
                return slot
    raise ValueError(line)


def _share(word: str) -> Share:
    # A key may have colons, so a share is read from its end.
    kind, _, rest = word.partition("=")
    key, *numbers = rest.rsplit(":", 3)
    messages, recipients, size = map(int, numbers)
    if min(messages, recipients, size) < 0:
        raise ValueError(word)
    return Share(kind, key, messages, recipients, size)
