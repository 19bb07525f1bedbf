"""The bytes of a history file.  Pure.

Text, one fact a line, so that `cat` shows it:

    relay-history 3 6e2f…c1 5f3a9c01          version, boot id, CRC-32 of the text before it
    group 115 1b2c3d4e                        so many bytes follow, with this CRC-32
    at 8412345678901 1760000000123456789 1760000000123456789
    reserved 8412345678901 8414145678901 1 3 0 5120 sender=a@b.example:1:3/5120
    ended 8412000000000 8412300000000

A group is what was appended at once; it is there whole or not at all.  Behind the last one the file may have
zeros: room for the next ones, so that the file need not grow with each.  A version that knows of no room cuts
it off as what a crash tore.  The lines of a group:

    at BOOTTIME WALL MARK                      when it was written, by both clocks
    reserved ID DEADLINE MESSAGES RECIPIENTS CONNECTIONS BYTES SHARE…
                                               a transaction may be in flight from now on
    ended ID INSTANT                           it ended
    charged INSTANT MESSAGES RECIPIENTS CONNECTIONS BYTES START SHARE…
                                               so much ended then; what is left of older lines
    merged INSTANT MESSAGES RECIPIENTS CONNECTIONS BYTES START SHARE…
                                               the same of several ends, rounded up to one instant
    highest SINCE UNTIL AT_MOST EARLIER MOST INSTANT KEY UNIT PERIOD FOR_EACH
                                               what a limit held before ends were merged: `Highest`
    reading SINCE UNTIL LEAST MOST             how far the wall clock was ahead of boottime in between,
                                               at the least and at the most; `-`: nobody knows
    begun INSTANT                              the first slot that the account ever had

A share is `FOR_EACH=KEY:MESSAGES:RECIPIENTS/BYTES`: so much of it was of this sender, domain or
client.  A line has shares of those kinds of key that some limit of its writer had; what
has none of a kind may have been of any key, and counts for every one.

All instants but WALL and MARK are boottime of the boot that the first line names, in
nanoseconds, negative if before it.  MARK is the latest that the wall clock has ever
implied that instant to be: the high-water mark for ages across a reboot.  START is when the
first of it was reserved, or `-` where that was not kept.

BYTES is `-`, and left out of a share, where it was not kept: as many as any limit allows.  PERIOD is a
number of nanoseconds, or the period of a calendar such as `day/UTC`.  Each `at` is a reading, too.

Versions 1 and 2 are read too, and written anew as version 3 before anything is added.  Version 2
had no BYTES, `reading` and `begun`; version 1 no connections, starts and shares either, so `reserved`
and `charged` end after RECIPIENTS.

The high-water mark.  The file's lock holds one line, written in place within one sector:

    relay-history-end +000001760000000123456789 1b2c3d4e

The number is the MARK of a group.  Marks ascend through groups, rewrites and boots, by a nanosecond
at least, so no two groups have the same.  The line is written once that group is durable, and is not
synced itself: whatever a crash keeps of it, it is never ahead of the file, and it costs no wait.  A
history whose last whole group has a lesser mark has lost durable groups: it was cut, damaged at its
end, removed, or put back from a copy.  A kill takes nothing of the line.  A power cut may take what
the kernel had not yet written back by itself, some half a minute, or leave it torn: then there is
less to compare with, or nothing.  An empty lock, as older versions leave it, says nothing either.

Does not: touch a disk, or know what time it is.
"""

import functools
import re
import zlib
from collections.abc import Iterable
from typing import NamedTuple, cast, get_args

from relay.clock import SECOND_NS
from relay.mail.address import comparable, comparable_domain, folded
from relay.mail.text import clean
from relay.throttle.limit import LONGEST_KEY as LONGEST_KEY  # noqa: PLC0414 - part of the door
from relay.throttle.limit import ForEach, Unit

