"""Mail through Postfix and the relay, set up alike: durable, unlimited in practice, twenty connections out.

Processor time is the user and system time of the relay's own processes in a round (`/proc`), divided by the
messages.  It shows the relay's own work; a rate depends on other load too.  On a busy machine batches are
larger, and a message costs less: compare only figures of one call.
"""

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.bench.filling import database, temporary_folder
from tests.system import postfix
from tests.system.processes import children_of
from tests.system.relay import ColdRelay, upstream_at
from tests.system.smtp_tools import SmtpSink, smtp_sink, smtp_source

CONNECTIONS = 20
MOST_SESSIONS = 1000
"""Sessions that the relay allows at once: more than smtp-source opens under any load here."""


@dataclass(frozen=True, slots=True)
class Contender:
    """Something that takes mail on a port and hands it on to its own sink."""

    name: str
    port: int
    sink: SmtpSink
    pid: int | None = None
    """Of the relay.  Postfix's processes come and go, so their time is not counted."""

    def processor_s(self) -> dict[str, float]:
        pids = {} if self.pid is None else {"sender": [self.pid], "listener": children_of(self.pid)}
        return {name: sum(map(_processor_s, its)) for name, its in pids.items()}


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
    processor_ms: dict[str, float]
    """Of sender and listener, for each message.  What follows the last reply of the sink is not in it."""


@contextmanager
def postfix_contender() -> Iterator[Contender]:
    settings = {
        "default_process_limit": "100",
        "default_destination_concurrency_limit": str(CONNECTIONS),
        "smtp_tls_security_level": "none",
    }
    with smtp_sink() as sink, postfix.front(sink.port, **settings) as front:
        yield Contender("postfix", front.port, sink)


@contextmanager
def relay_contender(processes: int, engine: str) -> Iterator[Contender]:
    with ExitStack() as running:
        sink, folder = running.enter_context(smtp_sink()), running.enter_context(temporary_folder())
        spool = {"path": "./spool", "engine": engine}
        if engine == "postgresql":
            spool = {"path": "./spool", engine: running.enter_context(database())}
        listen = {
            "processes": processes,
            "max_connections": MOST_SESSIONS,
            "max_connections_per_client": MOST_SESSIONS,
        }
        # It counts every message and is never reached.
        limits = [{"messages": 1_000_000, "per": "1h"}]
        upstream = upstream_at(sink.port, connections=CONNECTIONS, limits=limits)
        relay = ColdRelay(folder, {"sink": upstream}, listen=listen, spool=spool)
        running.enter_context(relay)
        yield Contender(f"relay, {engine}, {processes} listener processes", relay.port, sink, relay.pid)


def run_round(contender: Contender, load: Load) -> Round:
    already, spent_s = contender.sink.count, contender.processor_s()
    began_s = time.monotonic()

    def send() -> float:
        smtp_source(contender.port, **asdict(load))
        return time.monotonic() - began_s

    # The sink is read meanwhile: it would stop when its pipe is full of counts.
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        contender.sink.wait_for(already + load.messages, within_s=600)
        done_s = time.monotonic() - began_s
        rates = {"accept": load.messages / sending.result(), "end_to_end": load.messages / done_s}
    processor_ms = {
        name: (now_s - spent_s[name]) * 1000 / load.messages
        for name, now_s in contender.processor_s().items()
    }
    return Round(contender.name, str(load), rates, processor_ms)


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
            for name in ("sender", "listener"):
                spent = [each.processor_ms[name] for each in its if name in each.processor_ms]
                row[f"{name}_ms"] = round(statistics.median(spent), 3) if spent else "-"
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


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
