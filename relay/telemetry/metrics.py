"""The numbers for Prometheus: those that are counted as things happen.

`Metrics` builds every live row of `metric_table` in a registry of its own; `relay.status.collector`
registers the rows that are read at each scrape.  Every series whose labels are known is there, at 0,
before its first event.  All calls, and scrapes, come from the loop's thread.
"""

from collections.abc import Iterable
from functools import cache
from itertools import product
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client import disable_created_metrics as disable_created

from relay.clock import SECOND_NS, Clock
from relay.telemetry.events import Delays
from relay.telemetry.metric_table import DELAY_PARTS, LABEL_VALUES, METRICS, USUAL_REPLIES, MetricRow
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


class Metrics:
    def __init__(self, clock: Clock) -> None:
        # Else every counter has a twin `_created`, which Prometheus has no use for.
        disable_created()  # type: ignore[no-untyped-call]  # the library left it without types
        self.registry = CollectorRegistry()
        self._clock = clock
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        for row in METRICS.values():
            if row.source == "live":
                self._build(row)
        # Each series is looked up once: some dozen are counted up for each message.
        self._counter = cache(lambda name, *labels: self._counters[name].labels(*labels))
        self._gauge = cache(lambda name, *labels: self._gauges[name].labels(*labels))
        self._histogram = cache(lambda name, *labels: self._histograms[name].labels(*labels))
        self._touch([])
        ProcessCollector(registry=self.registry)

    def know_upstreams(self, upstreams: Iterable[str]) -> None:
        """Have every series at 0; call it whenever a policy comes into force."""
        self._touch(list(upstreams))

    def collector_failed(self) -> None:
        self._counters["relay_collector_errors_total"].inc()

    def attempted(self, upstream: str, outcome: Outcome, duration_ns: int) -> None:
        self._counter("relay_attempts_total", upstream).inc()
        self._histogram("relay_attempt_duration_seconds", upstream).observe(duration_ns / SECOND_NS)
        if outcome.is_ambiguous:
            self._counter("relay_attempts_ambiguous_total", upstream).inc()
        for answer in outcome.answers:
            self._counter("relay_attempt_recipients_total", upstream, _RESULT[answer.verdict]).inc()
        answers = (*outcome.answers, outcome.pause) if outcome.pause else outcome.answers
        # Recipients of one transaction share the reply to the final dot: it is one reply.
        for answer in {id(answer.reply): answer for answer in answers}.values():
            self._count_reply(upstream, answer)
        if any(answer.verdict is Verdict.RELAYED for answer in outcome.answers):
            last = self._gauge("relay_upstream_last_relayed_timestamp_seconds", upstream)
            last.set(self._clock.wall_ns() / SECOND_NS)

    def relayed_after(self, delays: Delays) -> None:
        for part, delay_ns in zip(DELAY_PARTS, delays, strict=True):
            self._histogram("relay_delay_seconds", part).observe(max(0, delay_ns) / SECOND_NS)

    def connected(self, upstream: str) -> None:
        self._counter("relay_upstream_connects_total", upstream, "ready").inc()

    def connect_failed(self, upstream: str, answer: Answer) -> None:
        self._counter("relay_upstream_connects_total", upstream, "failed").inc()
        self._count_reply(upstream, answer)

    def had_to_wait(self, upstream: str) -> None:
        """Call it once for a message."""
        self._counter("relay_throttle_waits_total", upstream).inc()

    def reserved_after(self, upstream: str, wait_ns: int) -> None:
        self._histogram("relay_throttle_wait_seconds", upstream).observe(max(0, wait_ns) / SECOND_NS)

    def decided(self, upstream: str, duration_ns: int) -> None:
        self._counter("relay_history_operations_total", upstream).inc()
        self._histogram("relay_history_duration_seconds", upstream).observe(duration_ns / SECOND_NS)

    def history_failed(self, upstream: str) -> None:
        self._counter("relay_history_operations_total", upstream).inc()
        self._counter("relay_history_errors_total", upstream).inc()

    def upstream_paused(self, upstream: str) -> None:
        self._counter("relay_upstream_pauses_total", upstream).inc()

    def cut_off(self, upstream: str) -> None:
        self._counter("relay_upstream_cut_offs_total", upstream).inc()

    def sender_paused(self, upstream: str) -> None:
        self._counter("relay_sender_pauses_total", upstream).inc()

    def upstream_resumed(self, upstream: str) -> None:
        self._counter("relay_upstream_resumes_total", upstream).inc()

    def removed(self, reason: Literal["relayed", "bounced", "expired", "deleted"]) -> None:
        self._counter("relay_queue_removed_total", reason).inc()

    def report_published(self, kind: Literal["report", "warning"]) -> None:
        self._counter("relay_reports_total", kind).inc()

    def report_capped(self) -> None:
        self._counters["relay_reports_capped_total"].inc()

    def corrupt_found(self) -> None:
        self._counters["relay_spool_corrupt_total"].inc()

    def spool_failed(self) -> None:
        self._counters["relay_spool_errors_total"].inc()

    def policy_reloaded(self, *, is_ok: bool) -> None:
        self._counter("relay_policy_reloads_total", "ok" if is_ok else "refused").inc()

    def fault(self) -> None:
        self._counters["relay_faults_total"].inc()

    def woke_late(self, lag_ns: int) -> None:
        self._histograms["relay_event_loop_lag_seconds"].observe(max(0, lag_ns) / SECOND_NS)

    def _count_reply(self, upstream: str, answer: Answer) -> None:
        code = "none" if answer.reply is None else str(answer.reply.code)
        self._counter("relay_upstream_replies_total", upstream, answer.phase.value, code).inc()

    def _build(self, row: MetricRow) -> None:
        match row.type:
            case "counter":
                self._counters[row.name] = Counter(row.name, row.meaning, row.labels, registry=self.registry)
            case "gauge":
                self._gauges[row.name] = Gauge(row.name, row.meaning, row.labels, registry=self.registry)
            case "histogram":
                self._histograms[row.name] = Histogram(
                    row.name, row.meaning, row.labels, registry=self.registry, buckets=row.buckets
                )

    def _touch(self, upstreams: list[str]) -> None:
        for name, metric in (*self._counters.items(), *self._gauges.items(), *self._histograms.items()):
            labels = METRICS[name].labels
            if name == "relay_upstream_replies_total":
                values: list[tuple[str, ...]] = [
                    (upstream, *reply) for upstream, reply in product(upstreams, USUAL_REPLIES)
                ]
            elif labels:
                known = (upstreams if label == "upstream" else LABEL_VALUES[name, label] for label in labels)
                values = list(product(*known))
            else:
                values = []
            for series in values:
                metric.labels(*series)
