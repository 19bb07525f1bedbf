"""The numbers for Prometheus: those that are counted as things happen.

A count is a number in a table, and costs no more: `Metrics` holds every live row of `metric_table`, and
makes the families of them at each scrape.  `relay.status.collector` registers the rows that are read
then.  Every series whose labels are known is there, at 0, before its first event.  All calls, and
scrapes, come from the loop's thread.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Literal

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from relay.clock import SECOND_NS, Clock
from relay.telemetry.events import Delays
from relay.telemetry.metric_table import DELAY_PARTS, LABEL_VALUES, METRICS, USUAL_REPLIES, Source, Totals
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
Labels = tuple[str, ...]


class Families:
    """The families of one source, in the table's order, to be filled at a scrape."""

    def __init__(self, source: Source) -> None:
        self._plain: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        self._histograms: dict[str, HistogramMetricFamily] = {}
        self._all: list[Metric] = []
        for row in METRICS.values():
            if row.source != source:
                continue
            match row.type:
                case "gauge":
                    self._plain[row.name] = GaugeMetricFamily(row.name, row.meaning, labels=row.labels)
                case "counter":
                    self._plain[row.name] = CounterMetricFamily(row.name, row.meaning, labels=row.labels)
                case "histogram":
                    self._histograms[row.name] = HistogramMetricFamily(
                        row.name, row.meaning, labels=row.labels
                    )
            self._all.append(self._plain.get(row.name) or self._histograms[row.name])

    def set(self, name: str, value: float, *labels: str) -> None:
        self._plain[name].add_metric(labels, value)

    def set_histogram(self, name: str, counts: Sequence[int], total: float, *labels: str) -> None:
        """Take one count for each bound of the table and one for what lies above."""
        cumulative, buckets = 0, []
        for bound, count in zip((*METRICS[name].buckets, math.inf), counts, strict=True):
            cumulative += count
            buckets.append(("+Inf" if math.isinf(bound) else str(bound), float(cumulative)))
        self._histograms[name].add_metric(labels, buckets, total)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._all)


