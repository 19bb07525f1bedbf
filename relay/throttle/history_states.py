"""What may be found of a history, and what becomes of it: one table for the relay and `relay fsck`.  Pure.

`TABLE` has a cell for each event and each state of a process's knowledge.  A relay that uses the
history goes through it event by event; `relay fsck` asks it what a relay that starts now would do.
`examine` and `missing` name the events in the bytes of a history.  docs/history-states.md is made
of this file by `make docs`.

Fails closed: an event without a row of its own refuses.
"""

import errno
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from relay.clock import SECOND_NS
from relay.throttle.history_format import (
    ALIKE_NS,
    ROOM,
    At,
    HistoryError,
    Record,
    is_current,
    read_groups,
    read_header,
)

LARGEST_BYTES = 256 * 1024 * 1024
"""No history of ours is a tenth of this; reading more would be a memory bomb."""
CLOCK_SKEW_NS = SECOND_NS
"""How far the clocks of two CPUs may differ; more is another time namespace."""


class Known(Enum):
    UNREAD = "memory is not relied on: the next look reads the whole file"
    SOUND = "memory holds the whole file: the next append adds a group"
    OUTDATED = "memory holds the whole history: the next append writes a new file"
    DOUBTED = "neither is relied on: the next look reads the file, the next append writes a new one"


class Event(Enum):
    LOOK = "a decision begins: what is in the file?"
    OTHER_FILE = "another file has its name: another process rewrote it, or an operator put one back"
    APPEND = "records are to become durable"

    ABSENT = "there is no file, and no sign that there ever was"
    GONE = "the file is gone, cut or overwritten, and memory holds all that its lock says it had"
    WHOLE = "whole groups, and nothing behind them but room"
    TORN = "whole groups, and a part of one behind them: it was never durable, so nothing was sent on it"
    OLD_FORMAT = "an older version wrote it"
    OTHER_BOOT = "its instants are those of another boot"

    LOST = "there is no file, and its lock says there was one"
    UNMARKED = "the file is gone, cut or overwritten, and its lock does not say how far it reached"
    BEHIND = "its last group is older than its lock says: durable groups are lost"
    DAMAGED = "it is no history, or of an unknown version, or damaged before its end"
    OVERSIZED = "it is too long to be a history"
    FOREIGN = "something else than a file has its name"
    OWNER = "it belongs to another user, or others may write it"
    FUTURE = "its last group is later than now: another time namespace wrote it"
    OTHER_HOST = "another boot wrote it while this one uses it: another host shares it"
    LOCK_REPLACED = "the name of its lock is gone, or leads to another file: it excludes no other process"
    LOCK_FOREIGN = "its lock is another program's file"
    NAME_REPLACED = "the name of the file was removed or replaced while it was written"
    DISK_ERROR = "the disk refuses a read or a write"
    UNSYNCED = "a sync failed, or what followed the rename: the disk may not hold what the page cache shows"

    WRITTEN = "the append is durable"


class HistoryEffect(Enum):
    READ_ALL = "forget memory and read the whole file"
    READ_ADDED = "read what was added"
    GO_ON = "go on"
    BEGIN = "go on; the first append creates the file"
    CUT = "cut the tail and go on"
    MOVE = "rewrite it in this boot's time and go on"
    ADD_GROUP = "add a group"
    WRITE_ANEW = "write a new file from memory and rename it"
    REFUSE = "**send nothing**"


class Step(NamedTuple):
    next: Known
    effect: HistoryEffect


def _row(
    effect: HistoryEffect, unread: Known, sound: Known, outdated: Known, doubted: Known
) -> dict[Known, Step]:
    return {
        known: Step(after, effect)
        for known, after in zip(Known, (unread, sound, outdated, doubted), strict=True)
    }


