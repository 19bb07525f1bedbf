"""The Prometheus metrics: the table of all, and those that the relay counts as things happen.

`relay.status.collector` registers the metrics that are read at a scrape.  Every series with known labels
exists, at 0, before its first event.  All calls, and scrapes, come from the loop's thread.
Names and units follow Prometheus' rules: base units, `_total` for counters, no unbounded label, so never an
address.  The table of metrics in docs/events-and-metrics.md is made from `METRICS`.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any, NamedTuple

import prometheus_client

from relay.clock import SECOND_NS, Clock
from relay.telemetry.events import Events
from relay.verdicts.outcome import Answer, Outcome
from relay.verdicts.verdict import Verdict

_RESULT = {
    Verdict.RELAYED: "relayed",
    Verdict.DEFER: "deferred",
    Verdict.LATER: "later",
    Verdict.BOUNCE: "bounced",
    Verdict.PAUSE: "paused",
    Verdict.STOP: "stopped",
}
Series = tuple[str, ...]
"""The name of a metric, and the values of its labels."""
Counts = dict[str, list[list[Any]]]
"""What a listener process counted, as JSON: under `numbers` and `spans`, rows of a series and its value."""

_FATES = "relay_ledger_recipients_total"
_OPEN = "relay_smtpd_open_connections"

# Otherwise each counter gets a second series, with its creation time.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no types


class MetricRow(NamedTuple):
    name: str
    type: str
    """counter, gauge or histogram."""
    labels: dict[str, tuple[str, ...]]
    """Each label with its values, or without values if the table does not know them."""
    meaning: str
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, in seconds; +Inf is added."""
    is_live: bool = True
    """The relay counts it as things happen; otherwise it is read from the snapshot at a scrape."""


DISK_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
NETWORK_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
LAG_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
WAIT_SECONDS = (0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 86400.0, 3 * 86400.0)

