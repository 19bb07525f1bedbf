"""What an operator can see, at one instant.  Pure.

Metrics, /status.json, the status page and the command line render these values and look
nowhere else, so that they cannot disagree.  `to_json` is the form for scripts: RFC 3339 for
instants, seconds for spans.  The control socket carries the values themselves.

Texts may quote an upstream's reply: one line of printable characters that may name an
address.  `public` removes addresses, for pages that others than the operator can read.
"""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.mail.formats import rfc3339, rfc3339_or_none
from relay.spool.interface import Totals
from relay.throttle.limit_hints import Hint, finding_to_json


class Condition(enum.StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DOWN = "down"
    """Seen by the command line, which read the spool itself."""


class UpstreamState(enum.StrEnum):
    OPEN = "open"
    PAUSED = "paused"
    """The upstream refused us; it is tried again at `paused_until_ns`."""
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
    """As the policy's limit shows itself, e.g. `8 messages per 60s`."""
    unit: Literal["messages", "recipients", "connections"]
    used: int
    """Of the fullest key, where the limit has keys; above `count` after N was lowered."""
    count: int
    """N."""
    period_ns: int
    """T, with its guard."""
    opens_at_ns: int | None = None
    """Wall clock: when the next slot opens; None while there is room."""
    for_each: str | None = None
    """What has a window each."""
    key: str | None = None
    """The fullest key, of which all of this tells."""
    most: int | None = None
    """The most slots that were occupied at one instant, counted anew from the history; None before that."""
    policy_count: int | None = None
    """The policy's N, where `adapt` lowered it to `count`; None where it is in force."""
    is_crowded: bool = False
    """There were more keys than are kept apart, and some of them count for every key."""

    @property
    def remarks(self) -> str:
        """Return what else there is to say behind `used/count`; begins with a comma."""
        lowered = "" if self.policy_count is None else f", effective {self.count} of {self.policy_count}"
        return lowered + (", more keys than are kept apart" if self.is_crowded else "")


@dataclass(frozen=True, slots=True)
class UpstreamStatus:
    name: str
    host: str
    port: int
    state: UpstreamState
    paused_until_ns: int | None = None
    """Wall clock."""
    paused_because: str = ""
    connections_open: int = 0
    """Idle ones included."""
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
    """What holds the next message that waits, as `relay.status.forecast` names it; empty for nothing."""
    findings: tuple[Hint, ...] = ()
    """What the last refusal for having sent too much says, until the policy's limits are as strict."""


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


@dataclass(frozen=True, slots=True)
class QueueCounts:
    messages: int = 0
    recipients: int = 0
    """Those still to do."""
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
    waiting_because: str = ""
    """Why an edit is not in force yet; empty where none waits."""
    waiting_until_ns: int | None = None
    """Wall clock: when it will be, if the file stays as it is; None where that is not all it waits for."""


@dataclass(frozen=True, slots=True)
class DiskStatus:
    free_bytes: int
    free_inodes: int | None
    """None where the file system has no fixed number of them."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    at_ns: int
    """Wall clock."""
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
    ledger: Totals
    policy: PolicyStatus
    disk: DiskStatus
    lanes: tuple[LaneStatus, ...] = ()
    """In the order of the policy; none where it has none."""

    def counts(self, state: QueueState) -> QueueCounts:
        """Return zeros where the snapshot says nothing of a state."""
        return self.queue.get(state, _NOTHING)


RecipientStatus = Literal["to do", "relayed", "bounced", "expired", "deleted"]


@dataclass(frozen=True, slots=True)
class RecipientView:
    address: str
    status: RecipientStatus
    text: str = ""
    """Why, where it failed."""


@dataclass(frozen=True, slots=True)
class MessageView:
    queue_id: QueueId
    state: QueueState
    size_bytes: int
    arrival_at_ns: int
    """Wall clock."""
    reverse_path: str
    recipients_left: int
    recipients: tuple[str, ...]
    """The recipients left; in a long listing only the first."""
    reason: str = ""
    """Why it waits: the limit that is full, the pause, or the last reply."""
    next_attempt_at_ns: int | None = None
    """Wall clock: the earliest instant that its back-off allows."""
    eta_at_ns: int | None = None
    """Wall clock: when it will go, by estimate; None where nobody can tell."""
    upstream: str = ""
    held_by: str = ""
    """As `relay.status.forecast` names it; empty where it goes now."""
    lane: str = ""
    """Empty where the policy has none."""

    client: str = ""
    """From here on only of a message that was read for `relay queue show`: a listing reads none."""
    helo: str = ""
    protocol: str = ""
    user: str | None = None
    recipient_statuses: tuple[RecipientView, ...] = ()
    """All, in the order of the envelope."""
    header: str = ""
    """The header section of the content as it is, foreign text; empty where it was not read."""


_NOTHING = QueueCounts()


_ADDRESS = re.compile(r'<?(?:"(?:[^"\\]|\\.)*"|[^\s<>",;]+)@(?:\[[^\]\s]*\]|[^\s<>",;:()]+)>?')


def public(snapshot: Snapshot) -> Snapshot:
    """Remove mail addresses: replies that name one lose it, and limits their key."""
    upstreams = tuple(
        replace(
            upstream,
            paused_because=_ADDRESS.sub("<address>", upstream.paused_because),
            held_by=_ADDRESS.sub("<address>", upstream.held_by),
            limits=tuple(replace(limit, key=None) for limit in upstream.limits),
        )
        for upstream in snapshot.upstreams
    )
    return replace(
        snapshot, upstreams=upstreams, refusing_because=_ADDRESS.sub("<address>", snapshot.refusing_because)
    )


_NULL_WHERE_EMPTY = frozenset({
    "refusing_because", "paused_because", "held_by", "last_error", "waiting_because", "reason", "upstream",
    "lane",
})  # fmt: skip


def _json(value: object, *others: str) -> dict[str, Any]:
    """Return a value for scripts without `others`: texts for instants, seconds for spans."""
    told: dict[str, Any] = {}
    for field in fields(value):  # type: ignore[arg-type]  # every caller has a dataclass
        name, its = field.name, getattr(value, field.name)
        if name in others:
            continue
        if name.endswith(("at_ns", "until_ns")):
            told[name.removesuffix("_ns")] = rfc3339_or_none(its)
        elif name.endswith("_ns"):
            told[name.removesuffix("_ns") + "_seconds"] = its / SECOND_NS
        elif isinstance(its, enum.StrEnum):
            told[name] = its.value
        else:
            told[name] = None if its == "" and name in _NULL_WHERE_EMPTY else its
    return told


def to_json(snapshot: Snapshot) -> dict[str, Any]:
    """Return every queue state.  Keys are the fields' names: they may be added, never renamed."""
    ledger = snapshot.ledger
    return {
        **_json(snapshot, "upstreams", "queue", "ledger", "policy", "disk", "lanes"),
        "upstreams": [_upstream_json(upstream, snapshot.at_ns) for upstream in snapshot.upstreams],
        "lanes": [{**_json(each), "share_percent": round(each.share_percent, 3)} for each in snapshot.lanes],
        "queue": {state.value: _json(snapshot.counts(state)) for state in QueueState},
        "ledger": {**_json(ledger), "imbalance": ledger.imbalance},
        "policy": _json(snapshot.policy),
        "disk": _json(snapshot.disk),
    }


def _upstream_json(upstream: UpstreamStatus, at_ns: int) -> dict[str, Any]:
    drained_ns = upstream.drained_at_ns
    return {
        **_json(upstream, "limits", "findings"),
        "drain_seconds": None if drained_ns is None else (drained_ns - at_ns) / SECOND_NS,
        "limits": [_limit_json(limit, at_ns) for limit in upstream.limits],
        "findings": [{"at": rfc3339(each.at_ns), **finding_to_json(each)} for each in upstream.findings],
    }


def _limit_json(limit: LimitStatus, at_ns: int) -> dict[str, Any]:
    opens_ns = limit.opens_at_ns
    return {
        "limit": limit.label,
        **_json(limit, "upstream", "label", "policy_count", "is_crowded"),
        "policy_count": limit.policy_count or limit.count,
        "crowded": limit.is_crowded,
        "opens_in_seconds": 0.0 if opens_ns is None else max(0, opens_ns - at_ns) / SECOND_NS,
    }


READ_ONLY = ("client", "helo", "protocol", "user", "recipient_statuses", "header")
"""The fields of a `MessageView` that only a message that was read has."""


def message_to_json(message: MessageView) -> dict[str, Any]:
    return {**_json(message, *READ_ONLY), "recipients": list(message.recipients)}


def detail_to_json(message: MessageView) -> dict[str, Any]:
    statuses = [_json(each) for each in message.recipient_statuses]
    return {**_json(message), "recipients": list(message.recipients), "recipient_statuses": statuses}
