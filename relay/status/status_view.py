"""Builds the `Snapshot` and the listing of a sender at one instant, and the comparison of `relay plan`.

Reads memory only, except `look_at_hosts`.  The free space and the counts of incoming and corrupt messages
are as old as the sender's last look at the spool, in general at most a second.
"""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace

from relay import __version__
from relay.clock import Clock
from relay.policy.lane import lanes_of, route_numbers_of
from relay.policy.model import Policy, Upstream
from relay.policy.source import differences
from relay.policy.units import DatabaseLogin
from relay.queue.lines import Sums, total
from relay.queue.queued import DEFAULT_LANE, State
from relay.queue.routes import Because
from relay.sender.account import UpstreamView, is_mended
from relay.sender.sender import Sender
from relay.spool.root.headroom import why_no_room
from relay.status.eta import NOT_IN_POLICY, AccountForecast, Listing, Load
from relay.status.plan import OverLimit, Plan, PlannedUpstream
from relay.status.snapshot import (
    CertificateStatus,
    Condition,
    DiskStatus,
    HostStatus,
    LaneStatus,
    LimitStatus,
    PolicyStatus,
    QueueCounts,
    QueueState,
    RouteStatus,
    Snapshot,
    UpstreamState,
    UpstreamStatus,
)
from relay.throttle.limit import Usage, with_ceilings
from relay.verdicts.account import Health

DOWN = "stop: the relay is down"
OTHER_HISTORY = "stop: its history is read once the edit is in force"


