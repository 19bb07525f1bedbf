"""Filters that select messages, sort orders for listings, and summaries.  Pure.

Listings, summaries and verbs share one matcher.  Every filter must match; of one filter's values any one
suffices.  Filters test the recipients left.  Memory keeps only the first of them, so the caller reads a
message with more recipients before it asks `Filters.fit_recipients`.
Does not: read a clock or a spool.
"""

import enum
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from heapq import nsmallest
from ipaddress import ip_network
from itertools import islice
from typing import Any

from relay.clock import SECOND_NS
from relay.mail.address import comparable, comparable_domain, matches, parse_search
from relay.queue.sorting import Network, is_address, is_client, is_domain, is_like
from relay.status.snapshot import MessageView, QueueState, to_json

_MINUTE_NS = 60 * SECOND_NS
AGES = tuple(5 * 2**doubled for doubled in range(9))
"""Upper bounds of a summary's columns in minutes, as in qshape(1); one more column has no bound."""


@dataclass(frozen=True, slots=True)
class Filters:
    """An empty filter matches anything.  Patterns are those of lanes (`relay.queue.sorting`)."""

    senders: tuple[str, ...] = ()
    recipients: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    """Of recipients."""
    users: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    """IP addresses, networks, or patterns of client names."""
    lanes: tuple[str, ...] = ()
    upstreams: tuple[str, ...] = ()
    states: tuple[QueueState, ...] = ()
    older_ns: int = 0
    """The minimum age."""
    size_bytes: int = 0
    """The minimum size."""
    reason: str = ""
    """A part of the text why a message waits, or what holds it.  For listings only; no verb uses it."""
    text: str = ""
    """Words of a message's ids, Subject, sender or recipients.  For listings only, as `reason`."""

    def __post_init__(self) -> None:
        """Raise ValueError if `text` has nothing to search for."""
        if self.text:
            parse_search(self.text)

    @property
    def is_any(self) -> bool:
        return self == EVERYTHING

    @property
    def need_recipients(self) -> bool:
        return bool(self.recipients or self.domains or self.text)

    def match(self, view: MessageView) -> bool:
        """Return whether a message with all its recipients left matches."""
        return self.fit(view) and self.fit_recipients(view)

    def fit(self, view: MessageView) -> bool:
        """Test only the filters that need no recipients."""
        return (
            (not self.states or view.state in self.states)
            and view.age_ns >= self.older_ns
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

    def fit_recipients(self, view: MessageView) -> bool:
        """Test the other filters, on a message with all its recipients left."""
        recipients = view.recipients
        if self.recipients and not any(is_address(self.recipients, each) for each in recipients):
            return False
        if self.domains and not any(is_domain(self.domains, _domain(each)) for each in recipients):
            return False
        names = view.queue_id, view.message_id, view.subject, view.client_queue_id
        return not self.text or matches(parse_search(self.text), names, (view.reverse_path, *recipients))


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
"""`arrival` is oldest first, `size` largest first, `recipients` most first, `eta` soonest first."""


class By(enum.StrEnum):
    SENDER = "sender"
    DOMAIN = "domain"
    LANE = "lane"
    UPSTREAM = "upstream"
    REASON = "reason"


def arranged(views: Iterable[MessageView], sort: str, limit: int | None) -> list[MessageView]:
    """Return the first `limit` views by one of SORTS; an empty `sort` leaves them in their order."""
    by = _SORTS.get(sort)
    if by is None:
        return list(islice(views, limit))
    return sorted(views, key=by) if limit is None else nsmallest(limit, views, key=by)


@dataclass(frozen=True, slots=True)
class GroupRow:
    key: str | None
    """None in the row of all messages.  A sender is in its `comparable` form; `<>` sends reports."""
    messages: int
    recipients: int
    """Recipients left."""
    size_bytes: int
    messages_by_age: tuple[int, ...]
    """One number for each column: below the first of AGES, then below the second, …, from the last on."""


def group_to_json(group: GroupRow) -> dict[str, Any]:
    columns = [*(f"below_{minutes}m" for minutes in AGES), f"from_{AGES[-1]}m"]
    return {**to_json(group), "messages_by_age": dict(zip(columns, group.messages_by_age, strict=True))}


class Summary:
    def __init__(self, by: By) -> None:
        self._by = by
        self._sums = defaultdict[str | None, list[int]](lambda: [0] * (4 + len(AGES)))
        """For each key, and under None for all: messages, recipients, bytes, and messages by age."""

    def add(self, views: Iterable[MessageView]) -> None:
        """Add messages.  For a summary by domain, each must list all its recipients left."""
        for each in views:
            for key, recipients in (None, each.recipients_left), *_shares(each, self._by).items():
                sums = self._sums[key]
                sums[0] += 1
                sums[1] += recipients
                sums[2] += each.size_bytes
                sums[3 + bisect_right(AGES, each.age_ns // _MINUTE_NS)] += 1

    def rows(self, limit: int | None = None) -> list[GroupRow]:
        """Return first the row of all messages, then the rows with most messages.

        By domain, a message counts once in the row of each of its recipient domains.
        """
        self._sums[None]  # the row exists even without a message
        rows = [
            GroupRow(key, messages, recipients, size_bytes, tuple(by_age))
            for key, (messages, recipients, size_bytes, *by_age) in self._sums.items()
        ]
        rows.sort(key=lambda row: (row.key is not None, -row.messages, row.key))
        return rows if limit is None else rows[: 1 + limit]


def _shares(view: MessageView, by: By) -> Mapping[str, int]:
    """Return the keys of the rows that a message counts in, with its number of recipients there."""
    if by is By.DOMAIN:
        return Counter(comparable_domain(_domain(each)) for each in view.recipients)
    key = {
        By.SENDER: comparable(view.reverse_path) or "<>",
        By.LANE: view.lane,
        By.UPSTREAM: view.upstream,
        By.REASON: view.reason or view.held_by,
    }[by]
    return {key: view.recipients_left}
