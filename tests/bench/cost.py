"""Processor time a message: `make bench OPTIONS="--only cost"`.

It is the user and system time of the relay's own processes, from the client's MAIL to the last removal,
divided by the messages.  It shows the relay's own work; a rate depends on other load too.

Assumes Linux (`/proc`).  On a busy machine batches are larger, and a message costs less: compare only figures
of one call.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench.contenders import sink_policy
from tests.bench.measure import Load, send_through
from tests.system.processes import children_of
from tests.system.relay import ColdRelay
from tests.system.smtp_tools import smtp_sink

WARM_UP = 400
_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
_SETTLED_S = 0.5
"""The time after the last message in which it is removed and earlier timers fire."""


class Spent(NamedTuple):
    user_ms: float
    system_ms: float


def rows(load: Load, rounds: int, processes: int, engines: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each process of the relay: medians of the rounds."""
    found: dict[str, list[Spent]] = {}
    for _ in range(rounds):
        for engine in engines:
            for name, spent in _of_relay(load, processes, engine):
                found.setdefault(name, []).append(spent)
    return [
        {
            "what": name,
            "ms_a_message": round(statistics.median(map(sum, spent)), 3),
            "user_ms": round(statistics.median(each.user_ms for each in spent), 3),
            "system_ms": round(statistics.median(each.system_ms for each in spent), 3),
        }
        for name, spent in found.items()
    ]


def _of_relay(load: Load, processes: int, engine: str) -> Iterator[tuple[str, Spent]]:
    with smtp_sink() as sink, tempfile.TemporaryDirectory(prefix="relay-cost-") as folder:
        spool = {"path": "./spool", "engine": engine}
        listen = {"processes": processes}
        with ColdRelay(Path(folder), {"sink": sink_policy(sink)}, listen=listen, spool=spool) as relay:
            send_through(relay.port, sink, replace(load, messages=WARM_UP))
            time.sleep(_SETTLED_S)
            pids = [relay.pid, *children_of(relay.pid)]
            before = [_spent(pid) for pid in pids]
            send_through(relay.port, sink, load)
            time.sleep(_SETTLED_S)
            for number, (pid, earlier) in enumerate(zip(pids, before, strict=True)):
                name = "sender" if processes and not number else "listener" if processes else "all in one"
                pairs = zip(_spent(pid), earlier, strict=True)
                yield f"{engine}: {name}", Spent(*((now - then) / load.messages for now, then in pairs))


def _spent(pid: int) -> Spent:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Spent(int(fields[11]) * _TICK_MS, int(fields[12]) * _TICK_MS)