_UNREAD, _SOUND, _OUTDATED, _DOUBTED = Known
_SAME = (_UNREAD, _SOUND, _OUTDATED, _DOUBTED)
_HAS_READ = (_SOUND, _SOUND, _OUTDATED, _OUTDATED)
_READS_AGAIN = (_UNREAD, _UNREAD, _DOUBTED, _DOUBTED)
_REPLACES = (_DOUBTED, _OUTDATED, _OUTDATED, _DOUBTED)
_REFUSED = _row(HistoryEffect.REFUSE, *_READS_AGAIN)

_ROWS = {
    Event.LOOK: _row(HistoryEffect.READ_ALL, *_SAME)
    | {known: Step(known, HistoryEffect.READ_ADDED) for known in (_SOUND, _OUTDATED)},
    Event.OTHER_FILE: _row(HistoryEffect.READ_ALL, *_READS_AGAIN),
    # Until WRITTEN the outcome is not known.
    Event.APPEND: _row(HistoryEffect.WRITE_ANEW, *_READS_AGAIN)
    | {_SOUND: Step(_UNREAD, HistoryEffect.ADD_GROUP)},
    # A process that knows of a history does not begin one.
    Event.ABSENT: _REFUSED | {known: Step(known, HistoryEffect.BEGIN) for known in (_UNREAD, _DOUBTED)},
    Event.GONE: _row(HistoryEffect.GO_ON, *_REPLACES),
    Event.WHOLE: _row(HistoryEffect.GO_ON, *_HAS_READ),
    Event.TORN: _row(HistoryEffect.CUT, *_HAS_READ),
    Event.OLD_FORMAT: _row(HistoryEffect.GO_ON, *_REPLACES),
    Event.OTHER_BOOT: _row(HistoryEffect.MOVE, *_READS_AGAIN),
    Event.UNSYNCED: _row(HistoryEffect.REFUSE, _DOUBTED, _DOUBTED, _DOUBTED, _DOUBTED),
    Event.WRITTEN: _row(HistoryEffect.GO_ON, _SOUND, _SOUND, _SOUND, _SOUND),
}
TABLE: Mapping[Event, Mapping[Known, Step]] = {event: _ROWS.get(event, _REFUSED) for event in Event}

ANEW = (
    "stop, wait for the longest period of the account's limits, move the file and its .lock away, start; "
    "not waiting is how the upstream sees too many"
)
REMEDIES: Mapping[Event, str] = {
    Event.LOST: ANEW,
    Event.UNMARKED: ANEW,
    Event.BEHIND: ANEW,
    Event.DAMAGED: ANEW,
    Event.OVERSIZED: ANEW,
    Event.FOREIGN: f"see what it is; {ANEW}",
    Event.OWNER: "chown it to the relay's user, chmod 600",
    Event.FUTURE: "share no history between time namespaces, as containers may have them",
    Event.OTHER_HOST: "give each host a history of its own",
    Event.LOCK_REPLACED: f"put it and the history back, or {ANEW}",
    Event.LOCK_FOREIGN: "stop, move it away, start",
    Event.NAME_REPLACED: f"put it back, or {ANEW}",
    Event.DISK_ERROR: ANEW,
}
"""What an operator can do; of what the disk refuses a running relay `disk_refusal` says more."""

_IN_THE_WAY = "see what is in its place or in that of its .lock, and move that away"
_OF_ERRORS = {
    errno.EROFS: "mount its file system for writing",
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room on its disk"),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM),
        "give it, its .lock and its folder to the relay's user (chown; chmod 600, and 700 for the folder)",
    ),
    **dict.fromkeys((errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ELOOP), _IN_THE_WAY),
    **dict.fromkeys((errno.ENXIO, errno.ESPIPE, errno.EINVAL), _IN_THE_WAY),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "let the relay open more files (ulimit -n)"),
}


def refusal(path: str, event: Event, what: str) -> HistoryError:
    return HistoryError(f"{path}: {what}; nothing is sent. To repair: {REMEDIES[event]}")


