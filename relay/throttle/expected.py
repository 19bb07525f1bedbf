"""What the estimate of `relay.status.eta` is made from, and what it comes to.  Pure.

Whoever builds these looks at the queue, the throttle and the upstream at one instant; the
estimate looks nowhere else.  Instants are boottime in nanoseconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from relay.mail.envelope import QueueId
from relay.throttle.limit import ForEach, Unit

Place = tuple[ForEach, str]
Openings = tuple[tuple[int, int], ...]
"""When occupied slots open, and how many."""

BACK_OFF = "back-off"
CONNECTIONS = "connections"
"""Every connection is in a transaction."""
HOLD = "hold"
RESTS = "sender rests"
SHIELD = "shield"
NEXT = ""
"""Nothing keeps it."""


@dataclass(frozen=True, slots=True)
class Limited:
    """One limit, and what occupies it."""

    label: str
    unit: Unit
    count: int
    """N."""
    span_ns: int
    """T and its guard."""
    shared: Openings = ()
    """Of what counts for all."""
    for_each: ForEach | None = None
    of_key: Mapping[str, Openings] = field(default_factory=dict)
    """Of what counts for one key."""
    only: str | None = None
    """The one key that it is about, if it is about one alone: the lane of a ceiling."""

    @property
    def per_ns(self) -> int:
        """Return the length of the window, its guard included."""
        return self.span_ns


@dataclass(frozen=True, slots=True)
class Outlook:
    """An upstream, as it is now."""

    now_ns: int
    limits: tuple[Limited, ...] = ()
    connections: int = 1
    """How many transactions go on at once."""
    max_recipients: int = 1 << 30
    """In one transaction."""
    transaction_ns: int = 0
    """How long one takes, on average."""
    ends_ns: tuple[int, ...] = ()
    """When those under way will have ended."""
    paused_until_ns: int = 0
    pause: str = ""
    """Why, as `held_by` says it; empty where there is no pause."""
    is_proving: bool = False
    """The next one goes alone, and the others when it went well."""
    taken: int | None = None
    """How many recipients it took since it refused: one more may go at once.  None: as many as usual."""
    carried: tuple[int, ...] = ()
    """How many are in each of those under way; of interest with `taken`."""
    max_messages: int = 1 << 30
    """Over one connection; of interest where connections are limited, as what follows."""
    idle_ns: int = 1 << 62
    """How long a connection is kept for the next one."""
    idle: int = 0
    """Connections that are open and free."""
    back_off_ns: tuple[int, int] = (0, 0)
    """The shortest and the longest."""


class Mail(NamedTuple):
    """One message, or what is left of it."""

    recipients: int
    joins_at_ns: int = 0
    """When it comes to the end of the line; in the past where it stands there, or was just taken."""
    until_then: str = BACK_OFF
    """What keeps it until then."""
    reverse_path: str = ""
    sender: str = ""
    sender_domain: str = ""
    client: str = ""
    """Keys, of which only those matter that a limit asks for."""
    domains: tuple[tuple[str, int], ...] = ()
    """Of its recipients in their order: how many there are of one domain in a row."""
    tried: int = 0
    """More recipients, which were deferred in this round: they go after a back-off."""
    tried_domains: tuple[tuple[str, int], ...] = ()
    age_ns: int = 0
    """How old it is now, as back-offs count."""
    queue_id: QueueId = QueueId("")
    """By which the queue knows it; none where no queue is given."""
    is_under_way: bool = False
    """In a transaction for others of its recipients, which ends when it joins."""


class Foretold(NamedTuple):
    eta_ns: int
    """When the last of its recipients will have been relayed."""
    held_by: str
    """What its wait is for, or most of it; empty if it goes now."""


def ceiling_words(lane: str) -> str:
    """Return how `held_by` names what a lane may hold at most of some limit."""
    return f"ceiling of lane {lane}"


def limit_words(label: str, key: str | None = None) -> str:
    """Return how `held_by` names a limit, and the key whose window is full."""
    return f"limit {label}" if key is None else f"limit {label} ({key or '<>'})"