# Name, type, labels, meaning.  Buckets as the type: a histogram.  `snapshot`: a gauge read at a scrape.
_ROWS: tuple[tuple[str, str | tuple[float, ...], str, str], ...] = (
    ("relay_build_info", "snapshot", "version", "Always 1; the version is the label."),
    ("relay_smtpd_connections_total", "counter", "listener", "Connections admitted."),
    ("relay_smtpd_open_connections", "gauge", "listener", "Open connections."),
    ("relay_smtpd_rejects_total", "counter", "listener phase code",
     "4yz and 5yz replies to clients, by the phase that was refused and the reply code."),
    ("relay_smtpd_messages_accepted_total", "counter", "listener",
     "Messages accepted: durable, then 250."),
    ("relay_smtpd_recipients_accepted_total", "counter", "listener", "Recipients of accepted messages."),
    ("relay_smtpd_received_bytes_total", "counter", "listener", "Octets of content of accepted messages."),
    ("relay_smtpd_commit_duration_seconds", DISK_SECONDS, "listener",
     "From the final dot until the message was durable."),
    ("relay_smtpd_faults_total", "counter", "listener",
     "Faults of the relay in a session; the client got 451."),
    ("relay_smtpd_certificate_end_timestamp_seconds", "snapshot", "listener",
     "When the certificate for clients expires; no series without a certificate."),
    ("relay_upstream_certificate_end_timestamp_seconds", "snapshot", "upstream",
     "When the upstream's certificate expires, by the last connection; no series before one under TLS."),
    ("relay_upstream_client_certificate_end_timestamp_seconds", "snapshot", "upstream",
     "When the client certificate for the upstream expires; no series without one."),
    ("relay_queue_messages", "snapshot", "state", "Messages in the queue."),
    ("relay_queue_recipients", "snapshot", "state", "Recipients in the queue that are not settled."),
    ("relay_queue_size_bytes", "snapshot", "state", "Octets of content in the queue."),
    ("relay_queue_oldest_age_seconds", "snapshot", "state",
     "Age of the oldest message in this state, without time that the host was off; 0 without a message."),
    ("relay_lane_waiting_messages", "snapshot", "lane",
     "Messages that wait in each lane; all in `default` if the policy has no lanes."),
    ("relay_lane_oldest_waiting_age_seconds", "snapshot", "lane",
     "Age of the oldest message that waits in the lane, without time that the host was off; 0 without one."),
    ("relay_lane_patience_seconds", "snapshot", "lane",
     "Wait after which a ready message goes before its turn; +Inf without a limit."),
    ("relay_queue_removed_total", "counter", "reason=relayed|bounced|expired|deleted",
     "Messages that left the queue, by the worst fate of a recipient."),
    ("relay_ledger_recipients_total", "counter", "fate=accepted|relayed|bounced|expired|deleted",
     "Recipients accepted since the start, reports included, and what became of recipients since then."),
    ("relay_refusing_mail", "snapshot", "",
     "1 while the relay refuses all mail of clients: no room on the disk, or it starts or stops."),
    ("relay_recovering_messages", "snapshot", "",
     "About how many messages the start has not read yet; figures of the queue do not include them."),
    ("relay_spool_free_bytes", "snapshot", "", "Free space where the spool is."),
    ("relay_spool_free_inodes", "snapshot", "",
     "Free inodes where the spool is; +Inf where the file system has no fixed number."),
    ("relay_spool_corrupt_total", "counter", "", "Files that were set aside as damaged."),
    ("relay_spool_errors_total", "counter", "", "Failures of the disk under the spool."),
    ("relay_limit_slots", "snapshot", "upstream limit", "N: the most that any window may hold."),
    ("relay_limit_used_slots", "snapshot", "upstream limit", "Slots that are occupied."),
    ("relay_limit_window_seconds", "snapshot", "upstream limit", "T, with its guard."),
    ("relay_limit_next_slot_timestamp_seconds", "snapshot", "upstream limit",
     "When the next slot opens; the time of the scrape while there is room."),
    ("relay_throttle_wait_seconds", WAIT_SECONDS, "upstream",
     "Time for which a message was ready to go before its slot was reserved."),
    ("relay_history_errors_total", "counter", "upstream",
     "Failures to read or write the history; nothing is sent then."),
    ("relay_history_duration_seconds", DISK_SECONDS, "upstream",
     "One decision: lock, read, decide, write, sync."),
    ("relay_attempts_total", "counter", "upstream", "Transactions that ended."),
    ("relay_attempt_recipients_total", "counter",
     "upstream result=relayed|deferred|later|bounced|paused|stopped",
     "Recipients of transactions, by result."),
    ("relay_attempts_ambiguous_total", "counter", "upstream",
     "Transactions whose final dot got no proper reply; they are repeated."),
    ("relay_attempt_duration_seconds", NETWORK_SECONDS, "upstream", "From MAIL to the last reply."),
    ("relay_upstream_replies_total", "counter", "upstream phase code",
     "Replies that decided about a recipient or a connection."),
    ("relay_reports_total", "counter", "kind=report|warning|success",
     "Reports and warnings queued for senders."),
    ("relay_reports_dropped_total", "counter", "",
     "Reports and warnings that could not be relayed: their senders were not told."),
    ("relay_notices_total", "counter", "result=sent|dropped",
     "Notices of `notify` that were accepted, or dropped: too many, too old, or without a hook."),
    ("relay_notices_waiting", "gauge", "", "Notices that wait to be sent."),
    ("relay_upstream_state", "snapshot", "upstream state", "1 for the present state, else 0."),
    ("relay_upstream_health", "snapshot", "upstream health",
     "1 for the present health of the upstream, else 0."),
    ("relay_upstream_pauses_total", "counter", "upstream", "Pauses and stops of the upstream."),
    ("relay_upstream_cut_offs_total", "counter", "upstream",
     "Refusals for exceeding a limit, after the upstream had accepted mail."),
    ("relay_sender_pauses_total", "counter", "upstream",
     "Pauses of a sender that the upstream refused."),
    ("relay_upstream_resumes_total", "counter", "upstream", "Times that the upstream was resumed."),
    ("relay_upstream_paused_until_timestamp_seconds", "snapshot", "upstream",
     "When the pause ends; 0 without a pause, +Inf if that is unknown."),
    ("relay_upstream_paused_by_operator", "snapshot", "upstream", "1 while a pause by `relay pause` lasts."),
    ("relay_upstream_connections", "snapshot", "upstream use", "Open connections, busy and idle."),
    ("relay_upstream_connects_total", "counter", "upstream result=ready|failed",
     "Attempts to connect: ready for mail, or failed."),
    ("relay_route_diverted", "snapshot", "upstream instead_of because",
     "1 while mail of some route goes through `upstream` instead of `instead_of`."),
    ("relay_route_diverted_messages_total", "counter",
     "upstream instead_of because=failover|spill|unfit",
     "Transactions that relayed mail through `upstream`, although its route prefers `instead_of`."),
    ("relay_routes_down", "snapshot", "",
     "Routes of which every upstream has been down for `failover_after`."),
    ("relay_token_requests_total", "counter", "upstream result=granted|denied",
     "Requests for an access token: granted, or denied for any reason."),
    ("relay_upstream_waiting_messages", "snapshot", "upstream", "Messages that wait for the upstream."),
    ("relay_upstream_waiting_recipients", "snapshot", "upstream", "Recipients that wait for the upstream."),
    ("relay_upstream_in_flight_transactions", "snapshot", "upstream", "Transactions in flight."),
    ("relay_queue_drain_eta_seconds", "snapshot", "upstream",
     "Time until the waiting mail of the upstream, without deferred mail, will have gone; +Inf if unknown."),
    ("relay_policy_last_reload_successful", "snapshot", "", "1 if the last edit was valid, else 0."),
    ("relay_policy_last_reload_success_timestamp_seconds", "snapshot", "",
     "When the policy in force was loaded."),
    ("relay_policy_reloads_total", "counter", "result=ok|refused",
     "Edits that came into force, or were refused."),
    ("relay_policy_info", "snapshot", "sha256", "Always 1; the policy in force is the label."),
    ("relay_log_lost_lines_total", "counter", "",
     "Log lines that could not be written, or were dropped because the log was not read in time."),
    ("relay_faults_total", "counter", "", "Faults of the relay, without those in sessions of listeners."),
    ("relay_event_loop_lag_seconds", LAG_SECONDS, "", "How late the event loop woke up."),
    ("relay_host_claimed_messages", "snapshot", "host", "Messages of a shared queue that the host claimed."),
    ("relay_host_lease_seconds", "snapshot", "host",
     "Time until other hosts may take over the host's messages; 0: now."),
    ("relay_host_history_age_seconds", "snapshot", "host upstream",
     "Time since the host last used the account of the upstream; only for a shared history."),
    ("relay_clock_timestamp_seconds", "snapshot", "", "The time of this scrape, by this host."),
    ("relay_clock_steps_total", "counter", "",
     "Jumps of this host's clock by 10 s or more while the relay ran."),
)  # fmt: skip


