"""Runs one round of a load, and makes tables of all rounds."""

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tests.bench.contenders import Contender
from tests.system.smtp_tools import SmtpSink, smtp_source


@dataclass(frozen=True, slots=True)
class Load:
    """What smtp-source sends in one round."""

    messages: int
    sessions: int
    size_bytes: int
    keep_connection: bool
    """Whether many messages go over one connection, or each over a new one."""

    def __str__(self) -> str:
        return "one connection, many messages" if self.keep_connection else "a connection per message"


@dataclass(frozen=True, slots=True)
class Round:
    """What one contender did with one load."""

    contender: str
    load: str
    rates: dict[str, float]
    """Messages per second: `accept` until the last 250, `end_to_end` until the sink has all messages."""


def run_round(contender: Contender, load: Load) -> Round:
    accepted_s, done_s = send_through(contender.port, contender.sink, load)
    rates = {"accept": load.messages / accepted_s, "end_to_end": load.messages / done_s}
    return Round(contender.name, str(load), rates)


def send_through(port: int, sink: SmtpSink, load: Load) -> tuple[float, float]:
    """Send the load to a port; return the seconds until the last 250, and until the sink had all."""
    already = sink.count
    began_s = time.monotonic()

    def send() -> float:
        smtp_source(
            port,
            messages=load.messages,
            sessions=load.sessions,
            size_bytes=load.size_bytes,
            keep_connection=load.keep_connection,
        )
        return time.monotonic() - began_s

    # The sink is read meanwhile: it would stop when its pipe is full of counts.
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        sink.wait_for(already + load.messages, within_s=600)
        done_s = time.monotonic() - began_s
        return sending.result(), done_s


def summarise(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Return a row for each contender and load: medians, and their ratio to the first contender's."""
    rows: list[dict[str, Any]] = []
    for load in dict.fromkeys(each.load for each in rounds):
        first: dict[str, float] = {}
        for contender, its in _by_contender([each for each in rounds if each.load == load]):
            row: dict[str, Any] = {"load": load, "contender": contender}
            for name in its[0].rates:
                median = statistics.median(each.rates[name] for each in its)
                ratio = median / first.setdefault(name, median)
                row |= {f"{name}_rate": round(median, 1), f"{name}_ratio": round(ratio, 2)}
            rows.append(row)
    return rows


def aged(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Return a row for each contender: its last round beside its first."""
    rows: list[dict[str, Any]] = []
    for contender, its in _by_contender(rounds):
        row: dict[str, Any] = {"contender": contender}
        for name, first in its[0].rates.items():
            last = its[-1].rates[name]
            row |= {f"first_{name}_rate": round(first, 1), f"last_{name}_rate": round(last, 1)}
            row[f"{name}_ratio"] = round(last / first, 2)
        rows.append(row)
    return rows


def _by_contender(rounds: Sequence[Round]) -> list[tuple[str, list[Round]]]:
    names = dict.fromkeys(each.contender for each in rounds)
    return [(name, [each for each in rounds if each.contender == name]) for name in names]
