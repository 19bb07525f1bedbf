"""Which messages an operator means, in what order, and how they add up.  Pure.

One matcher, for a listing, its summary and the verbs.  Different filters must all match, of one
filter's values any one.  Memory keeps the first recipients of a message; where a filter asks for others,
they have to be read (`Filters.judge`).  Recipients are those that are left.
Does not: read a clock or a spool.
"""

import enum
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import nsmallest
from ipaddress import ip_network
from itertools import islice
from typing import Any, NamedTuple

from relay.clock import SECOND_NS
from relay.mail.address import comparable, comparable_domain
from relay.mail.sought import sought, words_of
from relay.queue.lanes import turn_of
from relay.queue.sorting import Network, is_address, is_client, is_domain, is_like
from relay.status.snapshot import MessageView, QueueState, as_json

_MINUTE_NS = 60 * SECOND_NS
AGES = tuple(5 * 2**doubled for doubled in range(9))
"""Bounds of the columns of a summary in minutes, as qshape(1) has them; one more column has no bound."""


class Listed(NamedTuple):
    view: MessageView
    age_ns: int
    """Since acceptance."""

    @property
    def knows_recipients(self) -> bool:
        return len(self.view.recipients) == self.view.recipients_left


@dataclass(frozen=True, slots=True)
class Filters:
    """Empty ones match anything.  Patterns are those of lanes (`relay.queue.sorting`)."""

    senders: tuple[str, ...] = ()
    recipients: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    """Of recipients."""
    users: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    """Addresses, networks, or patterns of their names."""
    lanes: tuple[str, ...] = ()
    upstreams: tuple[str, ...] = ()
    states: tuple[QueueState, ...] = ()
    older_ns: int = 0
    """At least so old."""
    size_bytes: int = 0
    """At least so large."""
    reason: str = ""
    """A part of why it waits, or of what holds it: for showing only, no verb goes by it."""
    text: str = ""
    """Words of its ids, its Subject, its sender or a recipient: for showing only, as `reason`."""

    def __post_init__(self) -> None:
        """Raise ValueError for a text in which there is nothing to look for."""
        if self.text:
            sought(self.text)

    @property
    def is_any(self) -> bool:
        return self == EVERYTHING

    def judge(self, listed: Listed) -> bool | None:
        """Return None where only recipients can tell that are not in memory."""
        view = listed.view
        if not self._fits(view, listed.age_ns):
            return False
        if view.state is QueueState.CORRUPT:
            return not (self.recipients or self.domains) and self._has_text(view, ())
        # What some of the recipients fit, all of them fit.
        return self.fits_recipients(view, view.recipients) or (False if listed.knows_recipients else None)

    def fits_recipients(self, view: MessageView, recipients: Sequence[str]) -> bool:
        return (
            (not self.recipients or any(is_address(self.recipients, each) for each in recipients))
            and (not self.domains or any(is_domain(self.domains, _domain(each)) for each in recipients))
            and self._has_text(view, recipients)
        )

    def _fits(self, view: MessageView, age_ns: int) -> bool:
        """Leave out what asks for recipients."""
        return (
            (not self.states or view.state in self.states)
            and age_ns >= self.older_ns
            and view.size_bytes >= self.size_bytes
            and (not self.lanes or view.lane in self.lanes)
            and (
                not self.upstreams or not {view.upstream, *view.further_upstreams}.isdisjoint(self.upstreams)
            )
            and (not self.senders or is_address(self.senders, view.reverse_path))
            and (not self.users or any(is_like(user, view.user) for user in self.users if view.user))
            and (not self.clients or any(_is_client(client, view.client) for client in self.clients))
            and any(self.reason.lower() in why.lower() for why in (view.reason, view.held_by))
        )

    def _has_text(self, view: MessageView, recipients: Sequence[str]) -> bool:
        if not self.text:
            return True
        names = view.queue_id, view.message_id, view.subject, view.client_queue_id
        return sought(self.text).is_in(words_of(names, (view.reverse_path, *recipients)))


EVERYTHING = Filters()


def _domain(address: str) -> str:
    return address.rpartition("@")[2]


def _is_client(pattern: str, client: str) -> bool:
    network = _network(pattern)
    if network is not None:
        return is_client((network,), client)
    pattern, client = pattern.lower(), client.lower()
    return is_like(pattern, client) or is_like(pattern, client.partition("[")[0])


