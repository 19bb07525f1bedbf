"""The Prometheus metrics that the relay counts as things happen, as objects of prometheus_client.

`relay.status.collector` registers the metrics that are read at a scrape.  Every series with known labels
exists, at 0, before its first event.  All calls, and scrapes, come from the loop's thread.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

import prometheus_client
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from relay.clock import SECOND_NS, Clock
from relay.telemetry.events import Events
from relay.telemetry.metric_table import METRICS
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


class Metrics(Collector):
    def __init__(self, clock: Clock, events: Events | None = None) -> None:
        """`events` is the log whose lost lines are counted."""
        self.registry = prometheus_client.CollectorRegistry()
        self._clock, self._events = clock, events
        self._open_of: defaultdict[str, Counter[Series]] = defaultdict(Counter)
        """Open connections of each listener process."""
        self.registry.register(self)
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
        self.know_upstreams(())
        prometheus_client.ProcessCollector(registry=self.registry)

    def count(self, *series: str, by: float = 1) -> None:
        """`series` is the name of a metric, and the values of its labels."""
        self._child(series).inc(by)

    def set(self, *series: str, to: float) -> None:
        self._child(series).set(to)

    def observe(self, *series: str, span_ns: int) -> None:
        """Count a time span; a negative span counts as 0."""
        self._child(series).observe(max(0, span_ns) / SECOND_NS)

    def collect(self) -> Iterator[Metric]:
        """Count the lines that the log lost; the registry collects this object before all others."""
        if self._events is not None:
            self.count("relay_log_lost_lines_total", by=self._events.take_lines_lost())
        return iter(())

    def know_upstreams(self, upstreams: Iterable[str], pairs: Iterable[tuple[str, str]] = ()) -> None:
        """Create every series at 0; call this whenever a policy comes into force.

        `pairs` has each upstream that may be used instead of another, with that other one (`instead_of`).
        """
        self._know({"upstream": list(upstreams)})
        name = "relay_route_diverted_messages_total"
        for pair, because in product(pairs, METRICS[name].labels["because"]):
            self._child((name, *pair, because))

    def know_listeners(self, listeners: Iterable[str]) -> None:
        self._know({"listener": list(listeners)})

    def add(self, counts: Counts, process: str) -> None:
        for *series, number in counts["numbers"]:
            self.count(*series, by=number)
            if series[0] == _OPEN:
                self._open_of[process][tuple(series)] += number
        for *series, span_ns in counts["spans"]:
            self.observe(*series, span_ns=span_ns)

    def drop_process(self, process: str) -> None:
        """Count the connections of a dead listener process as closed."""
        for series, number in self._open_of.pop(process, Counter()).items():
            self.count(*series, by=-number)

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
            if answer.verdict is Verdict.RELAYED:
                now_seconds = self._clock.wall_ns() / SECOND_NS
                self.set("relay_upstream_last_relayed_timestamp_seconds", upstream, to=now_seconds)
        if outcome.pause is not None:
            by_reply[id(outcome.pause.reply)] = outcome.pause
        for answer in by_reply.values():
            self._count_reply(upstream, answer)

    def connect_failed(self, upstream: str, answer: Answer) -> None:
        self.count("relay_upstream_connects_total", upstream, "failed")
        self._count_reply(upstream, answer)

    def count_fates(self, fates: Iterable[str]) -> None:
        for fate in fates:
            self.count(_FATES, fate)

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

    def _know(self, names: Mapping[str, list[str]]) -> None:
        for name in self._live:
            values = [names.get(label, known) for label, known in METRICS[name].labels.items()]
            for labels in product(*values):
                self._child((name, *labels))


class Telemetry(NamedTuple):
    """The log, the metrics, and the clock of both."""

    events: Events
    metrics: Metrics
    clock: Clock

    def spool_trouble(self, error: Exception) -> None:
        """Log and count that the spool is full, or does not answer."""
        self.metrics.count("relay_spool_errors_total")
        self.events.tell("spool_failed", error=str(error))
