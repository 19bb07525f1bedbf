"""Decisions of hosts that share an account on one PostgreSQL: `make bench OPTIONS="--only hosts"`.

Each host is a process that asks for one message after the other, as fast as it gets slots; the window never
fills.  A decision is one durable transaction of the database: it locks the account, ends the last SMTP
transaction and reserves the next.  Each grant is timed from its request.
"""

import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from typing import Any

from relay.clock import SystemClock
from relay.spool.database.account import SharedAccount
from relay.spool.database.connection import Database
from relay.spool.disk.durable import RealDisk
from relay.throttle.admission import Request
from relay.throttle.postgresql_history import HighWaterMark, PostgresqlHistory
from relay.throttle.throttle import Reservation, Throttle
from tests.bench.filling import database
from tests.engines.history.limits import messages

HOSTS = (1, 2, 8)
FOR_S = 5.0
LEAD_S = 6.0
"""The time in which the processes of a round start."""


def rows(rounds: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    with database() as url:
        for hosts in HOSTS:
            rates, latencies_s = [], list[float]()
            for number in range(rounds):
                of_round = _round(url, hosts, f"{hosts} hosts, round {number}")
                rates.append(len(of_round) / FOR_S)
                latencies_s += of_round
            found.append(
                {
                    "hosts": hosts,
                    "decisions_a_second": round(statistics.median(rates)),
                    "median_ms": round(statistics.median(latencies_s) * 1000, 2),
                    "99_of_100_ms": round(statistics.quantiles(latencies_s, n=100)[98] * 1000, 2),
                }
            )
    return found


def _round(url: str, hosts: int, account: str) -> list[float]:
    """Return how long each grant took, in seconds."""
    began_at_s = time.monotonic() + LEAD_S
    with ProcessPoolExecutor(hosts, get_context("spawn")) as pool:
        asked = [pool.submit(_decide, url, account, began_at_s) for _ in range(hosts)]
        return [each for one in asked for each in one.result()]


def _decide(url: str, account: str, began_at_s: float) -> list[float]:
    clock, latencies_s = SystemClock(), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        history = PostgresqlHistory(
            SharedAccount(Database(url), account), HighWaterMark(f"{folder}/mark", RealDisk()), clock
        )
        with closing(
            Throttle(history, [messages(1_000_000_000, 3600)], clock, transaction_ns=10**10)
        ) as throttle:
            throttle.flush()
            time.sleep(max(0.0, began_at_s - time.monotonic()))
            while (asked_s := time.monotonic()) < began_at_s + FOR_S:
                (answer,) = throttle.reserve([Request(1)])
                latencies_s.append(time.monotonic() - asked_s)
                assert isinstance(answer, Reservation), "there was room"
                throttle.settle(answer, clock.boottime_ns())
        return latencies_s