class _Spread:
    """How many spans were how long."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, span_ns: int) -> None:
        seconds = span_ns / SECOND_NS if span_ns > 0 else 0.0
        self.counts[bisect_left(self._bounds, seconds)] += 1
        self.total += seconds


class Metrics(Collector):
    def __init__(self, clock: Clock) -> None:
        self.registry = CollectorRegistry()
        self._clock = clock
        self._counts: dict[str, defaultdict[Labels, float]] = {}
        self._spreads: dict[str, defaultdict[Labels, _Spread]] = {}
        for row in METRICS.values():
            if row.source == "live" and row.type == "histogram":
                self._spreads[row.name] = defaultdict(lambda bounds=row.buckets: _Spread(bounds))  # type: ignore[misc]  # a default binds it
            elif row.source == "live":
                self._counts[row.name] = defaultdict(float)
        self._touch([], [])
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def collect(self) -> Iterator[Metric]:
        families = Families("live")
        for name, counts in self._counts.items():
            for labels, count in counts.items():
                families.set(name, count, *labels)
        for name, spreads in self._spreads.items():
            for labels, spread in spreads.items():
                families.set_histogram(name, spread.counts, spread.total, *labels)
        return iter(families)

    def know_upstreams(self, upstreams: Iterable[str], stand_ins: Iterable[tuple[str, str]] = ()) -> None:
        """Have every series at 0; call it whenever a policy comes into force.

        `stand_ins`: each upstream that may be used, with the one that it is used instead of.
        """
        self._touch(list(upstreams), list(stand_ins))

    def collector_failed(self) -> None:
        self._counts["relay_collector_errors_total"][()] += 1

    def attempted(self, upstream: str, outcome: Outcome, duration_ns: int) -> None:
        self._counts["relay_attempts_total"][upstream,] += 1
        self._spreads["relay_attempt_duration_seconds"][upstream,].observe(duration_ns)
        if outcome.is_ambiguous:
            self._counts["relay_attempts_ambiguous_total"][upstream,] += 1
        # Recipients of one transaction share the reply to the final dot: it is one reply.
        by_reply: dict[int, Answer] = {}
        for answer in outcome.answers:
            result = _RESULT[answer.verdict]
            self._counts["relay_attempt_recipients_total"][upstream, result] += 1
            by_reply[id(answer.reply)] = answer
            if answer.verdict is Verdict.RELAYED:
                last = self._counts["relay_upstream_last_relayed_timestamp_seconds"]
                last[upstream,] = self._clock.wall_ns() / SECOND_NS
        if outcome.pause is not None:
            by_reply[id(outcome.pause.reply)] = outcome.pause
        for answer in by_reply.values():
            self._count_reply(upstream, answer)

    def relayed_after(self, delays: Delays) -> None:
        spreads = self._spreads["relay_delay_seconds"]
        for part, delay_ns in zip(DELAY_PARTS, delays, strict=True):
            spreads[part,].observe(delay_ns)

    def connected(self, upstream: str) -> None:
        self._counts["relay_upstream_connects_total"][upstream, "ready"] += 1

    def connect_failed(self, upstream: str, answer: Answer) -> None:
        self._counts["relay_upstream_connects_total"][upstream, "failed"] += 1
        self._count_reply(upstream, answer)

    def token_granted(self, upstream: str, ends_at_ns: int) -> None:
        """`ends_at_ns` by the wall clock."""
        self._counts["relay_token_requests_total"][upstream, "granted"] += 1
        self._counts["relay_token_end_timestamp_seconds"][upstream,] = ends_at_ns / SECOND_NS

    def token_denied(self, upstream: str) -> None:
        self._counts["relay_token_requests_total"][upstream, "denied"] += 1

    def diverted(self, upstream: str, instead_of: str, because: str) -> None:
        """`because` is one of LABEL_VALUES."""
        self._counts["relay_route_diverted_messages_total"][upstream, instead_of, because] += 1

    def had_to_wait(self, upstream: str) -> None:
        """Call it once for a message."""
        self._counts["relay_throttle_waits_total"][upstream,] += 1

    def reserved_after(self, upstream: str, wait_ns: int) -> None:
        self._spreads["relay_throttle_wait_seconds"][upstream,].observe(wait_ns)

    def decided(self, upstream: str, duration_ns: int) -> None:
        self._counts["relay_history_operations_total"][upstream,] += 1
        self._spreads["relay_history_duration_seconds"][upstream,].observe(duration_ns)

    def history_failed(self, upstream: str) -> None:
        self._counts["relay_history_operations_total"][upstream,] += 1
        self._counts["relay_history_errors_total"][upstream,] += 1

    def upstream_paused(self, upstream: str) -> None:
        self._counts["relay_upstream_pauses_total"][upstream,] += 1

    def cut_off(self, upstream: str) -> None:
        self._counts["relay_upstream_cut_offs_total"][upstream,] += 1

    def sender_paused(self, upstream: str) -> None:
        self._counts["relay_sender_pauses_total"][upstream,] += 1

    def upstream_resumed(self, upstream: str) -> None:
        self._counts["relay_upstream_resumes_total"][upstream,] += 1

    def accepted(self, recipients: int) -> None:
        self._counts["relay_ledger_recipients_total"]["accepted",] += recipients

    def became(self, fates: Iterable[str]) -> None:
        """Count recipients, each by its field of `Totals`."""
        for fate in fates:
            self._counts["relay_ledger_recipients_total"][fate,] += 1

    @property
    def totals(self) -> Totals:
        counts = self._counts["relay_ledger_recipients_total"]
        return Totals(**{fate: int(count) for (fate,), count in counts.items()})

    def removed(self, reason: Literal["relayed", "bounced", "expired", "deleted"]) -> None:
        self._counts["relay_queue_removed_total"][reason,] += 1

    def report_published(self, kind: Literal["report", "warning", "success"]) -> None:
        self._counts["relay_reports_total"][kind,] += 1

    def report_dropped(self) -> None:
        self._counts["relay_reports_dropped_total"][()] += 1

    def report_capped(self) -> None:
        self._counts["relay_reports_capped_total"][()] += 1

    def notice_sent(self) -> None:
        self._counts["relay_notices_total"]["sent",] += 1

    def notice_failed(self) -> None:
        self._counts["relay_notice_failures_total"][()] += 1

    def notices_dropped(self, count: int) -> None:
        self._counts["relay_notices_total"]["dropped",] += count

    def notices_wait(self, count: int) -> None:
        self._counts["relay_notices_waiting"][()] = count

    def corrupt_found(self) -> None:
        self._counts["relay_spool_corrupt_total"][()] += 1

    def spool_failed(self) -> None:
        self._counts["relay_spool_errors_total"][()] += 1

    def policy_reloaded(self, *, is_ok: bool) -> None:
        self._counts["relay_policy_reloads_total"]["ok" if is_ok else "refused",] += 1

    def fault(self) -> None:
        self._counts["relay_faults_total"][()] += 1

    def clock_stepped(self) -> None:
        self._counts["relay_clock_steps_total"][()] += 1

    def woke_late(self, lag_ns: int) -> None:
        self._spreads["relay_event_loop_lag_seconds"][()].observe(lag_ns)

    def _count_reply(self, upstream: str, answer: Answer) -> None:
        code = "none" if answer.reply is None else str(answer.reply.code)
        self._counts["relay_upstream_replies_total"][upstream, answer.phase.value, code] += 1

    def _touch(self, upstreams: list[str], stand_ins: list[tuple[str, str]]) -> None:
        for name in (*self._counts, *self._spreads):
            if name == "relay_upstream_replies_total":
                values: Iterable[Labels] = (
                    (upstream, *reply) for upstream, reply in product(upstreams, USUAL_REPLIES)
                )
            elif name == "relay_route_diverted_messages_total":
                values = ((*pair, why) for pair, why in product(stand_ins, LABEL_VALUES[name, "because"]))
            else:
                labels = METRICS[name].labels
                known = (upstreams if label == "upstream" else LABEL_VALUES[name, label] for label in labels)
                values = product(*known)  # once (), where there are no labels
            table: defaultdict[Labels, float] | defaultdict[Labels, _Spread] = (
                self._counts[name] if name in self._counts else self._spreads[name]
            )
            for value in values:
                table[value]  # it is made
