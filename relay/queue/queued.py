"""A message as the queue in memory has it, or the part of it that goes by one route.  Pure.

Only `UpstreamQueue` changes what a `Queued` is counted by, and only `Queues` the line where it stands.
Instants are nanoseconds of one boot (`Clock.boottime_ns`).

Hundreds of thousands of them are in memory.  So messages share what many have alike (`Origin`, `Choice`) and
what few have at all (`Past`), and what only listings show is one text.
"""

import enum
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from relay.mail.address import comparable
from relay.mail.envelope import QueueId
from relay.mail.header import NO_NAMES, Names
from relay.mail.rewriting import Rewriting
from relay.queue.routes import WHOLE, Choice, Part


class State(enum.StrEnum):
    """Where a queued message stands, in the operator's words.

    The verbs of `UpstreamQueue` lead by way of ACTIVE: `take` and `seize` to it, all others from it.  Time
    alone leads from DEFERRED to WAITING.
    """

    WAITING = "waiting"
    """Not attempted yet, or back from its back-off; it goes when there is room for it and its sender."""
    ACTIVE = "active"
    """In a transaction or about to be, or seized by an operator's verb."""
    DEFERRED = "deferred"
    """Attempted and refused for now."""
    HELD = "held"
    REPORTING = "reporting"
    """No recipient is left; only the report about those that failed is owed."""


class WaitKind(enum.Enum):
    WORDS = "words"
    """No rule asks about it."""
    REFUSAL = "refusal"
    """The last reply of the upstream, or what went wrong without one."""
    SENDER_PAUSE = "sender pause"


@dataclass(frozen=True, slots=True)
class WaitReason:
    text: str
    """For showing only."""
    kind: WaitKind = WaitKind.WORDS
    status: str = ""
    """The enhanced status code that a REFUSAL came with (RFC 3463)."""


NO_REASON = WaitReason("")
NOWHERE = Choice("")
"""Of a message that stands in no line."""
RECIPIENTS_SHOWN = 3
DEFAULT_LANE = "default"
"""The lane of messages that match no other."""


class Origin(NamedTuple):
    """Whose mail it is, and in which lane."""

    reverse_path: str
    client: str
    """As the envelope has it."""
    user: str
    """The login of the client; empty for none."""
    lane: str
    sent_reverse_path: str
    """The reverse-path that the upstream sees: limits for each sender count by it."""
    sender: str
    """`sent_reverse_path` in the form that all its spellings share.  Never to be sent or shown."""


@lru_cache(maxsize=65_536)
def origin_of(
    reverse_path: str,
    client: str = "",
    user: str = "",
    lane: str = DEFAULT_LANE,
    rewriting: Rewriting | None = None,
) -> Origin:
    """Return the same object each time: many messages share it."""
    sent = reverse_path if rewriting is None else rewriting.reverse_path(reverse_path)
    sender = comparable(sent)
    return Origin(reverse_path, client, user, lane, sent, sent if sender == sent else sender)


class Past(NamedTuple):
    """What is known of a message that was attempted, or that moved from another line."""

    tried: frozenset[int] = frozenset()
    """Recipients deferred in this round, waiting for the others to be tried."""
    refusals: int = 0
    """In how many of its transactions the upstream refused us, or its sender."""
    unknown_until_ns: int = 0
    """Until then its last transaction may still relay it, unheard; 0: it cannot."""
    paused_ns: int = 0
    """For how long it stood in other lines while their upstreams were paused."""
    rested_ns: int = 0
    """For how long it did, or its sender was paused there."""

    def but(self, **changes: Any) -> "Past":
        """Return it with changes; the one value of most messages where they leave nothing to know."""
        changed = self._replace(**changes)
        return NO_PAST if changed == NO_PAST else changed


NO_PAST = Past()


class RecipientsLeft(NamedTuple):
    """What is kept in memory of the recipients left."""

    recipients: int = 0
    domain: str = ""
    """The key of the domain that all have; empty where they have several."""
    shown: tuple[str, ...] = ()


class ListedWords(NamedTuple):
    """What only listings show of a message."""

    names: Names = NO_NAMES
    arrival_at_ns: int | None = None
    """Wall clock, as the envelope has it; None of a message that left the queue."""
    recipients: tuple[str, ...] = ()
    """The first few that are left."""

    def text(self) -> bytes:
        """Return it as a line each: none of them has an end of line in it."""
        arrival = "" if self.arrival_at_ns is None else str(self.arrival_at_ns)
        return "\n".join((arrival, self.names.text(), *self.recipients)).encode()

    @classmethod
    def of(cls, text: bytes) -> "ListedWords":
        arrival, *lines = text.decode().split("\n")
        return cls(Names.of(lines[:3]), int(arrival) if arrival else None, tuple(lines[3:]))


@dataclass(slots=True, eq=False)
class Queued:
    queue_id: QueueId
    origin: Origin
    """By `origin_of`, with the rewriting of its part."""
    size_bytes: int
    arrived_at_ns: int
    """Negative for a message that came in before this boot."""
    recipients_left: int
    state: State = State.WAITING
    due_at_ns: int = 0
    """When a deferred message may be attempted again."""
    why: WaitReason = NO_REASON
    is_warned: bool = False
    """Its sender was told that it is late, or wants to hear of no delay."""
    listed: bytes = b""
    """`ListedWords.text`."""
    ready_at_ns: int = 0
    """Since when it could go, but for limits and connections."""
    past: Past = NO_PAST
    domain: str = ""
    """As `RecipientsLeft.domain`."""
    part: Part = WHOLE
    """Which of its recipients this is about."""
    choice: Choice = NOWHERE
    """The upstream whose line it stands in, and why."""
    stands_since_ns: int = 0
    """Since when it stands in that line."""
    is_counted: bool = True
    """Of a message's parts one counts as the message, with its octets."""
    spot: object = field(default=None, init=False, repr=False)
    """Where in that line it waits; for whoever put it there."""

    @property
    def shown(self) -> ListedWords:
        return ListedWords.of(self.listed)

    @property
    def upstream(self) -> str:
        """Return the upstream whose line it stands in; empty where the message left the queue."""
        return self.choice.upstream

    @property
    def reverse_path(self) -> str:
        return self.origin.reverse_path

    @property
    def sender(self) -> str:
        return self.origin.sender

    @property
    def lane(self) -> str:
        return self.origin.lane

    @property
    def reason(self) -> str:
        return self.why.text

    @property
    def refusal(self) -> WaitReason | None:
        """Return the refusal that deferred a message in its back-off, if one did."""
        is_refused = self.state is State.DEFERRED and self.why.kind is WaitKind.REFUSAL
        return self.why if is_refused else None

    @property
    def is_sitting_out(self) -> bool:
        """Whether it waits only because its sender is paused."""
        return self.state is State.WAITING and self.why.kind is WaitKind.SENDER_PAUSE

    @property
    def since_ns(self) -> int:
        """Return since when it could go, but for limits and connections; never before it came in."""
        return max(self.ready_at_ns, self.arrived_at_ns)
