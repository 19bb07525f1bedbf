"""The numbers for Prometheus that are counted as things happen: a number in a table each.

`relay.status.collector` registers the rows that are read at a scrape.  Every series whose labels are known is
there, at 0, before its first event.  All calls, and scrapes, come from the loop's thread.

Not prometheus_client's Counter and Histogram: with their locks and labels, a message took 12 us to count
instead of 3.  Its families are filled at a scrape.
"""

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from relay.clock import SECOND_NS, Clock
from relay.telemetry.events import Delays, Events
from relay.telemetry.metric_table import (
    DELAY_PARTS,
    LABEL_VALUES,
    METRICS,
    USUAL_REJECTS,
    USUAL_REPLIES,
    MetricRow,
    Source,
    Totals,
    Type,
)
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
_FAMILIES: Mapping[Type, Callable[..., Metric]] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
}
_OPEN = "relay_smtpd_open_connections"
Series = tuple[str, ...]
"""A metric and the values of its labels."""
Delta = dict[str, list[list[Any]]]
"""As JSON carries it."""


class Families:
    """The families of one source, in the table's order, to be filled at a scrape."""

    def __init__(self, source: Source) -> None:
        self._all: dict[str, Any] = {
            row.name: _FAMILIES[row.type](row.name, row.meaning, labels=row.labels)
            for row in METRICS.values()
            if row.source == source
        }

    def set(self, name: str, value: float, *labels: str) -> None:
        self._all[name].add_metric(labels, value)

    def set_spread(self, name: str, spread: Sequence[float], *labels: str) -> None:
        *counts, total = spread
        cumulative, buckets = 0.0, []
        for bound, count in zip((*METRICS[name].buckets, math.inf), counts, strict=True):
            cumulative += count
            buckets.append(("+Inf" if math.isinf(bound) else str(bound), cumulative))
        self._all[name].add_metric(labels, buckets, total)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._all.values())


class _Spreads(dict[Series, tuple[Sequence[float], list[float]]]):
    """Of each histogram its bounds, and how many spans there are up to each, beyond all, and their sum."""

    def __missing__(self, series: Series) -> tuple[Sequence[float], list[float]]:
        bounds = METRICS[series[0]].buckets
        self[series] = made = bounds, [0.0] * (len(bounds) + 2)
        return made