UNKNOWN = "%"
"""Stands in a share for keys that are no longer told apart; `key_of` makes no such key."""
ALIKE_NS = SECOND_NS
"""Readings of the wall clock that differ by no more are one."""


class HistoryError(Exception):
    """The history cannot be read or written, so nothing may be sent: the account fails closed.

    The text is for the operator: which file, what is wrong, what to do.
    """


class Share(NamedTuple):
    for_each: str
    """Which kind of key; a limit that counts for each of them names it the same."""
    key: str
    messages: int
    recipients: int
    bytes: int | None = None
    """None where that was not kept."""

    def of(self, unit: Unit) -> int:
        """Return its weight; UNKNOWN_BYTES where that was not kept."""
        if unit == "bytes":
            return UNKNOWN_BYTES if self.bytes is None else self.bytes
        return self.messages if unit == "messages" else self.recipients


Weights = tuple[int, int, int]
"""Messages, recipients and connections."""
UNKNOWN_BYTES = 1 << 40
"""The most that a limit can allow."""


class Reserved(NamedTuple):
    id: int
    """Unique within a boot: the instant of the reservation, made so."""
    deadline_ns: int
    messages: int
    recipients: int
    connections: int = 0
    shares: tuple[Share, ...] = ()
    bytes: int | None = None
    """None where that was not kept."""

    @property
    def weights(self) -> Weights:
        return self.messages, self.recipients, self.connections

    def of(self, unit: Unit) -> int:
        return _of(self.weights, self.bytes, unit)


class Ended(NamedTuple):
    id: int
    ended_at_ns: int


class Charged(NamedTuple):
    ended_at_ns: int
    messages: int
    recipients: int
    connections: int = 0
    started_at_ns: int | None = None
    """When the first of them was reserved; None where that was not kept."""
    shares: tuple[Share, ...] = ()
    is_merged: bool = False
    """The parts ended at that instant or somewhat before it."""
    bytes: int | None = None

    @property
    def weights(self) -> Weights:
        return self.messages, self.recipients, self.connections

    def of(self, unit: Unit) -> int:
        return _of(self.weights, self.bytes, unit)


def charged_as(reserved: Reserved, ended_at_ns: int) -> Charged:
    """Return what a reservation is once it has ended."""
    return Charged(ended_at_ns, *reserved.weights, reserved.id, reserved.shares, bytes=reserved.bytes)


def _of(weights: Weights, size_bytes: int | None, unit: Unit) -> int:
    messages, recipients, connections = weights
    match unit:
        case "messages":
            return messages
        case "recipients":
            return recipients
        case "connections":
            return connections
        case _:
            return UNKNOWN_BYTES if messages and size_bytes is None else size_bytes or 0


class Highest(NamedTuple):
    """The most that a limit of one unit, T and kind of key held, counted before ends were merged."""

    since_ns: int
    until_ns: int
    """From the first on, and before the second, it held no more than `at_most`."""
    at_most: int
    earlier: int
    """No more than this before; that is known only roughly.  0 where all of the past is in `at_most`."""
    most: int
    """At one instant before `until_ns` it held this, for sure."""
    most_at_ns: int | None
    """The first such instant; None where it never held anything that is known exactly."""
    key: str | None
    unit: Unit
    per_ns: int
    for_each: ForEach | None
    only: str | None
    calendar: str | None = None
    """The name of its periods; None where windows slide."""


class ClockReading(NamedTuple):
    """How far the wall clock was ahead of boottime, as far as it was read between two instants."""

    since_ns: int
    until_ns: int
    least_ns: int
    most_ns: int | None
    """None: not known."""


class Begun(NamedTuple):
    """When the account had its first slot."""

    at_ns: int


Record = Reserved | Ended | Highest | Charged | ClockReading | Begun


class At(NamedTuple):
    boottime_ns: int
    wall_ns: int
    mark_ns: int
    """The wall clock's high-water mark, carried on by boottime: at least `wall_ns`."""