class StatusView:
    """The daemon sets the public attributes."""

    def __init__(
        self, sender: Sender, policy: Policy, hostname: str, clock: Clock, status: PolicyStatus
    ) -> None:
        self.condition = Condition.STARTING
        self.refusing_because = "starting"
        self.policy = policy
        self.policy_status = status
        self.certificates: tuple[CertificateStatus, ...] = ()
        self.started_ns: int | None = None
        """Boottime, because the wall clock may be set meanwhile."""
        self._sender = sender
        self._hostname = hostname
        self.clock = clock
        self.hosts: tuple[HostStatus, ...] = ()

    async def look_at_hosts(self, every_s: float | None = None) -> None:
        """Query the hosts' databases once, or every `every_s` seconds for ever."""
        while True:
            if databases_of(self.policy):
                self.hosts = await asyncio.to_thread(_listed_hosts, self.policy)
            if every_s is None:
                return
            await asyncio.sleep(every_s)

    def why_not_ready(self) -> str:
        """Return why no mail is accepted; empty while it is."""
        return self._why_refusing() if self.condition is Condition.RUNNING else self.condition.value

    def _why_refusing(self) -> str:
        spool = self._sender.spool_counts
        return self.refusing_because or why_no_room((spool.free_bytes, spool.free_inodes)) or ""

    def snapshot(self) -> Snapshot:
        spool = self._sender.spool_counts
        counts = {QueueState(state.value): self._counted(state) for state in State}
        counts[QueueState.INCOMING] = QueueCounts(messages=0 if self._sender.unread else spool.unclaimed)
        counts[QueueState.CORRUPT] = QueueCounts(messages=spool.corrupt)
        at_ns, now_ns = self.clock.wall_ns(), self.clock.boottime_ns()
        return Snapshot(
            at_ns,
            __version__,
            self._hostname,
            self.condition,
            None if self.started_ns is None else at_ns - (now_ns - self.started_ns),
            self._why_refusing(),
            tuple(map(self._upstream, self.policy.upstreams)),
            counts,
            self._sender.totals,
            self.policy_status,
            DiskStatus(spool.free_bytes, spool.free_inodes),
            self._lanes(),
            self.certificates,
            self._routes(now_ns),
            self._sender.unread,
            self.hosts,
        )

    def listing(self) -> Listing:
        names = dict.fromkeys([*self.policy.upstreams, *self._sender.queue.names])
        views = {name: self._sender.view(name) for name in names}
        paused = {
            name: f"{name} is {_state(view).value}: {view.state.why}"
            for name, view in views.items()
            if view is not None and view.state.why and name in self.policy.upstreams
        }
        host = self._hostname if self._sender.spool_thread.is_shared else ""
        return Listing(
            self._sender.queue, {name: self.forecast(name) for name in names}, paused, self.clock, host
        )

    def plan(self, edited: Policy) -> Plan:
        """Compare when the queue will have gone under the policy in force and under an edited one.

        Mail stays in the line in which it stands.  An account of another history is not forecast.
        """
        planned, over = [], list[OverLimit]()
        for name in dict.fromkeys([*self.policy.upstreams, *self._sender.queue.names]):
            old, new = self.policy.upstreams.get(name), edited.upstreams.get(name)
            seen = self._sender.view(name)
            before = self._forecast_of(seen, old)
            why = NOT_IN_POLICY if new is None else OTHER_HISTORY
            after = AccountForecast(self.clock.boottime_ns(), rests=why, until_ns=None)
            if old and new and self.policy.history_of(name) == edited.history_of(name):
                if seen is not None and seen.limits is not None:
                    limits = seen.limits.judged_by(with_ceilings(new, edited.lanes))
                    seen = replace(seen, limits=limits)
                    over += self._over(name, limits.usage(of_all=True))
                after = self._forecast_of(seen, new, is_mended=is_mended(name, old, new))
            if (load := self._load(name)).messages:
                was, will = before.at(load), after.at(load)
                ends = self._wall_or_none(was.eta_ns), self._wall_or_none(will.eta_ns)
                planned.append(
                    PlannedUpstream(name, load.messages, load.recipients, *ends, was.held_by, will.held_by)
                )
        changed = tuple(differences(self.policy, edited))
        return Plan(self.clock.wall_ns(), changed, tuple(over), tuple(planned))

    def _over(self, upstream: str, usages: Iterable[Usage]) -> Iterator[OverLimit]:
        for each in usages:
            label, count = each.limit.label, each.limit.count
            if each.used > count:
                yield OverLimit(upstream, label, each.used, count, self._wall(each.opens_at_ns))

    def forecast(self, name: str) -> AccountForecast:
        return self._forecast_of(self._sender.view(name), self.policy.upstreams.get(name))

    def _forecast_of(
        self, seen: UpstreamView | None, upstream: Upstream | None, *, is_mended: bool = False
    ) -> AccountForecast:
        """`is_mended`: only an operator's pause still counts."""
        now_ns = self.clock.boottime_ns()
        if upstream is None or seen is None or seen.limits is None:
            return AccountForecast(now_ns, rests=NOT_IN_POLICY if upstream is None else DOWN, until_ns=None)
        return AccountForecast(
            now_ns,
            seen.limits.usage(seen.transaction_ns, of_all=True),
            connections=upstream.connections,
            transaction_ns=seen.transaction_ns,
            rests="" if is_mended and seen.state.operator is None else rest_words(seen),
            until_ns=None if seen.is_endless else seen.state.over_ns,
        )

    def _load(self, name: str) -> Load:
        """Return what waits in a line; a message in parts counts in each line that has a part."""
        counts = self._sender.queue.line(name).counts.of(State.WAITING)
        sums = total([its for _, its in counts])
        return Load(sums.parts, sums.recipients, sums.size_bytes)

    def _drained_at_ns(self, forecast: AccountForecast, view: UpstreamView | None, load: Load) -> int | None:
        """Return wall clock; None if that is unknown."""
        if view is None or self._sender.is_reading:
            return None
        if not load.messages:
            return None if view.is_endless else self.clock.wall_ns()
        return self._wall_or_none(forecast.at(load).eta_ns)

    def _held_by(self, name: str, forecast: AccountForecast, view: UpstreamView | None, load: Load) -> str:
        """Return what holds all waiting messages, or else what holds the next one."""
        if view is not None and view.state.why:
            return rest_words(view)
        if not load.recipients:
            return ""
        if view is None:
            return DOWN if self.condition is Condition.DOWN else ""
        if held_by := forecast.at(Load(1, 1, 1)).held_by:
            return held_by
        # If only a limit of its own key holds the message, its reason says so.
        waiting = (each for each in self._sender.queue.line(name) if each.state is State.WAITING)
        return next((each.why.text for each in waiting), "")

    def _counted(self, state: State) -> QueueCounts:
        its = total(self._sender.queue.counts(state).values())
        return QueueCounts(its.messages, its.recipients, its.size_bytes, self._age_ns(its))

    def _age_ns(self, sums: Sums) -> int:
        arrived_at_ns = sums.oldest_arrived_at_ns
        return 0 if arrived_at_ns is None else max(0, self.clock.boottime_ns() - arrived_at_ns)

    def _lanes(self) -> tuple[LaneStatus, ...]:
        lanes = lanes_of(self.policy.lanes)
        waiting: dict[str, list[Sums]] = {lane.name: [] for lane in lanes}
        for name, sums in self._sender.queue.counts(State.WAITING).items() if lanes else ():
            # Mail of a lane that an edit removed counts in the default lane.
            waiting.get(name, waiting[DEFAULT_LANE]).append(sums)
        weights = sum(lane.weight for lane in lanes)
        return tuple(
            LaneStatus(
                lane.name,
                round(100 * lane.weight / weights, 3),
                self.policy.lanes[lane.name].ceiling if lane.name in self.policy.lanes else None,
                its.messages,
                its.recipients,
                self._age_ns(its),
                lane.patience_ns,
            )
            for lane, its in zip(lanes, map(total, waiting.values()), strict=True)
        )

    def _routes(self, now_ns: int) -> tuple[RouteStatus, ...]:
        queue, settings = self._sender.queue, self.policy.routes
        found, present = [], queue.where()
        # Offline the choice is unknown: the queue was read without the states of the upstreams.
        is_known = self.condition is not Condition.DOWN
        for route, numbers in route_numbers_of(settings).items():
            choice = queue.choice_of(route, now_ns)
            counts = present.get(route, {})
            since_ns = None if choice.because is Because.PREFERRED else choice.since_ns
            # Mail that stands with a later upstream of the route waited too long for the chosen one.
            behind = route.upstreams[route.upstreams.index(choice.upstream) + 1 :]
            spills_to = tuple(name for name in behind if route.spill_after_ns and counts.get(name))
            found.append(
                RouteStatus(
                    numbers,
                    tuple(", ".join(settings[number - 1].asked()) or "all other mail" for number in numbers),
                    route.upstreams,
                    choice.upstream if is_known else "",
                    choice.because,
                    choice.instead_of,
                    self._wall_or_none(since_ns),
                    self._wall_or_none(choice.until_ns),
                    spills_to,
                    counts,
                )
            )
        return tuple(found)

    def _upstream(self, name: str) -> UpstreamStatus:
        upstream, load, forecast = self.policy.upstreams[name], self._load(name), self.forecast(name)
        view = self._sender.view(name)
        seen = view or UpstreamView()
        state, operator = seen.state, seen.state.operator
        is_timed = _state(seen) is UpstreamState.PAUSED and not seen.is_endless
        return UpstreamStatus(
            name,
            upstream.host,
            upstream.port,
            _state(seen),
            self._wall(state.over_ns) if is_timed else None,
            state.why,
            seen.connections_open,
            seen.connections_idle,
            self._limits(name, seen),
            load.messages,
            load.recipients,
            seen.in_flight,
            self._drained_at_ns(forecast, view, load),
            self._held_by(name, forecast, view, load),
            state.shown,
            "" if operator is None else operator.by,
            state.because if state.is_proving and not state.is_resting else "",
            seen.certificate_ends_at_ns,
            seen.client_certificate_ends_at_ns,
            seen.is_tried,
        )

    def _limits(self, name: str, seen: UpstreamView) -> tuple[LimitStatus, ...]:
        return tuple(
            LimitStatus(
                name,
                usage.limit.label,
                usage.limit.unit,
                usage.used,
                usage.limit.count,
                usage.limit.span_ns,
                self._wall(usage.opens_at_ns) if usage.used >= usage.limit.count else None,
                usage.limit.for_each,
                usage.key,
            )
            for usage in (() if seen.limits is None else seen.limits.usage())
        )

    def _wall(self, boottime_ns: int) -> int:
        return self.clock.wall_ns() + boottime_ns - self.clock.boottime_ns()

    def _wall_or_none(self, boottime_ns: int | None) -> int | None:
        return None if boottime_ns is None else self._wall(boottime_ns)


