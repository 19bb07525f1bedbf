"""The bytes of a history file and of its lock file.  Pure.

A line is the CRC-32 of a JSON array, and the array itself, so that `cat` shows it:

    5f3a9c01 ["relay-history", 6, "6e2f…c1"]
    1b2c3d4e [[8412345678901, 1760000000123456789], ["reserved", 17, …], ["ended", …]]

The first line has the version and the boot id.  Each further line is a group: one commit, valid as a whole
or not at all.  Zeros may follow the last group: room for later groups, so that the file need not grow with
each.  A group has BOOTTIME and MARK, the instant of its writing by both clocks, and its events:

    ["issued", ID]                             no id up to this one is given again
    ["reserved", ID, START, DEADLINE, MESSAGES, RECIPIENTS, CONNECTIONS, BYTES, SHARE…]
                                               a transaction may be in flight from now on
    ["ended", ID, INSTANT]                     it ended
    ["charged", ID, START, END, MESSAGES, RECIPIENTS, CONNECTIONS, BYTES, SHARE…]
                                               it ended at END; ID 0: several, rounded up to one end

A share is [FOR_EACH, KEY, MESSAGES, RECIPIENTS, BYTES]: the part of a slot for one sender, domain, client,
user or lane.  A slot has a share of its lane, and shares of the kinds of key that some limit of its writer
had.  Without shares of some kind it may belong to any key, and counts for every key.

All instants but MARK are boottime of the boot that the first line names, in nanoseconds, negative if before
that boot.  MARK is the latest time that the wall clock has ever implied for that instant: the clock's
high-water mark, carried forward by boottime.

The lock file has one line.  It is written in place, within one sector, after a group is durable; it is not
synced itself:

    1b2c3d4e ["relay-history-end", 1760000000123456789]

If the last whole group has a lower mark, the history has lost durable groups: it was cut, damaged at its
end, removed, or put back from a copy.  A lock without a whole line has no mark.
"""

import json
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from relay.throttle.history import Ended, Event, Issued, Share, Slot

BEGIN_ANEW = (
    "stop the relay, wait for the longest period of the account's limits, "
    "move the history and its .lock away, start the relay"
)
MAKE_OURS = "do not move it; chown it to the relay's user, chmod 600, `relay resume` (or wait a minute)"


class DamagedHistory(Exception):  # noqa: N818 - a state of the file
    """The text says what is wrong, and where."""

    def __init__(self, words: str, advice: str = BEGIN_ANEW) -> None:
        super().__init__(words)
        self.advice = advice
        """How to repair it."""


class At(NamedTuple):
    boottime_ns: int
    mark_ns: int
    """The wall clock's high-water mark, carried forward by boottime."""


class Contents(NamedTuple):
    events: list[Event]
    at: At | None
    """When the last whole group was written; None without a group."""
    end: int
    """The offset behind the last whole group."""
    is_torn: bool
    """Something other than zeros follows the last whole group."""


MARK_BYTES = 64
_JSON = json.JSONEncoder(separators=(",", ":"))


def header(boot_id: str) -> bytes:
    return _line(["relay-history", 6, boot_id])


def group(at: At, events: Iterable[Event]) -> bytes:
    return _line([at, *map(fields_of, events)])


def mark_line(mark_ns: int) -> bytes:
    return _line(["relay-history-end", mark_ns])


def read_header(content: bytes) -> tuple[str, int]:
    """Return the boot id and the offset of the first group.  Raises DamagedHistory."""
    end = content.find(b"\n") + 1
    match _read(content[:end]):
        case ["relay-history", 6, str() as boot_id]:
            return boot_id, end
        case ["relay-history", int(version), *_]:
            raise DamagedHistory(f"its format is version {version}; this relay reads version 6")
    raise DamagedHistory("byte 0: not a history, or its first line is damaged")


def read_groups(content: bytes, start: int, origin: int = 0) -> Contents:
    """Read whole groups from `start` on; `origin` is the offset of `content` in its file.

    Each group is durable before the next begins, so a crash can tear only the last.  A bad group with a whole
    group behind it is damage.  Raises DamagedHistory.
    """
    events: list[Event] = []
    at: At | None = None
    end = start
    while end < len(content):
        behind = content.find(b"\n", end) + 1
        said = _read(content[end:behind])
        if said is None:
            if behind and any(_read(line + b"\n") for line in content[behind:].split(b"\n")):
                raise DamagedHistory(f"byte {origin + end}: a damaged group, followed by whole groups")
            break
        try:
            (boottime_ns, mark_ns), *told = said
            at = At(int(boottime_ns), int(mark_ns))
            events += events_in(told)
        except (ValueError, TypeError) as error:
            # The checksum is right, so another program wrote the group.
            raise DamagedHistory(f"byte {origin + end}: a group that this version cannot read") from error
        end = behind
    return Contents(events, at, end, is_torn=content[end:].strip(b"\0") != b"")


def read_mark(content: bytes) -> int | None:
    """Return the mark in a lock file, or None."""
    match _read(content[: content.find(b"\n") + 1]):
        case ["relay-history-end", int(mark_ns)]:
            return mark_ns
    return None


def fields_of(event: Event) -> list[Any]:
    match event:
        case Ended():
            return ["ended", *event]
        case Issued():
            return ["issued", *event]
        case Slot():
            return ["reserved" if event.is_open else "charged", *event[:7], *event.shares]


def events_in(group: Iterable[list[Any]]) -> list[Event]:
    """Raise ValueError or TypeError if an element is no event."""
    return [_event(words) for words in group]


def _event(words: list[Any]) -> Event:
    match words:
        case ["ended", int(slot_id), int(at_ns)]:
            return Ended(slot_id, at_ns)
        case ["issued", int(slot_id)]:
            return Issued(slot_id)
        case ["reserved" | "charged" as word, slot_id, start_ns, until_ns, m, r, c, size, *shares]:
            known = tuple([Share(*share) for share in shares])
            return Slot(slot_id, start_ns, until_ns, m, r, c, size, known, word == "reserved")
    raise ValueError(words)


def _line(value: Any) -> bytes:
    text = _JSON.encode(value).encode("ascii")
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _read(line: bytes) -> Any:
    """Return the value in a line; None if the line is not whole."""
    text = line[9:-1]
    if line[:9] + line[-1:] != b"%08x \n" % zlib.crc32(text):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None
