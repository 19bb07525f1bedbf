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
    """What one contender did with one load, in messages per second."""

    contender: str
    load: str
    accept_rate: float
    """Measured until the last 250."""
    end_to_end_rate: float
    """Measured until the sink has all messages."""


def run_round(contender: Contender, load: Load) -> Round:
    accepted_s, done_s = send_through(contender.port, contender.sink, load)
    return Round(contender.name, str(load), load.messages / accepted_s, load.messages / done_s)


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
        medians = {
            contender: _medians([each for each in rounds if (each.contender, each.load) == (contender, load)])
            for contender in dict.fromkeys(each.contender for each in rounds)
        }
        accept_rate, end_to_end_rate = next(iter(medians.values()))
        rows += [
            {
                "load": load,
                "contender": contender,
                "accept_rate": round(accepted, 1),
                "accept_ratio": round(accepted / accept_rate, 2),
                "end_to_end_rate": round(done, 1),
                "end_to_end_ratio": round(done / end_to_end_rate, 2),
            }
            for contender, (accepted, done) in medians.items()
        ]
    return rows


def aged(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Return a row for each contender: its last round beside its first."""
    rows = []
    for contender in dict.fromkeys(each.contender for each in rounds):
        own = [each for each in rounds if each.contender == contender]
        first, last = own[0], own[-1]
        rows.append(
            {
                "contender": contender,
                "first_accept_rate": round(first.accept_rate, 1),
                "last_accept_rate": round(last.accept_rate, 1),
                "accept_ratio": round(last.accept_rate / first.accept_rate, 2),
                "first_end_to_end_rate": round(first.end_to_end_rate, 1),
                "last_end_to_end_rate": round(last.end_to_end_rate, 1),
                "end_to_end_ratio": round(last.end_to_end_rate / first.end_to_end_rate, 2),
            }
        )
    return rows


def _medians(rounds: Sequence[Round]) -> tuple[float, float]:
    return (
        statistics.median(each.accept_rate for each in rounds),
        statistics.median(each.end_to_end_rate for each in rounds),
    )