def _row(name: str, kind: str | tuple[float, ...], labels: str, meaning: str) -> MetricRow:
    known = {}
    for label in labels.split():
        key, _, values = label.partition("=")
        known[key] = tuple(values.split("|")) if values else ()
    if isinstance(kind, tuple):
        return MetricRow(name, "histogram", known, meaning, kind)
    is_live = kind != "snapshot"
    return MetricRow(name, kind if is_live else "gauge", known, meaning, is_live=is_live)


METRICS: dict[str, MetricRow] = {row[0]: _row(*row) for row in _ROWS}


class Metrics:
    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        self._open_of = Counter[str]()
        """Open connections of each listener process."""
        self._live: dict[str, Any] = {}
        for row in METRICS.values():
            if row.is_live:
                kind = getattr(prometheus_client, row.type.capitalize())
                options = {"buckets": row.buckets} if row.buckets else {}
                self._live[row.name] = kind(
                    row.name, row.meaning, row.labels, registry=self.registry, **options
                )
        self._children: dict[Series, Any] = {}
        """A cache: finding a child by its labels takes longer than all else here."""
        self.know()
        prometheus_client.ProcessCollector(registry=self.registry)

    def count(self, *series: str, by: float = 1) -> None:
        """`series` is the name of a metric, and the values of its labels."""
        self._child(series).inc(by)

    def read(self, gauge: str, value: Callable[[], float]) -> None:
        """Read this gauge, which has no labels, at each scrape."""
        self._live[gauge].set_function(value)

    def observe(self, *series: str, span_ns: int) -> None:
        """Count a time span; a negative span counts as 0."""
        self._child(series).observe(max(0, span_ns) / SECOND_NS)

    def know(self, label: str = "", values: Iterable[str] = ()) -> None:
        """Create at 0 every series in which this label has one of these values; other labels are known."""
        given = {label: tuple(values)}
        for name in self._live:
            every = [given.get(each, known) for each, known in METRICS[name].labels.items()]
            for labels in product(*every):
                self._child((name, *labels))

    def add(self, counts: Counts, process: str) -> None:
        for *series, number in counts["numbers"]:
            self.count(*series, by=number)
            if series[0] == _OPEN:
                self._open_of[process] += number
        for *series, span_ns in counts["spans"]:
            self.observe(*series, span_ns=span_ns)

    def drop_process(self, listener: str, process: str) -> None:
        """Count the connections of a dead process of this listener as closed."""
        self.count(_OPEN, listener, by=-self._open_of.pop(process, 0))

    def attempted(self, upstream: str, outcome: Outcome, duration_ns: int) -> None:
        self.count("relay_attempts_total", upstream)
        self.observe("relay_attempt_duration_seconds", upstream, span_ns=duration_ns)
        if outcome.is_ambiguous:
            self.count("relay_attempts_ambiguous_total", upstream)
        # Recipients of one transaction share the reply to the final dot, which counts once.
        by_reply: dict[int, Answer] = {}
        for answer in outcome.answers:
            self.count("relay_attempt_recipients_total", upstream, _RESULT[answer.verdict])
            by_reply[id(answer.reply)] = answer
        for answer in by_reply.values():
            self._count_reply(upstream, answer)

    def connect_failed(self, upstream: str, answer: Answer) -> None:
        self.count("relay_upstream_connects_total", upstream, "failed")
        self._count_reply(upstream, answer)

    @property
    def totals(self) -> dict[str, int]:
        """For each fate: recipients since the start."""
        (family,) = self._live[_FATES].collect()
        return {sample.labels["fate"]: int(sample.value) for sample in family.samples}

    def _count_reply(self, upstream: str, answer: Answer) -> None:
        code = "none" if answer.reply is None else str(answer.reply.code)
        self.count("relay_upstream_replies_total", upstream, answer.phase.value, code)

    def _child(self, series: Series) -> Any:
        child = self._children.get(series)
        if child is None:
            name, *labels = series
            child = self._live[name].labels(*labels) if labels else self._live[name]
            self._children[series] = child
        return child


class Telemetry(NamedTuple):
    """The log, the metrics, and the clock of both."""

    events: Events
    metrics: Metrics
    clock: Clock

    def spool_trouble(self, error: Exception) -> None:
        """Log and count that the spool is full, or does not answer."""
        self.metrics.count("relay_spool_errors_total")
        self.events.tell("spool_failed", error=str(error))