class Contents(NamedTuple):
    records: list[Record]
    at: At | None
    """Of the last whole group; None if there is none."""
    end: int
    """The offset in `content` behind the last whole group; what follows was torn."""
    readings: tuple[ClockReading, ...] = ()
    """What its groups say of the wall clock; those that say the same are one."""


ROOM = b"\0"
SEARCHED_TIMES = 4
"""How often the octets behind a damaged group are looked at, at most: work stays linear."""

_VERSION = b"relay-history 3 "
_WORD = b"relay-history "
_ANY_VERSION = re.compile(_WORD + rb"[0-9]")
_HEADER = re.compile(rb"(relay-history [123] ([0-9A-Za-z-]{1,64})) ([0-9a-f]{8})\n")
_GROUP = re.compile(rb"group ([0-9]{1,9}) ([0-9a-f]{8})\n")
"""Not anchored at a line's start: the end of the line before it may be damaged."""
_NUMBER = "-?[0-9]{1,24}"
# A key may have colons and slashes, so a share is read from its end.
_NUMBERS = ":([0-9]{1,18}):([0-9]{1,18})(?:/([0-9]{1,18}))?"
_SHARE = re.compile(rf" ([a-z_]{{1,32}})=([!-~]{{0,96}}){_NUMBERS}(?= |\Z)")
_SHARES = "((?: [a-z_]{1,32}=[!-~]{0,96}:[0-9]{1,18}:[0-9]{1,18}(?:/[0-9]{1,18})?)*)"
# A negative weight would make room for others.
_WEIGHT = "([0-9]{1,24})"
_ENDED = re.compile(rf"ended ({_NUMBER}) ({_NUMBER})")
# Version 1 ends each line behind RECIPIENTS.
_BYTES = f"(?: ({_WEIGHT[1:-1]}|-))?"
_RESERVED = re.compile(
    rf"reserved ({_NUMBER}) ({_NUMBER}) {_WEIGHT} {_WEIGHT}(?: {_WEIGHT}{_BYTES}{_SHARES})?"
)
_CHARGED = re.compile(
    rf"(charged|merged) ({_NUMBER}) {_WEIGHT} {_WEIGHT}(?: {_WEIGHT}{_BYTES} ({_NUMBER}|-){_SHARES})?"
)
_KEY = "=([!-~]{0,96})"
_HIGHEST = re.compile(
    rf"highest ({_NUMBER}) ({_NUMBER}) {_WEIGHT} {_WEIGHT} {_WEIGHT} ({_NUMBER}|-) (?:{_KEY}|-) "
    rf"({'|'.join(get_args(Unit))}) (?:{_WEIGHT}|([a-z]{{1,16}}/[A-Za-z0-9_+/-]{{1,99}})) "
    rf"(?:({'|'.join(get_args(ForEach))})(?:{_KEY})?|-)"
)
_READING = re.compile(rf"reading ({_NUMBER}) ({_NUMBER}) ({_NUMBER}) ({_NUMBER}|-)")
_BEGUN = re.compile(rf"begun ({_NUMBER})")
_AT = re.compile(rf"at ({_NUMBER}) ({_NUMBER}) ({_NUMBER})")
_OF_ADDRESSES = frozenset({"sender", "sender_domain", "recipient_domain"})
_RESPELLED = re.compile(r'["\\%\[]|xn--|\.\Z')
"""A key that may have another form today; most have none of these."""
_OCTET = re.compile(rb"%([0-9a-f]{2})")
_UNFIT_FOR_A_KEY = re.compile(rb"[^!-$&-~]")

MARK_BYTES = 53
_MARK_WORD = b"relay-history-end "
_MARK = re.compile(rb"(relay-history-end ([+-][0-9]{24})) ([0-9a-f]{8})\n")


def key_of(text: str) -> str:
    """Return a domain or a client as a share names it: printable ASCII, and never too long."""
    return _quoted(text)[-LONGEST_KEY:]


