"""A message in the queue in memory, or the part of a message that goes by one route.  Pure.

Only `UpstreamQueue` changes a field by which a message is counted.  Only `Queues` moves a message to another
line.  Instants are nanoseconds of one boot (`Clock.boottime_ns`).

Memory holds hundreds of thousands of these objects.  So messages share equal values (`Origin`, `Choice`), and
the words that only listings show are one text.
"""

import enum
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from relay.mail.address import comparable
from relay.mail.envelope import QueueId
from relay.mail.header import NO_NAMES, Names
from relay.mail.rewriting import Rewriting
from relay.queue.routes import WHOLE, Choice, Part


class State(enum.StrEnum):
    """Where a queued message stands, in the operator's words.

    `UpstreamQueue.take` and `Queues.seize` lead to ACTIVE, the end of a back-off from DEFERRED to WAITING.
    All other changes start from ACTIVE.
    """

    WAITING = "waiting"
    """Not attempted yet, or its back-off is over.  It goes once its limits and its sender's pause allow."""
    ACTIVE = "active"
    """In a transaction, about to be in one, or seized by an operator's verb."""
    DEFERRED = "deferred"
    """Attempted and refused for now."""
    HELD = "held"
    REPORTING = "reporting"
    """No recipient is left; only the report about the failed recipients is owed."""


@dataclass(frozen=True, slots=True)
class WaitReason:
    text: str
    """For showing only."""
    status: str = ""
    """The enhanced status code (RFC 3463) of the last refusal, or for a lost reply; empty before either."""
    is_sender_pause: bool = False


NO_REASON = WaitReason("")
NOWHERE = Choice("")
"""The choice of a message that stands in no line."""
RECIPIENTS_SHOWN = 3
DEFAULT_LANE = "default"
"""The lane of messages that match no other."""


class Origin(NamedTuple):
    reverse_path: str
    client: str
    """As in the envelope."""
    user: str
    """The login of the client; empty without a login."""
    lane: str
    sent_reverse_path: str
    """The reverse-path that the upstream sees.  Limits for each sender count by it."""
    sender: str
    """`sent_reverse_path` in the form that all its spellings share.  It is never sent or shown."""
    turn: str
    """The sender that takes turns in a lane (`turn_of`)."""


_shared = lru_cache(1024)(str)
"""Returns the same object for equal texts: the many addresses of a list with VERP have one turn."""


@lru_cache(maxsize=65_536)
def origin_of(
    reverse_path: str,
    client: str = "",
    user: str = "",
    lane: str = DEFAULT_LANE,
    rewriting: Rewriting | None = None,
) -> Origin:
    """Return an origin.  Equal arguments give the same object, because many messages share it."""
    sent = reverse_path if rewriting is None else rewriting.reverse_path(reverse_path)
    sender, turn = comparable(sent), _shared(turn_of(reverse_path))
    return Origin(reverse_path, client, user, lane, sent, sent if sender == sent else sender, turn)


def turn_of(reverse_path: str) -> str:
    """Return the sender that takes turns: the address without what bulk mail adds for each recipient.

    A list that names the recipient in its return address (VERP: `list-return-7-me=here.example@…`,
    `list+me=here.example@…`) is one sender.  Otherwise it would have a turn for each recipient.
    """
    local, at, domain = comparable(reverse_path).rpartition("@")
    if local.startswith("prvs="):  # BATV: a tag before the address
        local = local.rpartition("=")[2]
    local = local.partition("+")[0] or local
    if "=" in local:
        kept = local.partition("=")[0]
        local = kept.rpartition("-")[0] or kept
    return f"{local}{at}{domain}"


class ListedWords(NamedTuple):
    """The words of a message that only listings show."""

    names: Names = NO_NAMES
    arrival_at_ns: int = 0
    """Wall clock, as in the envelope; 0 if it is unknown."""
    recipients: tuple[str, ...] = ()
    """The first few recipients that are left."""

    def text(self) -> bytes:
        """Return the values as text, one a line: no value contains a line end."""
        names = [name or "" for name in self.names]
        return "\n".join((str(self.arrival_at_ns), *names, *self.recipients)).encode()

    @classmethod
    def of(cls, text: bytes) -> "ListedWords":
        arrival, message_id, subject, client_queue_id, *recipients = text.decode().split("\n")
        return cls(Names(message_id or None, subject, client_queue_id), int(arrival), tuple(recipients))


@dataclass(slots=True, eq=False)
class Queued:
    queue_id: QueueId
    origin: Origin
    """Made by `origin_of`, with the rewriting of the part."""
    size_bytes: int
    arrived_at_ns: int
    """Negative for a message that arrived before this boot."""
    recipients_left: int
    state: State = State.WAITING
    due_at_ns: int = 0
    """When a deferred message may be attempted again."""
    why: WaitReason = NO_REASON
    is_warned: bool = False
    """The sender was told of the delay, or wants no report of delays."""
    listed: bytes = ListedWords().text()
    """The result of `ListedWords.text`."""
    ready_at_ns: int = 0
    """Since when only limits and connections keep it waiting; never before its arrival."""
    tried: frozenset[int] = frozenset()
    """Recipients that were deferred in this round and wait until the others were tried."""
    refusals: int = 0
    """In how many of its transactions this upstream refused us, or its sender."""
    paused_ns: int = 0
    """How long it stood in other lines while their upstreams were paused."""
    either_paused_ns: int = 0
    """How long it stood in other lines while their upstreams, or its sender there, were paused."""
    domain: str = ""
    """The key of the domain that all recipients left share; empty if they have several domains."""
    part: Part = WHOLE
    """The recipients of the message that this object stands for."""
    choice: Choice = NOWHERE
    """The upstream whose line it stands in, and why."""
    stands_since_ns: int = 0
    is_counted: bool = True
    """Exactly one part of a message counts as the message, with its octets."""
    spot: object = field(default=None, init=False, repr=False)
    """The key in that line, or the line itself, where it waits; only `UpstreamQueue` uses this."""

    def __post_init__(self) -> None:
        self.ready_at_ns = max(self.ready_at_ns, self.arrived_at_ns)

    @property
    def shown(self) -> ListedWords:
        return ListedWords.of(self.listed)

    @property
    def upstream(self) -> str:
        """Return the upstream whose line it stands in; empty after the message left the queue."""
        return self.choice.upstream

    @property
    def sender(self) -> str:
        return self.origin.sender

    @property
    def lane(self) -> str:
        return self.origin.lane

    @property
    def is_sitting_out(self) -> bool:
        """Return whether the message waits only because its sender is paused."""
        return self.state is State.WAITING and self.why.is_sender_pause
