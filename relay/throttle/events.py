"""What a history tells of an account: slots that begin, slots that end.  Pure.

Every instant is in the time of the history, in nanoseconds: for a file the boottime of the present boot,
for a database its clock.  An id is the history's own, ascends, and is never given twice.
"""

import functools
from typing import NamedTuple

from relay.throttle.limit import LONGEST_KEY, ForEach, Unit

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