def rest_words(seen: UpstreamView) -> str:
    """Return what holds all mail for an upstream; empty if it is used or proving."""
    state = seen.state
    if state.operator is not None:
        return f"operator: {state.operator.who}"
    return f"{'stop' if state.shown is Health.STOPPED else 'pause'}: {state.why}" if state.why else ""


def _state(seen: UpstreamView) -> UpstreamState:
    if seen.state.operator is not None or seen.state.shown is Health.PAUSED:
        return UpstreamState.PAUSED
    return UpstreamState.STOPPED if seen.state.shown is Health.STOPPED else UpstreamState.OPEN


def databases_of(policy: Policy) -> dict[str, DatabaseLogin]:
    histories = (policy.history_of(name).database for name in policy.upstreams)
    return {each.postgresql: each for each in (policy.storage, *histories) if each and each.postgresql}


def _listed_hosts(policy: Policy) -> tuple[HostStatus, ...]:
    """Query each database; skip one that cannot be queried: the queue and the history report it."""
    found: list[HostStatus] = []
    for url, login in databases_of(policy).items():
        from relay.spool.database import DatabaseError  # noqa: PLC0415 - it needs an extra
        from relay.spool.database.connection import database_of, once  # noqa: PLC0415 - as above
        from relay.spool.database.schema import hosts_of  # noqa: PLC0415 - as above

        places = ((name, policy.history_of(name)) for name in policy.upstreams)
        names = {name: its.account for name, its in places if its.database and its.database.postgresql == url}
        try:
            with once(database_of(login)) as connection:
                rows = hosts_of(connection)
        except DatabaseError:
            continue
        for host, claimed, lease_seconds, ages in rows:
            used = {name: ages[account] for name, account in names.items() if account in ages}
            found.append(HostStatus(host, claimed, lease_seconds, used))
    return tuple(found)