class Metrics(Collector):
    def __init__(self, clock: Clock, events: Events | None = None) -> None:
        """`events`: whose lost lines are counted."""
        self.registry = CollectorRegistry()
        self._clock, self._events = clock, events
        self._lines_lost = 0
        """Counted by now."""
        self._numbers: defaultdict[Series, float] = defaultdict(float)
        self._spreads = _Spreads()
        self._open_of: defaultdict[str, Counter[Series]] = defaultdict(Counter)
        """Open connections of listener processes, by the process."""
        self.know_upstreams(())
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def count(self, *series: str, by: float = 1) -> None:
        """`series`: the name of a metric, and its labels."""
        self._numbers[series] += by

    def set(self, *series: str, to: float) -> None:
        self._numbers[series] = to

    def observe(self, *series: str, span_ns: int) -> None:
        """Count a span; one that ends before it began is 0."""
        seconds = span_ns / SECOND_NS if span_ns > 0 else 0.0
        bounds, spread = self._spreads[series]
        spread[bisect_left(bounds, seconds)] += 1
        spread[-1] += seconds

    def collect(self) -> Iterator[Metric]:
        families = Families("live")
        self._count_lost_lines()
        for (name, *labels), number in self._numbers.items():
            families.set(name, number, *labels)
        for (name, *labels), (_, spread) in self._spreads.items():
            families.set_spread(name, spread, *labels)
        return iter(families)

    def know_upstreams(self, upstreams: Iterable[str], stand_ins: Iterable[tuple[str, str]] = ()) -> None:
        """Have every series at 0; call it whenever a policy comes into force.

        `stand_ins`: each upstream that may be used, with the one that it is used instead of.
        """
        self._know({"upstream": list(upstreams)}, list(stand_ins))

    def know_listeners(self, listeners: Iterable[str]) -> None:
        self._know({"listener": list(listeners)}, [])

    def take_delta(self) -> Delta:
        """Return what a listener process counted since the last call, and start anew."""
        self._count_lost_lines()
        numbers = [[*series, number] for series, number in self._numbers.items() if number]
        spreads = [[*series, [*spread]] for series, (_, spread) in self._spreads.items() if any(spread)]
        self._numbers.clear()
        for _, spread in self._spreads.values():
            spread[:] = [0.0] * len(spread)
        return {"numbers": numbers, "spreads": spreads}

    def add_delta(self, delta: Delta, process: str) -> None:
        for *series, number in delta["numbers"]:
            self._numbers[tuple(series)] += number
            if series[0] == _OPEN:
                self._open_of[process][tuple(series)] += number
        for *series, spread in delta["spreads"]:
            _, ours = self._spreads[tuple(series)]
            ours[:] = [one + other for one, other in zip(ours, spread, strict=True)]

    def drop_process(self, process: str) -> None:
        """Count the connections of a dead listener process as closed."""
        for series, number in self._open_of.pop(process, Counter()).items():
            self._numbers[series] -= number

    def attempted(self, upstream: str, outcome: Outcome, duration_ns: int) -> None:
        self.count("relay_attempts_total", upstream)
        self.observe("relay_attempt_duration_seconds", upstream, span_ns=duration_ns)
        if outcome.is_ambiguous:
            self.count("relay_attempts_ambiguous_total", upstream)
        # Recipients of one transaction share the reply to the final dot: it is one reply.
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

    def token_granted(self, upstream: str, ends_at_ns: int) -> None:
        """`ends_at_ns` by the wall clock."""
        self.count("relay_token_requests_total", upstream, "granted")
        self.set("relay_token_end_timestamp_seconds", upstream, to=ends_at_ns / SECOND_NS)

    def decided(self, upstream: str, duration_ns: int) -> None:
        self.count("relay_history_operations_total", upstream)
        self.observe("relay_history_duration_seconds", upstream, span_ns=duration_ns)

    def history_failed(self, upstream: str) -> None:
        self.count("relay_history_operations_total", upstream)
        self.count("relay_history_errors_total", upstream)

    def _count_reply(self, upstream: str, answer: Answer) -> None:
        code = "none" if answer.reply is None else str(answer.reply.code)
        self.count("relay_upstream_replies_total", upstream, answer.phase.value, code)

    def relayed_after(self, delays: Delays) -> None:
        for part, delay_ns in zip(DELAY_PARTS, delays, strict=True):
            self.observe("relay_delay_seconds", part, span_ns=delay_ns)

    def became(self, fates: Iterable[str]) -> None:
        """Count recipients, each by its field of `Totals`."""
        for fate in fates:
            self.count("relay_ledger_recipients_total", fate)

    @property
    def totals(self) -> Totals:
        name = "relay_ledger_recipients_total"
        return Totals(**{fate: int(self._numbers[name, fate]) for fate in LABEL_VALUES[name, "fate"]})

    def _count_lost_lines(self) -> None:
        if self._events is not None:
            lost, self._lines_lost = self._events.lines_lost - self._lines_lost, self._events.lines_lost
            self.count("relay_log_lost_lines_total", by=lost)

    def _know(self, names: Mapping[str, Sequence[str]], stand_ins: Iterable[tuple[str, str]]) -> None:
        for row in METRICS.values():
            for labels in _known(row, names, stand_ins) if row.source == "live" else ():
                if row.type == "histogram":
                    self._spreads[row.name, *labels]  # it is made
                else:
                    self._numbers[(row.name, *labels)] += 0


def _known(
    row: MetricRow, names: Mapping[str, Sequence[str]], stand_ins: Iterable[tuple[str, str]]
) -> Iterable[tuple[str, ...]]:
    """Return the labels of the series that are there from the start; () where a metric has none."""
    match row.name:
        case "relay_upstream_replies_total":
            return [(name, *reply) for name, reply in product(names.get("upstream", ()), USUAL_REPLIES)]
        case "relay_smtpd_rejects_total":
            return [(name, *reply) for name, reply in product(names.get("listener", ()), USUAL_REJECTS)]
        case "relay_route_diverted_messages_total":
            return [(*pair, why) for pair, why in product(stand_ins, LABEL_VALUES[row.name, "because"])]
    values = (names.get(label, LABEL_VALUES.get((row.name, label), ())) for label in row.labels)
    return product(*values)
