"""The lines of `relay top`, of what the relay said last.  Pure: reads no clock and asks nothing.

Guarantees: what comes from outside (names, addresses, replies) is as `printable` has it.  Every state is
said in words.
"""

import enum
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from relay.cli.options import printable
from relay.cli.render import drain_words, in_plain_words, state_words, unread_words, used_words
from relay.mail.formats import span
from relay.status.filters import Filters, Group
from relay.status.snapshot import LaneStatus, LimitStatus, QueueState, Snapshot, UpstreamStatus

CELLS = 20
"""Of a bar."""
MOST_LISTED = 20
"""Senders, and reasons."""


class Kind(enum.StrEnum):
    UPSTREAM = "upstream"
    LIMIT = "limit"
    ROUTE = "route"
    LANE = "lane"
    SENDER = "sender"
    REASON = "reason"


class Row(NamedTuple):
    kind: Kind
    name: str
    """As the relay has it."""
    shown: str
    """The name, as the terminal may have it."""
    said: str

    @property
    def key(self) -> str:
        return f"{self.kind} {self.name}"

    def filters(self, states: tuple[QueueState, ...]) -> Filters | None:
        """Return what finds the messages of the row in these states; None where no verb goes by it."""
        match self.kind:
            case Kind.UPSTREAM:
                return Filters(upstreams=(self.name,), states=states)
            case Kind.LANE:
                return Filters(lanes=(self.name,), states=states)
            case Kind.SENDER:
                return Filters(senders=(self.name,), states=states)
        return None


class Sums(NamedTuple):
    """Rows of `relay queue --by`, each with the row of all in front."""

    senders: Sequence[Group] = ()
    reasons: Sequence[Group] = ()


def head(snapshot: Snapshot, now_ns: int) -> Iterator[str]:
    """Yield what always stands on top: the relay, its queue, and what is wrong.  `now_ns`: wall clock."""
    since = "" if snapshot.started_at_ns is None else f" for {span(now_ns - snapshot.started_at_ns)}"
    yield f"relay {snapshot.version} on {snapshot.hostname}: {snapshot.condition}{since}"
    counts = [(snapshot.counts(state).messages, state.value) for state in QueueState]
    yield "queue: " + (", ".join(f"{count} {state}" for count, state in counts if count) or "empty")
    if snapshot.refusing_because:
        yield printable(f"refusing mail: {snapshot.refusing_because}")
    if snapshot.recovering:
        yield unread_words(snapshot)
    if not snapshot.policy.last_reload_ok:
        yield printable(f"the last edit of the policy was refused: {snapshot.policy.last_error}")


def rows(snapshot: Snapshot, sums: Sums, now_ns: int, find: str = "") -> list[Row]:
    """Return the table; with `find` only rows with this in a cell."""
    made: list[Row] = []
    for upstream in snapshot.upstreams:
        made.append(_row(Kind.UPSTREAM, upstream.name, _upstream(upstream, now_ns)))
        made += (
            _row(Kind.LIMIT, f"{upstream.name} {limit.words}", _limit(limit, now_ns))
            for limit in upstream.limits
        )
    for route in snapshot.routes:
        why = route.why(now_ns)
        said = f"{', '.join(route.upstreams)}: through {route.upstream}{f'; {why}' if why else ''}"
        made.append(_row(Kind.ROUTE, route.numbers_words, said))
    made += (_row(Kind.LANE, lane.name, _lane(lane)) for lane in snapshot.lanes)
    made += (_row(Kind.SENDER, group.key, _count(group)) for group in sums.senders if group.key)
    limits = [limit for upstream in snapshot.upstreams for limit in upstream.limits]
    for group in sums.reasons:
        if group.key:
            made.append(_row(Kind.REASON, in_plain_words(group.key, limits), _count(group)))
    return list(_found(made, find.lower()))


def _row(kind: Kind, name: str, said: str) -> Row:
    return Row(kind, name, printable(name), printable(said))


def _found(made: Iterable[Row], find: str) -> Iterator[Row]:
    return (row for row in made if find in row.name.lower() or find in row.said.lower())


def _upstream(upstream: UpstreamStatus, now_ns: int) -> str:
    facts = [state_words(upstream, now_ns)]
    if upstream.paused_because:
        facts.append(upstream.paused_because)
    if upstream.in_flight:
        facts.append(f"{upstream.in_flight} in flight")
    if upstream.waiting_messages:
        facts.append(f"{upstream.waiting_messages} waiting, drained {drain_words(upstream, now_ns)}")
    return "; ".join(facts)


def _limit(limit: LimitStatus, now_ns: int) -> str:
    opens = "" if limit.opens_at_ns is None else f", {limit.opening_words(now_ns)}"
    return f"{bar(limit.used, limit.count)} {used_words(limit)}{opens}"


def bar(used: int, count: int) -> str:
    """Return how full a window is: full only where no room is left, empty only where nothing is used."""
    filled = CELLS if used >= count else max(min(1, used), min(CELLS - 1, used * CELLS // count))
    return f"[{'#' * filled}{'-' * (CELLS - filled)}]"


def _lane(lane: LaneStatus) -> str:
    ceiling = "" if lane.ceiling_percent is None else f", at most {lane.ceiling_percent} %"
    waiting = f"{lane.waiting_messages} waiting, oldest {span(lane.oldest_age_ns)}"
    return f"share {lane.share_percent:.4g} %{ceiling}; {waiting if lane.waiting_messages else 'empty'}"


def _count(group: Group) -> str:
    return f"{group.messages} messages, {group.recipients} recipients"
