"""The values that an operator can see of a relay at one instant.  Pure.

Metrics, /status.json, the status page and the command line render only these values, so they cannot
disagree.  Instants are wall clock.  `to_json` is the form for scripts: RFC 3339 for instants, seconds for
spans.  The control socket carries the values themselves.

Texts may quote an upstream's reply: one line of printable characters that may contain an address.  `public`
removes addresses, for pages that people other than the operator can read.
"""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.mail.formats import rfc3339_or_none, span
from relay.queue.routes import Because, Choice, reason_of
from relay.spool.interface import StatusWord
from relay.verdicts.account import Health


class Condition(enum.StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DOWN = "down"
    """No relay runs; the command line read the spool itself."""


class UpstreamState(enum.StrEnum):
    """Whether mail may go; `UpstreamStatus.health` tells more."""

    OPEN = "open"
    PAUSED = "paused"
    STOPPED = "stopped"
    """Until somebody acts: the history cannot be trusted, or the upstream refused the account."""


class QueueState(enum.StrEnum):
    """The states of `relay.queue.queued.State`, and two of messages that are not in memory."""

    INCOMING = "incoming"
    """Accepted, not yet claimed by the sender."""
    WAITING = "waiting"
    ACTIVE = "active"
    DEFERRED = "deferred"
    HELD = "held"
    REPORTING = "reporting"
    CORRUPT = "corrupt"
    """Damaged and set aside; never sent."""


@dataclass(frozen=True, slots=True)
class LimitStatus:
    upstream: str
    label: str
    """Its name, e.g. `8 messages per 1m`."""
    unit: Literal["messages", "recipients", "connections", "bytes"]
    used: int
    """Slots occupied, by the fullest key if the limit has keys; above `count` after N was lowered."""
    count: int
    """N."""
    period_ns: int
    """T and its guard."""
    opens_at_ns: int | None = None
    """Wall clock: when the next slot opens; None while there is room."""
    for_each: str | None = None
    key: str | None = None
    """The fullest key, which the other fields describe."""

    def opening_words(self, at_ns: int) -> str:
        return "room now" if self.opens_at_ns is None else f"next slot in {span(self.opens_at_ns - at_ns)}"


@dataclass(frozen=True, slots=True)
class UpstreamStatus:
    name: str
    host: str
    port: int
    state: UpstreamState
    paused_until_ns: int | None = None
    paused_because: str = ""
    connections_open: int = 0
    """Includes the idle ones."""
    connections_idle: int = 0
    limits: tuple[LimitStatus, ...] = ()
    waiting_messages: int = 0
    waiting_recipients: int = 0
    in_flight: int = 0
    """Transactions."""
    drained_at_ns: int | None = None
    """Wall clock: when the last waiting message will have been relayed, by estimate.  Now, if none waits;
    None if it is unknown."""
    held_by: str = ""
    """What holds the next waiting message, in words; empty for nothing."""
    health: Health = Health.USED
    """From `relay.verdicts.account`; `state` does not tell `proving` from `used`."""
    paused_by: str = ""
    """Who paused it by `relay pause`; empty without such a pause."""
    proving_after: str = ""
    """While one message goes first: why the upstream was paused or stopped; empty if that is unknown."""
    certificate_ends_at_ns: int | None = None
    """When the upstream's certificate ends, as of the last connection; None before one."""
    client_certificate_ends_at_ns: int | None = None
    """When the certificate ends that the relay presents to the upstream; None without one."""
    is_tried: bool = True
    """Since the start a transaction or a refusal has shown whether the upstream works."""

    @property
    def is_well(self) -> bool | None:
        """Whether the upstream works; None until a success shows it."""
        if self.state is not UpstreamState.OPEN:
            return False
        return True if self.is_tried and self.health is not Health.PROVING else None

    def state_words(self, at_ns: int) -> str:
        """Return the state, and how long a pause lasts or what ends it."""
        if self.is_well is None:
            return "proving, one message first" if self.health is Health.PROVING else "not tried yet"
        if self.state is UpstreamState.PAUSED and self.paused_until_ns is not None:
            return f"paused for {span(self.paused_until_ns - at_ns)}"
        if self.state is UpstreamState.PAUSED and self.paused_by:
            return f"paused until `relay resume {self.name}`"
        return self.state

    def drain_words(self, at_ns: int) -> str:
        if self.drained_at_ns is None:
            return "unknown"
        return f"in {span(self.drained_at_ns - at_ns)}" if self.waiting_messages else "-"


@dataclass(frozen=True, slots=True)
class LaneStatus:
    name: str
    share_percent: float
    """Share of the traffic while every lane has mail."""
    ceiling_percent: int | None
    """The most that the lane may hold of each limit's N; None: all of it."""
    waiting_messages: int = 0
    waiting_recipients: int = 0
    oldest_age_ns: int = 0
    """Since acceptance; 0 if nothing waits."""
    patience_ns: int | None = None
    """A message that has been ready for this long goes ahead of its turn; None: never."""


@dataclass(frozen=True, slots=True)
class RouteStatus:
    """Routes that differ only in the mail that they take are one, with several numbers."""

    numbers: tuple[int, ...]
    """From 1, in the order of the policy."""
    takes: tuple[str, ...]
    """For each number, the keys by which that route takes mail, in words."""
    upstreams: tuple[str, ...]
    """In the order of preference."""
    upstream: str
    """Its mail, except spilled mail, goes through this upstream now, or waits for it if all are down.

    Empty while the relay is down.
    """
    because: Because = Because.PREFERRED
    """PREFERRED, FAILOVER or ALL_DOWN."""
    instead_of: str = ""
    """The upstream that is passed over; empty for none."""
    since_at_ns: int | None = None
    """Wall clock: when this run first saw it in FAILOVER or ALL_DOWN; None while it is PREFERRED."""
    until_at_ns: int | None = None
    """Wall clock: when it fails over, if its upstream stays down; None if no failover is ahead."""
    spills_to: tuple[str, ...] = ()
    """Upstreams that take some of its mail because that waited too long."""
    stands: Mapping[str, int] = field(default_factory=dict)
    """How many of its messages, or of their parts, stand with each upstream."""

    @property
    def is_diverted(self) -> bool:
        return self.because is not Because.PREFERRED or bool(self.spills_to)

    def why(self, at_ns: int) -> str:
        """Return in words why its mail is diverted, or soon will be; empty if it goes as preferred."""
        if self.is_diverted:
            because = reason_of(Choice(self.upstream, self.because, self.instead_of))
            spills = (f"spill to {name}" for name in self.spills_to)
            since = "" if self.since_at_ns is None else f", for {span(at_ns - self.since_at_ns)}"
            return "; ".join(filter(None, (because, *spills))) + since
        if self.until_at_ns is not None:
            return f"{self.upstream} is down, fails over in {span(self.until_at_ns - at_ns)}"
        return ""


@dataclass(frozen=True, slots=True)
class QueueCounts:
    messages: int = 0
    recipients: int = 0
    """Recipients left."""
    size_bytes: int = 0
    oldest_age_ns: int = 0
    """Since acceptance; 0 without a message."""


@dataclass(frozen=True, slots=True)
class PolicyStatus:
    sha256: str
    """Of the text of the policy's file, in hexadecimal."""
    loaded_at_ns: int
    """Wall clock: when this policy came into force."""
    last_reload_ok: bool = True
    last_error: str = ""
    """The first fault of a refused edit."""
    refused_file: str = ""
    """Why a listener cannot use its users or certificate, and keeps the last good ones; else empty."""
    path: str = ""
    """Absolute."""


@dataclass(frozen=True, slots=True)
class CertificateStatus:
    listener: str
    """Its address, as the policy writes it."""
    ends_at_ns: int


@dataclass(frozen=True, slots=True)
class DiskStatus:
    free_bytes: int
    free_inodes: int | None
    """None if the file system has no fixed number of inodes."""


@dataclass(frozen=True, slots=True)
class HostStatus:
    """One of the hosts that share a queue or an account through a database."""

    host: str
    claimed_messages: int
    lease_seconds: float | None
    """Until other hosts may take its messages over; None if its queue is its own."""
    history_age_seconds: Mapping[str, float]
    """Since the host last used the account of each upstream."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    at_ns: int
    version: str
    hostname: str
    condition: Condition
    started_at_ns: int | None
    """Wall clock; None when the relay is down."""
    refusing_because: str
    """Why the relay accepts no mail now; empty while it does."""
    upstreams: tuple[UpstreamStatus, ...]
    """In the order of the policy; the first is the default."""
    queue: Mapping[QueueState, QueueCounts]
    totals: Mapping[str, int]
    """For each fate: recipients accepted since the start, and what became of recipients since then."""
    policy: PolicyStatus
    disk: DiskStatus
    lanes: tuple[LaneStatus, ...] = ()
    certificates: tuple[CertificateStatus, ...] = ()
    """One for each running listener that has a certificate."""
    routes: tuple[RouteStatus, ...] = ()
    """In the order of their first numbers."""
    recovering: int = 0
    """About how many messages the start has yet to read; no queue count has them.  0: all are known."""
    hosts: tuple[HostStatus, ...] = ()

    def counts(self, state: QueueState) -> QueueCounts:
        return self.queue.get(state, QueueCounts())


@dataclass(frozen=True, slots=True)
class RecipientView:
    address: str
    status: StatusWord
    text: str = ""
    """The last reply, or another note about the recipient; empty if it was relayed."""
    last_attempt_at_ns: int | None = None
    next_attempt_at_ns: int | None = None
    """The message's next attempt, if the recipient is to do."""
    reported: bool = False
    """The recipient ended, and the sender was told of that while other recipients were left."""
    routes: tuple[int, ...] = ()
    """The numbers, as in `RouteStatus`, of the route that it goes by; empty without one, or if it ended."""
    upstream: str = ""
    """The upstream in whose line it stands; empty if nothing is left to send to it."""
    notify: str = ""
    """As in RFC 3461, 4.1; empty if the sender said nothing."""
    orcpt: str = ""


@dataclass(frozen=True, slots=True)
class MessageView:
    queue_id: QueueId
    state: QueueState
    size_bytes: int
    arrival_at_ns: int
    age_ns: int
    """Since acceptance, by a clock that nobody sets."""
    reverse_path: str
    recipients_left: int
    recipients: tuple[str, ...]
    """The recipients left; in a long listing only the first."""
    reason: str = ""
    """Why it waits: the limit that is full, the pause, or the last reply."""
    next_attempt_at_ns: int | None = None
    """The earliest instant that its back-off allows."""
    eta_at_ns: int | None = None
    """When it will have been relayed, by estimate; None if that is unknown."""
    upstream: str = ""
    """The upstream in whose line the message, or its part that is furthest on its way, stands."""
    held_by: str = ""
    """What it waits for, in words; empty if it goes now."""
    lane: str = ""
    """Empty if the policy has no lanes."""
    upstream_because: str = ""
    """Why it is not in the line of the upstream that its route prefers; empty if it is."""
    further_upstreams: tuple[str, ...] = ()
    """The upstreams in whose lines its other parts stand, if it goes by several routes."""

    client: str = ""
    user: str | None = None
    message_id: str | None = None
    """With its brackets."""
    subject: str = ""
    """Decoded."""
    client_queue_id: str = ""
    """The message's id in the client's own queue."""
    helo: str = ""
    """From here to `header`: only of a message that was read for `relay queue show`; a listing reads none."""
    protocol: str = ""
    ret: str = ""
    """As in RFC 3461, 4.3; empty if it was not given."""
    envid: str = ""
    """Decoded."""
    recipient_statuses: tuple[RecipientView, ...] = ()
    """All, in the order of the envelope."""
    header: str = ""
    """As stored, so it is foreign text; empty if it was not read."""
    rewritten_as: str = ""
    """The sender that its upstream will see (`rewrite` of its route); empty if that is `reverse_path`."""
    host: str = ""
    """The host that has it in a shared queue; empty for no host yet, and if the queue is not shared."""


_ADDRESS = re.compile(r'<?(?:"(?:[^"\\]|\\.)*"|[^\s<>",;]+)@(?:\[[^\]\s]*\]|[^\s<>",;:()]+)>?')


def without_addresses(text: str) -> str:
    return _ADDRESS.sub("<address>", text)


def public(value: Any) -> Any:
    """Remove mail addresses from every text in a value, and the key, which may be a name, from each limit."""
    match value:
        case enum.Enum():
            return value
        case str():
            return without_addresses(value)
        case tuple():
            return tuple(map(public, value))
        case Mapping():
            return {key: public(its) for key, its in value.items()}
        case LimitStatus():
            return replace(value, key=None)
    if not is_dataclass(value):
        return value
    return replace(value, **{each.name: public(getattr(value, each.name)) for each in fields(value)})  # type: ignore[type-var]  # no class


_READ_ONLY = ("helo", "protocol", "ret", "envid", "recipient_statuses", "header")
"""The fields of a `MessageView` that a listing leaves empty."""


def to_json(value: Any) -> Any:
    """Return a value in the form for scripts: texts for instants, seconds for spans.

    Keys are the names of fields.  A field may be added, never renamed.
    """
    match value:
        case enum.Enum():
            return value.value
        case str() | int() | float() | None:
            return value
        case Mapping():
            return {to_json(key): to_json(its) for key, its in value.items()}
        case tuple():
            return [to_json(each) for each in value]
    told: dict[str, Any] = {}
    for each in fields(value):
        name, its = each.name, getattr(value, each.name)
        if name.endswith(("at_ns", "until_ns")):
            told[name.removesuffix("_ns")] = rfc3339_or_none(its)
        elif name.endswith("_ns"):
            told[name.removesuffix("_ns") + "_seconds"] = None if its is None else its / SECOND_NS
        else:
            told[name] = to_json(its)
    return told


def message_to_json(message: MessageView) -> dict[str, Any]:
    is_listed = not message.recipient_statuses
    return {key: its for key, its in to_json(message).items() if not (is_listed and key in _READ_ONLY)}
