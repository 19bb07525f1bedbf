"""The events of one account, and the interface `History` of the store that all its relays share.

A history records, in one order, slots that begin and slots that end.  Its instants are nanoseconds of its
own time: for a file boottime of the present boot, for a database its clock.  Ids are the history's own; they
ascend, and none is given twice.

A transaction of `History` excludes every other writer on any host.  In it memory first learns the `news`,
then decides by them, then has its events made durable, and only then applies them.  So memory need not be
true or complete: any transaction may give all events (`is_whole`), and memory then begins anew.

A history that cannot be read or written raises HistoryError.  The account then sends nothing, because it
cannot be judged.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from relay.policy.lane import Unit
from relay.throttle.limit import LONGEST_KEY, ForEach

NOTHING_SENT = "nothing is sent through this account"
_FIT = frozenset(range(ord("!"), ord("~") + 1)) - {ord("%")}


class Share(NamedTuple):
    """The part of a slot for one key.  A slot without a share of some kind counts for every key of it."""

    for_each: str
    key: str
    messages: int
    recipients: int
    bytes: int


class Slot(NamedTuple):
    """One transaction, or one opening of a connection; with the id 0, several that compaction merged."""

    id: int
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


class Issued(NamedTuple):
    """No id up to this one is given again."""

    id: int


Event = Slot | Ended | Issued


def moved(event: Event, by_ns: int) -> Event:
    """Return an event with its instants moved by `by_ns`."""
    match event:
        case Slot():
            return event._replace(started_at_ns=event.started_at_ns + by_ns, until_ns=event.until_ns + by_ns)
        case Ended():
            return Ended(event.id, event.at_ns + by_ns)
        case Issued():
            return event


def weights_in(
    slot: Slot, unit: Unit, for_each: ForEach | None, only: str | None
) -> list[tuple[str | None, int]]:
    """Return what a slot weighs for each key, without zeros; the key None counts for every key."""
    # A unit is the name of its field; a share has no connections, as no limit on connections has keys.
    shares = for_each and [share for share in slot.shares if share.for_each == for_each]
    if not shares:
        weight = getattr(slot, unit)
        return [(None, weight)] if weight else []
    return [
        (share.key, weight)
        for share in shares
        if (weight := getattr(share, unit)) and only in (None, share.key)
    ]


def key_of(text: str) -> str:
    """Return a key as a share has it: printable ASCII without spaces, at most LONGEST_KEY characters."""
    octets = text.encode("utf-8", "surrogatepass")
    return "".join(chr(octet) if octet in _FIT else f"%{octet:02x}" for octet in octets)[-LONGEST_KEY:]


class HistoryError(Exception):
    """The history cannot be read or written, so nothing may be sent: the account fails closed.

    The text is for the operator: which file or database, what is wrong, what to do.
    """


class HistoryTransaction(Protocol):
    now_ns: int
    """By the clock of the history.  No event in it is later, and no later transaction is earlier."""
    ahead_ns: int
    """The most by which that clock may be ahead of this host's boottime; 0 if it is boottime."""
    news: Sequence[Event]
    """Events committed since the last transaction of this process, without its own."""
    is_whole: bool
    """`news` has all events, and replaces what memory knows."""

    @property
    def is_long(self) -> bool:
        """Whether `replace` instead of `commit` would make the history much shorter."""

    def commit(self, events: Sequence[Event]) -> None:
        """Make events durable, all or none.  Raises HistoryError; whether they are durable is then unknown.

        At most one of `commit` and `replace` takes effect in a transaction: after a `replace` that returned
        False, `commit` follows.
        """

    def replace(self, events: Sequence[Event]) -> bool:
        """Make these events durable instead of all present ones; return False if there is no room for that.

        Raises HistoryError; then the old or the new events are in force.
        """


class History(Protocol):
    """For one thread at a time."""

    def transaction(self) -> AbstractContextManager[HistoryTransaction]:
        """Wait for other writers, then exclude them.  Raises HistoryError."""

    def close(self) -> None: ...