def address_key(text: str) -> str:
    """Return an address in its comparable form as a share names it.

    Without quotes and backslashes: these tell a key of an older version, which kept addresses as spelled.
    """
    return _quoted(text).replace('"', "%22").replace("\\", "%5c")[-LONGEST_KEY:]


def _quoted(text: str) -> str:
    quoted = _UNFIT_FOR_A_KEY.sub(
        lambda found: b"%%%02x" % found[0][0], text.encode("utf-8", "surrogatepass")
    )
    return quoted.decode("ascii")


def comparable_key(for_each: str, key: str) -> str:
    """Give a key of any version its form of today; UNKNOWN where that is lost."""
    if key == UNKNOWN or for_each not in _OF_ADDRESSES or not _RESPELLED.search(key):
        return key
    return _respelled(key, is_sender=for_each == "sender")


@functools.lru_cache(4096)  # each is in many lines
def _respelled(key: str, *, is_sender: bool) -> str:
    is_old = is_sender and ('"' in key or "\\" in key)
    if len(key) >= LONGEST_KEY:
        # Cut in front: of what stood in quotes nothing tells whose it was.
        return UNKNOWN if is_old else key
    try:
        text = _OCTET.sub(lambda found: bytes.fromhex(found[1].decode()), key.encode()).decode(
            "utf-8", "surrogatepass"
        )
    except UnicodeDecodeError:
        return key
    if not is_sender:
        return key_of(comparable_domain(text))
    if is_old:
        return address_key(comparable(text))
    local, at, domain = text.rpartition("@")
    return address_key(f"{folded(local)}{at}{comparable_domain(domain) if at else folded(domain)}")


def shifted(record: Record, by_ns: int) -> Record:
    """Tell a record in another timeline.  Ids are instants, and move along."""
    match record:
        case Reserved():
            return record._replace(id=record.id + by_ns, deadline_ns=record.deadline_ns + by_ns)
        case Ended():
            return Ended(record.id + by_ns, record.ended_at_ns + by_ns)
        case Highest():
            most_at_ns = None if record.most_at_ns is None else record.most_at_ns + by_ns
            return record._replace(
                since_ns=record.since_ns + by_ns, until_ns=record.until_ns + by_ns, most_at_ns=most_at_ns
            )
        case ClockReading(since_ns, until_ns, least_ns, most_ns):
            # The same wall clock, seen from instants that are called otherwise.
            most_ns = None if most_ns is None else most_ns - by_ns
            return ClockReading(since_ns + by_ns, until_ns + by_ns, least_ns - by_ns, most_ns)
        case Begun():
            return Begun(record.at_ns + by_ns)
        case Charged():
            started_at_ns = None if record.started_at_ns is None else record.started_at_ns + by_ns
            return record._replace(ended_at_ns=record.ended_at_ns + by_ns, started_at_ns=started_at_ns)


def header(boot_id: str) -> bytes:
    line = _VERSION + boot_id.encode("ascii")
    return line + f" {zlib.crc32(line):08x}\n".encode()


def group(at: At, records: Iterable[Record]) -> bytes:
    lines = [f"at {at.boottime_ns} {at.wall_ns} {at.mark_ns}\n"]
    lines += [_line(record) for record in records]
    content = "".join(lines).encode("ascii")
    return f"group {len(content)} {zlib.crc32(content):08x}\n".encode() + content


def is_current(content: bytes) -> bool:
    """Whether groups may be appended; else the file is first written anew."""
    return content.startswith(_VERSION)


def is_begun(sector: bytes) -> bool:
    """Whether a file whose first sector holds this may be a history that a crash cut off.

    The crash may leave the whole sector, a part of it with zeros for the rest, or nothing.
    """
    front = sector.rstrip(b"\0")
    return _ANY_VERSION.match(front) is not None or _WORD.startswith(front)