@lru_cache(64)
def _network(pattern: str) -> Network | None:
    try:
        return ip_network(pattern)
    except ValueError:
        return None


_SORTS: Mapping[str, Callable[[MessageView], Any]] = {
    "arrival": lambda view: view.arrival_at_ns,
    "newest": lambda view: -view.arrival_at_ns,
    "size": lambda view: -view.size_bytes,
    "recipients": lambda view: -view.recipients_left,
    "sender": lambda view: comparable(view.reverse_path),
    "lane": lambda view: view.lane,
    "state": lambda view: tuple(QueueState).index(view.state),
    "eta": lambda view: (view.eta_at_ns is None, view.eta_at_ns or 0),
}
SORTS = tuple(_SORTS)
"""Oldest first (or newest), largest first, most recipients first, soonest first."""


class By(enum.StrEnum):
    SENDER = "sender"
    DOMAIN = "domain"
    LANE = "lane"
    UPSTREAM = "upstream"
    REASON = "reason"


USAGE_KEYS: Mapping[str, Callable[[str, str, str], str]] = {
    "sender": lambda reverse_path, _client, _lane: turn_of(reverse_path),
    "client": lambda _reverse_path, client, _lane: client,
    "lane": lambda _reverse_path, _client, lane: lane,
}
"""By what the use of a window adds up; a list with VERP (`turn_of`) is one sender."""


@dataclass(frozen=True, slots=True)
class Wanted:
    filters: Filters = EVERYTHING
    sort: str = ""
    """One of SORTS; empty: oldest first, and what is set aside at the end."""
    limit: int | None = None

    def arranged(self, views: Iterable[MessageView]) -> list[MessageView]:
        by = _SORTS.get(self.sort)
        if by is None:
            return list(islice(views, self.limit))
        return sorted(views, key=by) if self.limit is None else nsmallest(self.limit, views, key=by)


WHOLE_QUEUE = Wanted()


@dataclass(frozen=True, slots=True)
class GroupRow:
    key: str | None
    """None of the row of all.  Of a sender as `comparable` has it; `<>` sends reports."""
    messages: int
    recipients: int
    """Those that are left."""
    size_bytes: int
    messages_by_age: tuple[int, ...]
    """Younger than the first of AGES, than the second, and so on; older than the last."""


def group_to_json(group: GroupRow) -> dict[str, Any]:
    columns = [*(f"below_{minutes}m" for minutes in AGES), f"from_{AGES[-1]}m"]
    return {**as_json(group), "messages_by_age": dict(zip(columns, group.messages_by_age, strict=True))}


class Summary:
    def __init__(self, by: By) -> None:
        self._by = by
        self._sums = defaultdict[str | None, list[int]](lambda: [0] * (4 + len(AGES)))
        """By key, and of all by None: messages, recipients, bytes, and messages by age."""

    def add(self, listed: Iterable[Listed]) -> None:
        """Add messages; by domain each has to know all its recipients."""
        for each in listed:
            for key, recipients in (None, each.view.recipients_left), *_shares(each, self._by).items():
                sums = self._sums[key]
                sums[0] += 1
                sums[1] += recipients
                sums[2] += each.view.size_bytes
                sums[3 + bisect_right(AGES, each.age_ns // _MINUTE_NS)] += 1

    def rows(self, limit: int | None = None) -> list[GroupRow]:
        """Return first the row of all, then those with most messages.

        By domain a message is in each row that has a recipient of it, once.
        """
        self._sums[None]  # also where there is no message
        rows = [
            GroupRow(key, messages, recipients, size_bytes, tuple(by_age))
            for key, (messages, recipients, size_bytes, *by_age) in self._sums.items()
        ]
        rows.sort(key=lambda row: (row.key is not None, -row.messages, row.key))
        return rows if limit is None else rows[: 1 + limit]


def _shares(listed: Listed, by: By) -> Mapping[str, int]:
    """Return the rows that a message is in, and its recipients there."""
    view = listed.view
    if by is By.DOMAIN:
        return Counter(comparable_domain(_domain(each)) for each in view.recipients)
    key = {
        By.SENDER: comparable(view.reverse_path) or "<>",
        By.LANE: view.lane,
        By.UPSTREAM: view.upstream,
        By.REASON: view.reason or view.held_by,
    }[by]
    return {key: view.recipients_left}
