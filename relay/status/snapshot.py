"""What an operator can see, at one instant.  Pure.

Metrics, /status.json, the status page and the command line render these values and look
nowhere else, so that they cannot disagree.  Instants are of the wall clock.  `to_json` is the form for
scripts: RFC 3339 for instants, seconds for spans.  The control socket carries the values themselves.

Texts may quote an upstream's reply: one line of printable characters that may name an
address.  `public` removes addresses, for pages that others than the operator can read.
"""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.mail.formats import rfc3339_or_none, span
from relay.queue.routes import Because, Choice, words_of
from relay.telemetry.metric_table import Totals
from relay.verdicts.account import Health


class Condition(enum.StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DOWN = "down"
    """Seen by the command line, which read the spool itself."""


class UpstreamState(enum.StrEnum):
    """Whether mail may go; `UpstreamStatus.health` tells more."""

    OPEN = "open"
    PAUSED = "paused"
    STOPPED = "stopped"
    """Until somebody acts: its history cannot be trusted, or it refused the account."""


class QueueState(enum.StrEnum):
    INCOMING = "incoming"
    """Accepted, not yet looked at."""
    WAITING = "waiting"
    """Not attempted: no room in a window, or its turn has not come."""
    ACTIVE = "active"
    """In a transaction now."""
    DEFERRED = "deferred"
    """Attempted, refused for now."""
    HELD = "held"
    """By an operator."""
    REPORTING = "reporting"
    """No recipient is left; only the report is owed, which waits for `reports.per_hour`."""
    CORRUPT = "corrupt"
    """Set aside: damaged, never sent."""


@dataclass(frozen=True, slots=True)
class LimitStatus:
    upstream: str
    label: str
    """By which programs know it, e.g. `8 messages per 60s`."""
    unit: Literal["messages", "recipients", "connections", "bytes"]
    used: int
    """Of the fullest key, where the limit has keys; above `count` after N was lowered."""
    count: int
    """N."""
    period_ns: int
    """T, with its guard."""
    opens_at_ns: int | None = None
    """Wall clock: when the next slot opens; None while there is room."""
    for_each: str | None = None
    key: str | None = None
    """The fullest key, of which all of this tells."""
    most: int = 0
    """The most slots that were occupied at one instant: counted from the history, and followed since."""
    words: str = ""
    """The label as people write it, e.g. `8 messages per 1m`."""

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
    """With the idle ones."""
    connections_idle: int = 0
    limits: tuple[LimitStatus, ...] = ()
    waiting_messages: int = 0
    waiting_recipients: int = 0
    in_flight: int = 0
    """Transactions."""
    drained_at_ns: int | None = None
    """Wall clock: when the last message that waits will have been relayed, by estimate; now, where none
    does, and None where nobody can tell."""
    held_by: str = ""
    """What holds the next message that waits, in words; empty for nothing."""
    health: Health = Health.USED
    """Of `relay.verdicts.account`; `state` does not tell `proving` from `used`."""
    paused_by: str = ""
    """Who paused it by `relay pause`; empty without such a pause."""
    paused_since_at_ns: int | None = None
    proving_after: str = ""
    """What it was paused or stopped for, while one message goes first; empty if that is not known."""
    certificate_ends_at_ns: int | None = None
    """The upstream's, as of the last connection; None before one."""
    client_certificate_ends_at_ns: int | None = None
    """That of the one that the upstream is shown; None without one."""
    is_tried: bool = True
    """A transaction or a refusal has shown since the start whether it works."""

    @property
    def is_well(self) -> bool | None:
        """Whether it works; None where nothing that went well shows it."""
        if self.state is not UpstreamState.OPEN:
            return False
        return True if self.is_tried and self.health is not Health.PROVING else None

    @property
    def state_words(self) -> str:
        if self.is_well is not None:
            return self.state
        return "proving, one message first" if self.health is Health.PROVING else "not tried yet"


@dataclass(frozen=True, slots=True)
class LaneStatus:
    name: str
    share_percent: float
    """Share of the traffic while every lane has mail."""
    ceiling_percent: int | None
    """The most it may hold of each limit's N; None: all."""
    waiting_messages: int = 0
    waiting_recipients: int = 0
    oldest_age_ns: int = 0
    """Since acceptance; 0 where nothing waits."""
    patience_ns: int | None = None
    """How long a message may be ready before it goes before its turn; None: for ever."""


@dataclass(frozen=True, slots=True)
class RouteStatus:
    """Routes that differ in nothing but what they take are one, with several numbers."""

    numbers: tuple[int, ...]
    """From 1, in the order of the policy."""
    takes: tuple[str, ...]
    """For each of these numbers the keys by which it takes mail, in words."""
    upstreams: tuple[str, ...]
    """In the order of preference."""
    upstream: str
    """Through which its mail goes now, but for what is spilled; where all are down, for which it waits.

    Empty while the relay is down.
    """
    because: Because = Because.PREFERRED
    """PREFERRED, FAILOVER or ALL_DOWN."""
    instead_of: str = ""
    """The upstream that is passed over; empty for none."""
    since_at_ns: int | None = None
    """Wall clock: when this run first saw it go elsewhere than it prefers; None where it does not."""
    until_at_ns: int | None = None
    """Wall clock: when it goes elsewhere, if its upstream stays down; None where nobody can tell."""
    spills_to: tuple[str, ...] = ()
    """Through which some of its mail goes, because it waited too long."""
    stands: Mapping[str, int] = field(default_factory=dict)
    """How many of its messages, or of their parts, stand with each upstream."""

    @property
    def is_diverted(self) -> bool:
        return self.because is not Because.PREFERRED or bool(self.spills_to)

    def why(self, at_ns: int) -> str:
        """Return why its mail goes elsewhere, or will, in words; empty where it goes as the route prefers."""
        if self.is_diverted:
            since = "" if self.since_at_ns is None else f", for {span(at_ns - self.since_at_ns)}"
            return f"{self.because_words}{since}"
        if self.until_at_ns is not None:
            return f"{self.upstream} is down, fails over in {span(self.until_at_ns - at_ns)}"
        return ""

    @property
    def because_words(self) -> str:
        words = []
        if self.because is not Because.PREFERRED:
            words.append(words_of(Choice(self.upstream, self.because, self.instead_of)))
        words += [f"spill to {name}" for name in self.spills_to]
        return "; ".join(words)

    @property
    def takes_words(self) -> str:
        return " or ".join(self.takes)

    @property
    def numbers_words(self) -> str:
        return ", ".join(map(str, self.numbers))


@dataclass(frozen=True, slots=True)
class QueueCounts:
    messages: int = 0
    recipients: int = 0
    """Those left."""
    size_bytes: int = 0
    oldest_age_ns: int = 0
    """Since acceptance; 0 where there is none."""


@dataclass(frozen=True, slots=True)
class PolicyStatus:
    sha256: str
    """Of the text of its file, in hexadecimal."""
    loaded_at_ns: int
    """Wall clock: when this policy came into force."""
    last_reload_ok: bool = True
    last_error: str = ""
    """The first fault of a refused edit."""
    refused_file: str = ""
    """Why a listener's users or certificate cannot be used, while the last good ones stay; else empty."""
    path: str = ""
    """Absolute."""

    @property
    def is_good(self) -> bool:
        return self.last_reload_ok and not self.refused_file


@dataclass(frozen=True, slots=True)
class CertificateStatus:
    listener: str
    """Its address, as the policy writes it."""
    ends_at_ns: int


@dataclass(frozen=True, slots=True)
class DiskStatus:
    free_bytes: int
    free_inodes: int | None
    """None where the file system has no fixed number of them."""


@dataclass(frozen=True, slots=True)
class HostStatus:
    """One of those that share a queue or an account by a database."""

    host: str
    claimed_messages: int
    lease_seconds: float | None
    """Until others may take these over; None where its queue is its own."""
    history_age_seconds: Mapping[str, float]
    """Since it last used the account of each upstream."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    at_ns: int
    version: str
    hostname: str
    condition: Condition
    started_at_ns: int | None
    """Wall clock; None when the relay is down."""
    refusing_because: str
    """Why no mail is accepted just now; empty when it is."""
    upstreams: tuple[UpstreamStatus, ...]
    """In the order of the policy; the first is the default."""
    queue: Mapping[QueueState, QueueCounts]
    totals: Totals
    policy: PolicyStatus
    disk: DiskStatus
    lanes: tuple[LaneStatus, ...] = ()
    certificates: tuple[CertificateStatus, ...] = ()
    """Of each listener that has one and runs."""
    routes: tuple[RouteStatus, ...] = ()
    """In the order of their first numbers."""
    recovering: int = 0
    """Messages that the start has yet to read, about: no count of the queue has them.  0: all are known."""
    hosts: tuple[HostStatus, ...] = ()

    def counts(self, state: QueueState) -> QueueCounts:
        return self.queue.get(state, QueueCounts())


RecipientStatus = Literal["to do", "relayed", "bounced", "expired", "deleted"]


@dataclass(frozen=True, slots=True)
class RecipientView:
    address: str
    status: RecipientStatus
    text: str = ""
    """The last reply, or what else there is to say of it; empty where it was relayed."""
    last_attempt_at_ns: int | None = None
    next_attempt_at_ns: int | None = None
    """Of one that is to do, as of its message."""
    reported: bool = False
    """It ended, and the sender was told while other recipients were left."""
    route: int | None = None
    """The number of the route of the policy that takes it, from 1; None where the policy has none."""
    upstream: str = ""
    """With which it stands; empty where nothing of it is to be sent."""
    notify: str = ""
    """As in RFC 3461, 4.1; empty where the sender said nothing."""
    orcpt: str = ""


@dataclass(frozen=True, slots=True)
class MessageView:
    queue_id: QueueId
    state: QueueState
    size_bytes: int
    arrival_at_ns: int
    reverse_path: str
    recipients_left: int
    recipients: tuple[str, ...]
    """The recipients left; in a long listing only the first."""
    reason: str = ""
    """Why it waits: the limit that is full, the pause, or the last reply."""
    next_attempt_at_ns: int | None = None
    """The earliest instant that its back-off allows."""
    eta_at_ns: int | None = None
    """When it will go, by estimate; None where nobody can tell."""
    upstream: str = ""
    """In whose line it stands, or the first part of it."""
    held_by: str = ""
    """In words; empty where it goes now."""
    lane: str = ""
    """Empty where the policy has none."""
    upstream_because: str = ""
    """Why it stands there and not in the line of the upstream that its route prefers; empty where it does."""
    further_upstreams: tuple[str, ...] = ()
    """Those in whose lines other recipients stand, where they go by several routes."""

    client: str = ""
    user: str | None = None
    message_id: str | None = None
    """With its brackets."""
    subject: str = ""
    """Decoded."""
    client_queue_id: str = ""
    """By which the client's own queue knows it."""
    helo: str = ""
    """From here on only of a message that was read for `relay queue show`: a listing reads none."""
    protocol: str = ""
    ret: str = ""
    """As in RFC 3461, 4.3; empty where it was not given."""
    envid: str = ""
    """Decoded."""
    recipient_statuses: tuple[RecipientView, ...] = ()
    """All, in the order of the envelope."""
    header: str = ""
    """As it is, foreign text; empty where it was not read."""
    upstream_choice: Because = Because.PREFERRED
    """As `upstream_because`, as a value."""
    instead_of: str = ""
    """The upstream that is passed over for `upstream`; empty for none."""
    rewritten_as: str = ""
    """The sender that its upstream will see (`rewrite` of its route); empty where that is `reverse_path`."""
    host: str = ""
    """Of a shared queue, who has it; empty for no host yet, and where each queue is one host's."""


_ADDRESS = re.compile(r'<?(?:"(?:[^"\\]|\\.)*"|[^\s<>",;]+)@(?:\[[^\]\s]*\]|[^\s<>",;:()]+)>?')


def without_addresses(text: str) -> str:
    return _ADDRESS.sub("<address>", text)


def public(value: Any) -> Any:
    """Remove mail addresses from every text in a value, and from limits their key, which may be a name."""
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


_NULL_WHERE_EMPTY = frozenset({
    "refusing_because", "paused_because", "paused_by", "proving_after", "held_by", "last_error",
    "reason", "upstream", "upstream_because", "instead_of", "lane",
    "rewritten_as", "host",
})  # fmt: skip
_READ_ONLY = ("helo", "protocol", "ret", "envid", "recipient_statuses", "header")
"""The fields of a `MessageView` that only a message that was read has."""


def as_json(value: Any) -> Any:
    """Return a value for scripts: texts for instants, seconds for spans.

    Keys are the fields' names: they may be added, never renamed.
    """
    match value:
        case enum.Enum():
            return value.value
        case str() | int() | float() | None:
            return value
        case Mapping():
            return {as_json(key): as_json(its) for key, its in value.items()}
        case tuple():
            return [as_json(each) for each in value]
    told: dict[str, Any] = {}
    for each in fields(value):
        name, its = each.name, getattr(value, each.name)
        if name.endswith(("at_ns", "until_ns")):
            told[name.removesuffix("_ns")] = rfc3339_or_none(its)
        elif name.endswith("_ns"):
            told[name.removesuffix("_ns") + "_seconds"] = None if its is None else its / SECOND_NS
        else:
            told[name] = None if its == "" and name in _NULL_WHERE_EMPTY else as_json(its)
    return told


def to_json(snapshot: Snapshot) -> dict[str, Any]:
    """Return every queue state."""
    every = {state: snapshot.counts(state) for state in QueueState}
    told: dict[str, Any] = as_json(replace(snapshot, queue=every))
    for upstream, its in zip(snapshot.upstreams, told["upstreams"], strict=True):
        drained_ns = upstream.drained_at_ns
        its["drain_seconds"] = None if drained_ns is None else (drained_ns - snapshot.at_ns) / SECOND_NS
        if snapshot.condition is Condition.DOWN and upstream.state is UpstreamState.OPEN:
            # No mail goes while the relay is down, whatever the upstream would allow.
            its["state"] = Condition.DOWN.value
        for limit, shown in zip(upstream.limits, its["limits"], strict=True):
            wait_ns = 0 if limit.opens_at_ns is None else max(0, limit.opens_at_ns - snapshot.at_ns)
            shown["limit"] = limit.label
            shown["opens_in_seconds"] = wait_ns / SECOND_NS
    return told


def message_to_json(message: MessageView) -> dict[str, Any]:
    return {key: its for key, its in as_json(message).items() if key not in _READ_ONLY}


def detail_to_json(message: MessageView) -> dict[str, Any]:
    return dict(as_json(message))
