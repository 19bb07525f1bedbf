"""The events of one account, and the interface `History` of the store that all its relays share.

A history records, in one order, slots that begin and slots that end.  Ids are the history's own; they ascend,
and none is given twice.  All instants are boottime of this host in nanoseconds, negative if before this boot.
A store that keeps another time converts them, and never makes an event earlier than it was.

A transaction of `History` excludes every other writer on any host.  In it memory first learns the `news`,
then decides by them, then has its events made durable, and only then applies them.  So memory need not be
true or complete: any transaction may give all events (`is_whole`), and memory then begins anew.

A history that cannot be read or written raises HistoryError.  The account then sends nothing, because it
cannot be judged.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

NOTHING_SENT = "nothing is sent through this account"
LONGEST_KEY = 96
"""The most characters of a written key.  A longer key loses its beginning; two such may become one."""
_FIT = frozenset(range(ord("!"), ord("~") + 1)) - {ord("%")}


class Share(NamedTuple):
    """The part of a slot for one key.  A slot without a share of some kind counts for every key of it."""

    for_each: str
    key: str
    messages: int
    recipients: int
    bytes: int


class Slot(NamedTuple):
    """One transaction, or one opening of a connection; or several that compaction merged."""

    id: int
    """The highest, if several were merged."""
    started_at_ns: int
    until_ns: int
    """The deadline while the slot is open, the end once it has ended."""
    messages: int
    recipients: int
    connections: int = 0
    bytes: int = 0
    shares: tuple[Share, ...] = ()
    is_open: bool = True

    def ended(self, at_ns: int) -> "Slot":
        return self._replace(until_ns=at_ns, is_open=False)


class Ended(NamedTuple):
    id: int
    at_ns: int


Event = Slot | Ended


def moved(event: Event, by_ns: int) -> Event:
    if isinstance(event, Ended):
        return Ended(event.id, event.at_ns + by_ns)
    return event._replace(started_at_ns=event.started_at_ns + by_ns, until_ns=event.until_ns + by_ns)


def fields_of(event: Event) -> list[Any]:
    """Return the JSON array that stores an event; `relay/throttle/file_history` lists the kinds."""
    if isinstance(event, Ended):
        return ["ended", *event]
    return ["reserved" if event.is_open else "charged", *event[:7], *event.shares]


def event_of(fields: list[Any]) -> Event:
    """Raise ValueError or TypeError if the array is no event."""
    match fields:
        case ["ended", slot_id, at_ns]:
            return Ended(slot_id, at_ns)
        case ["reserved" | "charged" as kind, slot_id, start_ns, until_ns, m, r, c, size, *shares]:
            known = tuple([Share(*share) for share in shares])
            return Slot(slot_id, start_ns, until_ns, m, r, c, size, known, kind == "reserved")
    raise ValueError(fields)


def key_of(text: str) -> str:
    """Return a key as a share has it: printable ASCII without spaces, at most LONGEST_KEY characters."""
    octets = text.encode("utf-8", "surrogatepass")
    return "".join(chr(octet) if octet in _FIT else f"%{octet:02x}" for octet in octets)[-LONGEST_KEY:]


class HistoryError(Exception):
    """The history cannot be read or written, so nothing may be sent: the account fails closed.

    The text is for the operator: which file or database, what is wrong, what to do.
    """


class History(Protocol):
    """For one thread at a time.  Each error leaves `transaction` as a HistoryError."""

    now_ns: int
    """Boottime in the present transaction; no later transaction is earlier."""
    news: Sequence[Event]
    """Events committed since the last transaction of this process, without its own."""
    is_whole: bool
    """`news` has all events, and replaces what memory knows."""

    @property
    def is_long(self) -> bool:
        """Whether `replace` instead of `commit` would make the history much shorter."""

    def transaction(self) -> AbstractContextManager["History"]:
        """Wait for other writers, then exclude them; return this history."""

    def commit(self, events: Sequence[Event]) -> None:
        """Make events durable, all or none.  After an error it is unknown whether they are durable."""

    def replace(self, events: Sequence[Event]) -> None:
        """Make these events durable instead of all present ones, as `commit` does."""

    def close(self) -> None: ...