def read_header(content: bytes) -> tuple[str, int]:
    """Return the boot id and the offset of the first group.  Raises HistoryError."""
    match = _HEADER.match(content)
    if match is not None and zlib.crc32(match[1]) == int(match[3], 16):
        return match[2].decode(), match.end()
    start = clean(content[:40])
    if re.match(rb"relay-history (?![123] )", content):
        raise HistoryError(f"a history of another version of this program: {start!r}")
    raise HistoryError(f"byte 0: not a history, or its first line is damaged: {start!r}")


def read_groups(content: bytes, start: int, origin: int = 0, alike_ns: int = ALIKE_NS) -> Contents:
    """Read whole groups from an offset on; `origin` is where `content` stands in its file.

    Each group is durable before the next begins, so a crash can only tear the last.  A bad group with
    a good one behind it is damage: raises HistoryError.
    """
    records: list[Record] = []
    readings: list[ClockReading] = []
    at: At | None = None
    end = start
    while end < len(content):
        framed = _framed(content, end)
        if framed is None:
            if _may_hold_a_group(content, end + 1):
                raise HistoryError(f"byte {origin + end}: a damaged group with whole groups behind it")
            break
        lines, after = framed
        at = _read_lines(lines, records, origin + end)
        end = after
        ahead_ns = at.wall_ns - at.boottime_ns
        if not readings or abs(readings[-1].least_ns - ahead_ns) > alike_ns:
            readings.append(ClockReading(at.boottime_ns, at.boottime_ns, ahead_ns, ahead_ns))
        else:
            last = readings[-1]
            most_ns = ahead_ns if last.most_ns is None else max(last.most_ns, ahead_ns)
            least_ns = min(last.least_ns, ahead_ns)
            readings[-1] = ClockReading(last.since_ns, at.boottime_ns, least_ns, most_ns)
    return Contents(records, at, end, tuple(readings))


def _may_hold_a_group(content: bytes, start: int) -> bool:
    """Whether a whole group stands behind an offset, or the search for one is too long.

    A torn tail is a part of one group and holds no such line, so many of them are no trace of a crash.
    """
    left_bytes = SEARCHED_TIMES * len(content)
    for match in _GROUP.finditer(content, start):
        if match.end() + int(match[1]) <= len(content):
            left_bytes -= int(match[1])
        if left_bytes < 0 or _framed(content, match.start()):
            return True
    return False


def _framed(content: bytes, start: int) -> tuple[bytes, int] | None:
    """Return the lines of the group at an offset, and the offset behind it; None if it is not whole."""
    match = _GROUP.match(content, start)
    if match is None:
        return None
    after = match.end() + int(match[1])
    if after > len(content):
        return None
    lines = content[match.end() : after]
    if zlib.crc32(lines) != int(match[2], 16):
        return None
    return lines, after


def _read_lines(lines: bytes, records: list[Record], start: int) -> At:
    """Refuse anything odd: the checksum was right, so another program wrote it."""
    try:
        first, *others = lines.decode("ascii").splitlines()
        if (match := _AT.fullmatch(first)) is None:
            raise ValueError(first)
        at = At(int(match[1]), int(match[2]), int(match[3]))
        records += [_record(line) for line in others]
    except ValueError as error:
        raise HistoryError(f"byte {start}: a group that this version cannot read") from error
    return at


def _line(record: Record) -> str:
    if isinstance(record, Ended):
        return f"ended {record.id} {record.ended_at_ns}\n"
    if isinstance(record, Begun):
        return f"begun {record.at_ns}\n"
    if isinstance(record, ClockReading):
        since_ns, until_ns, least_ns, most_ns = record
        return f"reading {since_ns} {until_ns} {least_ns} {_or_none(most_ns)}\n"
    if isinstance(record, Highest):
        front = f"highest {record.since_ns} {record.until_ns} {record.at_most} {record.earlier} {record.most}"
        key, only = _word_of(record.key) or "-", _word_of(record.only)
        per = record.per_ns if record.calendar is None else record.calendar
        kind = f"{record.unit} {per} {record.for_each or '-'}{only}"
        return f"{front} {_or_none(record.most_at_ns)} {key} {kind}\n"
    if isinstance(record, Reserved):
        front, start = f"reserved {record.id} {record.deadline_ns}", ""
    else:
        front = f"{'merged' if record.is_merged else 'charged'} {record.ended_at_ns}"
        start = f" {_or_none(record.started_at_ns)}"
    weights = " ".join(map(str, (*record.weights, _or_none(record.bytes))))
    shares = map(_share, record.shares)
    return f"{front} {weights}{start}{''.join(shares)}\n"


