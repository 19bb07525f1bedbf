"""What became of a queued message after it was accepted: records in the sender's stream.

| kind | says | payload |
| --- | --- | --- |
| `M` | what became of recipients | index and status byte of each |
| `N` | why, or what deferred recipients were told | notes, a JSON object a line |
| `T` | the sender was told of these recipients | their indices |
| `W`, `H`, `U` | the sender was warned of the delay; held; released | |
| `P` | when it is tried next, a hint | an instant |
| `S` | all of the above at once: nothing that was said before counts | JSON, then notes |
| `F` | it ended; its number is that of its recipients | how many were relayed, bounced, expired, deleted |
| `G` | it ended, and is counted elsewhere; its number is that of its recipients | |
| `A` | it was set aside in corrupt/; its number is that of the recipients left | as of `F`, of the others |
| `X` | somebody removed it from corrupt/ | |
| `C` | the account as it is behind this group | JSON |

Encoding and decoding, and what the facts of one message come to.  No I/O.
"""

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from relay.mail.envelope import QueueId
from relay.spool import interface
from relay.spool.interface import Corrupt, Status
from relay.spool.ledger import Fates
from relay.spool.log.record import New, Record
from relay.spool.message import notes
from relay.spool.message.message_file import Opened

MARKS = b"M"
NOTES = b"N"
TOLD = b"T"
WARNED = b"W"
HELD = b"H"
RELEASED = b"U"
POSTPONED = b"P"
SNAPSHOT = b"S"
FINISHED = b"F"
GONE = b"G"
ASIDE = b"A"
REMOVED = b"X"
ACCOUNT = b"C"
OF_A_MESSAGE = frozenset({MARKS, NOTES, TOLD, WARNED, HELD, RELEASED, POSTPONED, SNAPSHOT})

MOST_PLACES = 16
"""Of the facts of one message; more of them are written anew as one."""
_MARK = struct.Struct("<IB")
_INDEX = struct.Struct("<I")
_INSTANT = struct.Struct("<q")
_FATES = struct.Struct("<IIII")
_STATUSES = {status.value[0]: status for status in Status}


class Facts:
    """Of one message; most have none."""

    __slots__ = (
        "closed",
        "is_held",
        "is_warned",
        "next_attempt_at_ns",
        "notes",
        "places",
        "statuses",
        "superseded",
        "told",
    )

    def __init__(self) -> None:
        self.statuses: dict[int, Status] = {}
        self.told: set[int] = set()
        self.is_held = False
        self.is_warned = False
        self.next_attempt_at_ns = 0
        self.closed: set[str] = set()
        """Its reports and warnings that ended before it: not to be published again."""
        self.notes: list[int | bytes] = []
        """Where notes are written; themselves while they are not."""
        self.superseded = 0
        """How many notes that have no place yet are in a later snapshot too."""
        self.places: list[int] = []
        """Of all records that say this."""

    def apply(self, kind: bytes, payload: bytes) -> None:
        """Take in what a record says, but for its notes.  ValueError, struct.error: none of ours."""
        if kind == MARKS:
            self.statuses.update(decode_marks(payload))
        elif kind == TOLD:
            self.told.update(index for (index,) in _INDEX.iter_unpack(payload))
        elif kind == WARNED:
            self.is_warned = True
        elif kind in (HELD, RELEASED):
            self.is_held = kind == HELD
        elif kind == POSTPONED:
            (self.next_attempt_at_ns,) = _INSTANT.unpack(payload)
        elif kind == SNAPSHOT:
            self._take_all(json.loads(payload.partition(b"\n")[0]))

    def snapshot(self) -> dict[str, Any]:
        """Return all but the notes as JSON has it; small where there is little."""
        marks: dict[str, list[int]] = {}
        for index, status in self.statuses.items():
            marks.setdefault(status.value.decode(), []).append(index)
        said: dict[str, Any] = {
            "marks": marks,
            "told": sorted(self.told),
            "held": self.is_held,
            "warned": self.is_warned,
            "next": self.next_attempt_at_ns,
            "closed": sorted(self.closed),
        }
        return {key: value for key, value in said.items() if value}

    def _take_all(self, said: Mapping[str, Any]) -> None:
        marks = said.get("marks", {})
        self.statuses = {index: Status(mark.encode()) for mark, its in marks.items() for index in its}
        self.told = set(said.get("told", ()))
        self.is_held, self.is_warned = said.get("held", False), said.get("warned", False)
        self.next_attempt_at_ns = said.get("next", 0)
        self.closed = set(said.get("closed", ()))

    def laid_over(self, message: Opened) -> Opened:
        """Return a message as it is now; it is the same object, whose facts only ever grow."""
        for index, status in self.statuses.items():
            if index >= len(message.statuses):
                raise Corrupt("what became of a recipient that it does not have")
            message.statuses[index] = status
        message.reported |= self.told
        message.modified_at_ns = self.next_attempt_at_ns
        if self.is_warned and not message.header.is_warned:
            message.header = message.header._replace(is_warned=True)
        return message


