"""The metrics that are computed from a snapshot at each scrape.

A fault of the snapshot never fails the scrape: it is logged and counted, and the other metrics are there.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from relay.clock import SECOND_NS
from relay.queue.queued import DEFAULT_LANE
from relay.queue.routes import Because
from relay.status.snapshot import LaneStatus, QueueState, RouteStatus, Snapshot, UpstreamState, UpstreamStatus
from relay.telemetry.events import Events
from relay.telemetry.metrics import METRICS, Metrics
from relay.verdicts.account import Health

Number = tuple[str, float, *tuple[str, ...]]
"""A metric, its value, and the values of its labels."""


class SnapshotCollector(Collector):
    def __init__(self, metrics: Metrics, snapshot: Callable[[], Snapshot], events: Events) -> None:
        self._metrics, self._snapshot, self._events = metrics, snapshot, events

    def collect(self) -> Iterator[Metric]:
        gauges = {
            row.name: GaugeMetricFamily(row.name, row.meaning, labels=tuple(row.labels))
            for row in METRICS.values()
            if not row.is_live
        }
        try:
            for name, value, *labels in _numbers(self._snapshot()):
                gauges[name].add_metric(labels, value)
        except Exception as error:  # noqa: BLE001 - a scrape without these numbers beats no scrape
            self._metrics.count("relay_faults_total")
            self._events.fault(where="snapshot", error=error)
        return iter(gauges.values())


def _numbers(snapshot: Snapshot) -> Iterator[Number]:
    yield from _of_queue(snapshot)
    yield from _of_rest(snapshot)
    yield from _of_routes(snapshot.routes)
    for upstream in snapshot.upstreams:
        yield from _of_upstream(upstream, snapshot.at_ns)


def _of_queue(snapshot: Snapshot) -> Iterator[Number]:
    for state in QueueState:
        counts = snapshot.counts(state)
        yield "relay_queue_messages", counts.messages, state
        yield "relay_queue_recipients", counts.recipients, state
        yield "relay_queue_size_bytes", counts.size_bytes, state
        yield "relay_queue_oldest_age_seconds", counts.oldest_age_ns / SECOND_NS, state
    waiting = snapshot.counts(QueueState.WAITING)
    only = LaneStatus(DEFAULT_LANE, 100, None, waiting.messages, waiting.recipients, waiting.oldest_age_ns)
    for lane in snapshot.lanes or (only,):
        yield "relay_lane_waiting_messages", lane.waiting_messages, lane.name
        yield "relay_lane_oldest_waiting_age_seconds", lane.oldest_age_ns / SECOND_NS, lane.name
        patience = math.inf if lane.patience_ns is None else lane.patience_ns / SECOND_NS
        yield "relay_lane_patience_seconds", patience, lane.name


def _of_rest(snapshot: Snapshot) -> Iterator[Number]:
    disk, policy = snapshot.disk, snapshot.policy
    yield "relay_build_info", 1, snapshot.version
    for certificate in snapshot.certificates:
        ends_s = certificate.ends_at_ns / SECOND_NS
        yield "relay_smtpd_certificate_end_timestamp_seconds", ends_s, certificate.listener
    yield "relay_clock_timestamp_seconds", snapshot.at_ns / SECOND_NS
    yield "relay_refusing_mail", int(snapshot.refusing_because != "")
    yield "relay_recovering_messages", snapshot.recovering
    yield "relay_spool_free_bytes", disk.free_bytes
    yield "relay_spool_free_inodes", math.inf if disk.free_inodes is None else disk.free_inodes
    yield "relay_policy_last_reload_successful", int(policy.last_reload_ok and not policy.refused_file)
    yield "relay_policy_last_reload_success_timestamp_seconds", policy.loaded_at_ns / SECOND_NS
    yield "relay_policy_info", 1, policy.sha256
    for its in snapshot.hosts:
        if its.lease_seconds is not None:
            yield "relay_host_claimed_messages", its.claimed_messages, its.host
            yield "relay_host_lease_seconds", its.lease_seconds, its.host
        for upstream, age in its.history_age_seconds.items():
            yield "relay_host_history_age_seconds", age, its.host, upstream


def _of_routes(routes: Sequence[RouteStatus]) -> Iterator[Number]:
    now: dict[tuple[str, str, Because], int] = {}
    for route in routes:
        # Export each possible pair at 0 before it happens.
        for pair in combinations(reversed(route.upstreams), 2):
            for because in (Because.FAILOVER, Because.SPILL):
                now.setdefault((*pair, because), 0)
    for route in routes:
        if route.because is Because.FAILOVER:
            now[route.upstream, route.instead_of, Because.FAILOVER] = 1
        for name in route.spills_to:
            now[name, route.upstream, Because.SPILL] = 1
    for labels, is_so in now.items():
        yield "relay_route_diverted", is_so, *labels
    down = sum(len(route.numbers) for route in routes if route.because is Because.ALL_DOWN)
    yield "relay_routes_down", down


def _of_upstream(upstream: UpstreamStatus, at_ns: int) -> Iterator[Number]:
    name = upstream.name
    ends = {"": upstream.certificate_ends_at_ns, "client_": upstream.client_certificate_ends_at_ns}
    for whose, ends_at_ns in ends.items():
        if ends_at_ns is not None:
            yield f"relay_upstream_{whose}certificate_end_timestamp_seconds", ends_at_ns / SECOND_NS, name
    for state in UpstreamState:
        yield "relay_upstream_state", int(upstream.state is state), name, state
    for health in Health:
        yield "relay_upstream_health", int(upstream.health is health), name, health
    yield "relay_upstream_paused_by_operator", int(upstream.paused_by != ""), name
    yield "relay_upstream_paused_until_timestamp_seconds", _paused_until(upstream), name
    busy = upstream.connections_open - upstream.connections_idle
    yield "relay_upstream_connections", busy, name, "busy"
    yield "relay_upstream_connections", upstream.connections_idle, name, "idle"
    yield "relay_upstream_waiting_messages", upstream.waiting_messages, name
    yield "relay_upstream_waiting_recipients", upstream.waiting_recipients, name
    yield "relay_upstream_in_flight_transactions", upstream.in_flight, name
    drained_ns = upstream.drained_at_ns
    eta = math.inf if drained_ns is None else (drained_ns - at_ns) / SECOND_NS
    yield "relay_queue_drain_eta_seconds", eta, name
    for limit in upstream.limits:
        yield "relay_limit_slots", limit.count, name, limit.label
        yield "relay_limit_used_slots", limit.used, name, limit.label
        yield "relay_limit_window_seconds", limit.period_ns / SECOND_NS, name, limit.label
        opens_ns = at_ns if limit.opens_at_ns is None else limit.opens_at_ns
        yield "relay_limit_next_slot_timestamp_seconds", opens_ns / SECOND_NS, name, limit.label


def _paused_until(upstream: UpstreamStatus) -> float:
    if upstream.state is UpstreamState.OPEN:
        return 0.0
    return math.inf if upstream.paused_until_ns is None else upstream.paused_until_ns / SECOND_NS
