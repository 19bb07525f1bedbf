"""What the estimate of `relay.status.estimate.eta` is made from, and what it comes to.  Pure.

Whoever builds these looks at the queue, the throttle and the upstream at one instant; the
estimate looks nowhere else.  Instants are boottime in nanoseconds.
"""

from dataclasses import dataclass
from typing import NamedTuple

from relay.mail.envelope import QueueId
from relay.throttle.limit_state import Limited

BACK_OFF = "back-off"
CONNECTIONS = "connections"
HOLD = "hold"
RESTS = "sender rests"
SHIELD = "shield"
NEXT = ""
NEVER_NS = 1 << 62
"""No instant that comes."""


@dataclass(frozen=True, slots=True)
class Outlook:
    now_ns: int
    limits: tuple[Limited, ...] = ()
    connections: int = 1
    max_recipients: int = 1 << 30
    transaction_ns: int = 0
    """How long a transaction takes, on average."""
    ends_ns: tuple[int, ...] = ()
    """When the transactions under way will have ended."""
    paused_until_ns: int = 0
    pause: str = ""
    """Why, as `held_by` says it; empty where there is no pause."""
    is_proving: bool = False
    """The next transaction goes alone, and the others when it went well."""
    taken: int | None = None
    """Recipients that it took since it refused: one more may go at once.  None: as many as usual."""
    carried: tuple[int, ...] = ()
    """Recipients in each transaction under way; read only with `taken`."""
    max_messages: int = 1 << 30
    """Over one connection.  This and what follows is read only where connections are limited."""
    idle_ns: int = 1 << 62
    """How long a connection is kept for the next transaction."""
    idle: int = 0
    back_off_ns: tuple[int, int] = (0, 0)
    """The shortest and the longest."""


class Mail(NamedTuple):
    recipients: int
    joins_at_ns: int = 0
    """When it joins the end of the line; in the past where it stands there, or was just taken."""
    until_then: str = BACK_OFF
    reverse_path: str = ""
    sender: str = ""
    sender_domain: str = ""
    client: str = ""
    user: str = ""
    """Keys, of which only those matter that a limit asks for."""
    domains: tuple[tuple[str, int], ...] = ()
    """Of its recipients in their order, in runs of one domain."""
    tried: int = 0
    """Further recipients, deferred in this round: they go after a back-off."""
    tried_domains: tuple[tuple[str, int], ...] = ()
    age_ns: int = 0
    """As back-offs count."""
    queue_id: QueueId = QueueId("")
    """Empty where no queue is given."""
    is_under_way: bool = False
    """In a transaction for others of its recipients, which ends when it joins."""


class Foretold(NamedTuple):
    eta_ns: int
    """When the last of its recipients will have been relayed; NEVER_NS: it is too large for a limit."""
    held_by: str
    """What most of its wait is for; empty if it goes now."""


def ceiling_words(lane: str) -> str:
    return f"ceiling of lane {lane}"


def limit_words(label: str, key: str | None = None) -> str:
    return f"limit {label}" if key is None else f"limit {label} ({key or '<>'})"