def disk_refusal(path: str, doing: str, error: OSError) -> HistoryError:
    """Tell the remedy; sending goes on by itself once the disk no longer refuses."""
    remedy = _OF_ERRORS.get(error.errno or 0, "see to its disk (the kernel's log says more)")
    why = error.strerror or error
    return HistoryError(f"{path}: cannot {doing}: {why}. To repair: {remedy}; then it goes on by itself")


class Observation(NamedTuple):
    event: Event
    what: str = ""


class Looker(NamedTuple):
    boot_id: str
    now_ns: int
    mark_ns: int | None
    """The latest mark of a durable group, by its lock and by memory."""
    has_used_it: bool = False
    """This process has had the file in the time of this boot."""
    alike_ns: int = ALIKE_NS


class Examination(NamedTuple):
    """All but `found` is complete unless the last event refuses."""

    found: list[Observation]
    records: Sequence[Record] = ()
    last: At = At(0, 0, 0)
    end: int = 0
    """The offset behind that group."""
    is_of_this_boot: bool = True


def examine(content: bytes, looker: Looker, origin: int = 0, last: At | None = None) -> Examination:
    """Judge a whole file, or what was added to one from `origin` on, behind its group of `last`."""
    content = content.rstrip(ROOM)
    try:
        boot_id, start = read_header(content) if last is None else (looker.boot_id, 0)
        records, at, end, readings = read_groups(content, start, origin, looker.alike_ns)
    except HistoryError as error:
        return Examination([Observation(Event.DAMAGED, str(error))])
    at, is_of_this_boot = at or last, boot_id == looker.boot_id
    if at is None:
        # A file gets its name when its first group is durable, so a crash cannot have torn that one.
        return Examination([Observation(Event.DAMAGED, f"byte {start}: its first group is damaged")])
    if looker.has_used_it and not is_of_this_boot:
        what = f"in use by another host (boot {boot_id}) while we use it"
        return Examination([Observation(Event.OTHER_HOST, what)])
    if (lost := missing(at.mark_ns, looker.mark_ns)) is not None:
        return Examination([lost])
    found = [Observation(Event.WHOLE)]
    if end < len(content):
        what = f"byte {origin + end}: its last group is not whole; nothing was sent on it"
        found = [Observation(Event.TORN, what)]
    if last is None and not is_current(content):
        found.append(Observation(Event.OLD_FORMAT))
    if not is_of_this_boot:
        found.append(Observation(Event.OTHER_BOOT))
    return Examination(found, [*readings, *records], at, end, is_of_this_boot)


def missing(mark_ns: int | None, reached_ns: int | None) -> Observation | None:
    """Return what is lost of a history whose last group has one mark, and that reached another.

    `mark_ns` None: it has no group; `reached_ns` None: nothing says how far it reached.
    """
    if reached_ns is None or (mark_ns is not None and mark_ns >= reached_ns):
        return None
    if mark_ns is None:
        return Observation(Event.LOST, "it is gone, and was in use")
    lost_s = (reached_ns - mark_ns) / SECOND_NS
    return Observation(Event.BEHIND, f"its end is gone or damaged: it reached {lost_s:.3f} s further")


def of_the_future(last: At, now_ns: int) -> Observation | None:
    if last.boottime_ns <= now_ns + CLOCK_SKEW_NS:
        return None
    what = f"written in the future of this boot ({last.boottime_ns} ns, now {now_ns})"
    return Observation(Event.FUTURE, what)


def oversized(length_bytes: int) -> Observation | None:
    if length_bytes > LARGEST_BYTES:
        return Observation(Event.OVERSIZED, f"{length_bytes} bytes are no history")
    return None


def at_a_start(found: Iterable[Observation]) -> list[tuple[Observation, HistoryEffect]]:
    """Return what a relay that starts now would do, up to the event that makes it refuse."""
    known, effects = Known.UNREAD, []
    for each in found:
        known, effect = TABLE[each.event][known]
        effects.append((each, effect))
        if effect is HistoryEffect.REFUSE:
            break
    return effects
