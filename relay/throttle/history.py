"""What is known of one account, and where it is kept in one order for all relays that send through it.

A history tells of slots that begin and slots that end.  Every instant is in its time, in nanoseconds: for a
file the boottime of the present boot, for a database its clock.  An id is the history's own, ascends, and is
never given twice.

The seam `History`.  A transaction excludes every other writer, on whatever hosts they are.  In it memory
first learns the `news`, then decides by them, then has its events made durable, and only then applies
them.  So nothing assumes that memory is the truth, or that it knows anything: a transaction may give all
events there are (`is_whole`) at any time, and memory then begins anew.

A history that cannot be read or written raises HistoryError, and the account sends nothing: it cannot be
judged.
"""

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from relay.throttle.limit import LONGEST_KEY, ForEach, Unit

NOTHING_SENT = "nothing is sent through this account"
UNKNOWN = "%"
"""The key of a share that counts for every key; `key_of` makes no such key."""
_FIT = frozenset(range(ord("!"), ord("~") + 1)) - {ord("%")}


class Share(NamedTuple):
    """How much of a slot is of one key; a slot without a share of some kind counts for every key of it."""

    for_each: str
    key: str
    messages: int
    recipients: int
    bytes: int


class Slot(NamedTuple):
    """One transaction or one opening of a connection; or, with the id 0, several that were merged."""

    id: int
    started_at_ns: int
    until_ns: int
    """Its deadline while it is open, its end once it has ended."""
    messages: int
    recipients: int
    connections: int = 0
    bytes: int = 0
    shares: tuple[Share, ...] = ()
    is_open: bool = True

    def ended(self, at_ns: int) -> "Slot":
        return self._replace(until_ns=at_ns, is_open=False)

    @property
    def is_exact(self) -> bool:
        return self.id > 0


class Ended(NamedTuple):
    """The transaction of a slot ended."""

    id: int
    at_ns: int


class Issued(NamedTuple):
    """No id up to this one is given again."""

    id: int


Event = Slot | Ended | Issued


def moved(event: Event, by_ns: int) -> Event:
    """Tell an event in another timeline."""
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
    """Return what a slot weighs for each key, without zeros; the key None counts for all of them."""
    # A unit is the name of the field that has it; no limit on connections has keys.
    shares = for_each and [share for share in slot.shares if share.for_each == for_each]
    if not shares:
        weight = getattr(slot, unit)
        return [(None, weight)] if weight else []
    return [
        (None if share.key == UNKNOWN else share.key, weight)
        for share in shares
        if (weight := getattr(share, unit)) and (only is None or share.key in (only, UNKNOWN))
    ]


@functools.lru_cache(4096)
def key_of(text: str) -> str:
    """Return a key as a share names it: printable ASCII without spaces, and never too long."""
    octets = text.encode("utf-8", "surrogatepass")
    return "".join(chr(octet) if octet in _FIT else f"%{octet:02x}" for octet in octets)[-LONGEST_KEY:]


class HistoryError(Exception):
    """The history cannot be read or written, so nothing may be sent: the account fails closed.

    The text is for the operator: which file or database, what is wrong, what to do.
    """


class HistoryTransaction(Protocol):
    now_ns: int
    """By the clock of the history.  No event of it is later, and no later transaction is earlier."""
    ahead_ns: int
    """How far that clock may be ahead of this host's boottime, at the most: 0 where it is the same."""
    news: Sequence[Event]
    """What was committed since the last transaction of this process, its own commits left out."""
    is_whole: bool
    """`news` is all that there is, and what memory has is to be forgotten."""
    is_empty: bool
    """Nothing was ever committed."""

    @property
    def is_long(self) -> bool:
        """Whether `replace` in the place of `commit` would make the history much shorter."""

    def commit(self, events: Sequence[Event]) -> None:
        """Make events durable, all or none.  Raises HistoryError: then it is unknown whether they are.

        At most one of `commit` and `replace` takes effect in a transaction: after a `replace` that returned
        False, `commit` follows.
        """

    def replace(self, events: Sequence[Event]) -> bool:
        """Make these events durable in the place of all that there are; False where that has no room.

        Raises HistoryError: then either may be in force.
        """


class History(Protocol):
    """One thread at a time."""

    def transaction(self) -> AbstractContextManager[HistoryTransaction]:
        """Wait for other writers, then exclude them.  Raises HistoryError."""

    def close(self) -> None: ...