def _share(share: Share) -> str:
    size = "" if share.bytes is None else f"/{share.bytes}"
    return f" {share.for_each}={share.key}:{share.messages}:{share.recipients}{size}"


def _or_none(at_ns: int | None) -> int | str:
    return "-" if at_ns is None else at_ns


def _word_of(key: str | None) -> str:
    return "" if key is None else f"={key}"


def _record(line: str) -> Record:
    if (match := _ENDED.fullmatch(line)) is not None:
        return Ended(int(match[1]), int(match[2]))
    if (match := _RESERVED.fullmatch(line)) is not None:
        reservation_id, deadline_ns, messages, recipients, connections, size, shares = match.groups()
        weights = _weights(messages, recipients, connections or "0")
        return Reserved(int(reservation_id), int(deadline_ns), *weights, _shares(shares or ""), _size(size))
    if (match := _CHARGED.fullmatch(line)) is not None:
        word, ended_at_ns, messages, recipients, connections, size, start, shares = match.groups()
        if connections is None and word == "merged":
            raise ValueError(line)
        weights = _weights(messages, recipients, connections or "0")
        started_at_ns = None if start in (None, "-") else int(start)
        return Charged(
            int(ended_at_ns), *weights, started_at_ns, _shares(shares or ""), word == "merged", _size(size)
        )
    if (match := _READING.fullmatch(line)) is not None:
        most_ns = None if match[4] == "-" else int(match[4])
        return ClockReading(int(match[1]), int(match[2]), int(match[3]), most_ns)
    if (match := _BEGUN.fullmatch(line)) is not None:
        return Begun(int(match[1]))
    if (match := _HIGHEST.fullmatch(line)) is None:
        raise ValueError(line)
    since_ns, until_ns, at_most, earlier, most = map(int, match.groups()[:5])
    most_at, key, unit, period, calendar, for_each, only = match.groups()[5:]
    return Highest(
        *(since_ns, until_ns, at_most, earlier, most),
        None if most_at == "-" else int(most_at),
        key,
        cast(Unit, unit),
        0 if period is None else int(period),
        cast(ForEach | None, for_each),
        only,
        calendar,
    )


def _size(size: str | None) -> int | None:
    return None if size is None or size == "-" else int(size)


def _weights(messages: str, recipients: str, connections: str) -> Weights:
    counts = int(messages), int(recipients), int(connections)
    if not any(counts):
        raise ValueError(counts)
    return counts


def _shares(words: str) -> tuple[Share, ...]:
    return tuple(
        Share(
            match[1],
            comparable_key(match[1], match[2]),
            int(match[3]),
            int(match[4]),
            None if match[5] is None else int(match[5]),
        )
        for match in _SHARE.finditer(words)
    )


def mark_line(mark_ns: int) -> bytes:
    text = _MARK_WORD + b"%+025d" % mark_ns
    return text + b" %08x\n" % zlib.crc32(text)


def read_mark(content: bytes) -> int | None:
    """None if the lock says nothing.  Raises HistoryError if it is no lock of ours."""
    match = _MARK.match(content)
    if match is not None and zlib.crc32(match[1]) == int(match[3], 16):
        return int(match[2])
    front = content.rstrip(b"\0")
    if not front.startswith(_MARK_WORD) and not _MARK_WORD.startswith(front):
        raise HistoryError("not the lock of a history")
    return None