def encode_marks(marks: Mapping[int, Status]) -> bytes:
    return b"".join([_MARK.pack(index, status.value[0]) for index, status in marks.items()])


def decode_marks(payload: bytes) -> dict[int, Status]:
    return {index: _STATUSES[mark] for index, mark in _MARK.iter_unpack(payload)}


def encode_told(indices: Iterable[int]) -> bytes:
    return b"".join(map(_INDEX.pack, indices))


def encode_instant(at_ns: int) -> bytes:
    return _INSTANT.pack(at_ns)


def encode_fates(fates: Fates) -> bytes:
    return _FATES.pack(*fates)


def decode_fates(payload: bytes) -> Fates:
    relayed, bounced, expired, deleted = _FATES.unpack(payload)
    return relayed, bounced, expired, deleted


def recipients_of_end(each: Record) -> int:
    """Return how many recipients the message had that ended, or was set aside."""
    return each.number + (sum(decode_fates(each.payload)) if each.kind == ASIDE else 0)


def encode_snapshot(facts: Facts, notes: bytes) -> bytes:
    return json.dumps(facts.snapshot(), separators=(",", ":")).encode() + b"\n" + notes


@dataclass(slots=True)
class LogAccount:
    """What ever ended, and what is set aside."""

    relayed: int = 0
    bounced: int = 0
    expired: int = 0
    deleted: int = 0
    aside: dict[QueueId, int] = field(default_factory=dict)
    """Recipients that were left of each message in corrupt/."""

    def count(self, fates: Sequence[int]) -> None:
        self.relayed += fates[0]
        self.bounced += fates[1]
        self.expired += fates[2]
        self.deleted += fates[3]

    @property
    def ended(self) -> int:
        return self.relayed + self.bounced + self.expired + self.deleted

    def encode(self) -> bytes:
        figures = [self.relayed, self.bounced, self.expired, self.deleted]
        return json.dumps({"ended": figures, "aside": self.aside}, separators=(",", ":")).encode()


def decode_account(payload: bytes) -> LogAccount:
    """Return what a record says.  Raises ValueError, KeyError or TypeError for none of ours."""
    said = json.loads(payload)
    relayed, bounced, expired, deleted = said["ended"]
    return LogAccount(relayed, bounced, expired, deleted, dict(said["aside"]))


def adopted_facts(adopted: interface.Adopted) -> New | None:
    """Return all that became of a message as one record; None where nothing did."""
    message, facts = adopted.message, Facts()
    facts.statuses = {i: status for i, status in enumerate(message.statuses) if status is not Status.TODO}
    facts.told = set(message.reported)
    facts.is_held, facts.is_warned = message.is_held, message.is_warned
    facts.next_attempt_at_ns = message.next_attempt_at_ns or 0
    told = notes.encode(notes.retold(adopted.notes)) if adopted.notes else b""
    if not (facts.snapshot() or told):
        return None
    return New(SNAPSHOT, message.queue_id, encode_snapshot(facts, told))


def account_of(account: LogAccount, facts: Mapping[QueueId, Facts]) -> interface.LedgerAccount:
    ended = interface.Totals(
        account.ended, account.relayed, account.bounced, account.expired, account.deleted
    )
    gone = frozenset(QueueId(report) for each in facts.values() for report in each.closed)
    return interface.LedgerAccount(ended, gone, dict(account.aside))


def records_of(account: interface.LedgerAccount, mine: LogAccount) -> Iterable[New]:
    """Return what says that another spool's account goes on here."""
    ended, together = account.ended, replace(mine, aside={**mine.aside, **account.aside})
    together.count((ended.relayed, ended.bounced, ended.expired, ended.deleted))
    yield New(ACCOUNT, "", together.encode())
    for report in sorted(account.reports_gone):
        yield New(GONE, report)
