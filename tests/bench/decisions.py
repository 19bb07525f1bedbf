"""Decisions a second: the throttle beside two rate limiters, in memory and durable, at several N.

Every contender has a limit of N a day, in which so much is used already as `PREFILLED` allows, and is
asked by a clock that moves on by a day / N with each decision: as one slot opens, one message asks
and is let through.  That is the steady state of a queue that waits.  A decision of ours is all that
one transaction costs: the reservation and its end.  The others know no end: their slot starts to
age when it is granted.

What is compared is not the same promise.  `pyrate-limiter` (asked at its bucket, without the cost of
its Limiter) and `limits` (moving window) stamp the start, so a slow upstream can see more than
N.  Durable is ours alone in the full sense: the slot is on disk (fsync) before it is granted, for
every process that shares the file.  pyrate's SQLite file is committed once a decision, with
SQLite's default of synchronous=FULL; `limits` has no durable storage that needs no server.
Both are optional (`make bench` fetches them); what is missing is left out, and said.
"""

import importlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from relay.clock import SECOND_NS
from relay.spool.durable import RealDisk
from relay.throttle.decision import Grant
from relay.throttle.keys import Request
from relay.throttle.record import Ended
from relay.throttle.slots import Slots
from relay.throttle.throttle import Reservation, Settlement, Throttle
from tests.fakes.clock import FakeClock
from tests.throttle.limits import messages

COUNTS = (8, 1_000, 1_000_000)
PREFILLED = 50_000
DAY_S = 86_400
DAY_NS = DAY_S * SECOND_NS
TRANSACTION_NS = 60 * SECOND_NS
START_NS = 1_000_000 * SECOND_NS
MEMORY_DECISIONS = 10_000
DURABLE_DECISIONS = 500
LEAK_EACH = 1_000

Decide = Callable[[int], bool]
"""Decides about one message at an instant (ns, ascending); says whether it may go."""


class Missing(Exception):  # noqa: N818 - a contender that is not there
    """A library is not installed.  The text says which, and how to have it."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What one contender did at one N."""

    contender: str
    is_durable: bool
    count: int
    decisions_per_s: float
    """The median of the rounds."""


@contextmanager
def _relay(count: int) -> Iterator[Decide]:
    slots = Slots()
    slots.judge_by([messages(count, DAY_S)], 0)

    def decide(now_ns: int) -> bool:
        answer = slots.reserve(Request(1), TRANSACTION_NS, now_ns)
        if not isinstance(answer, Grant):
            return False
        slots.settle(Ended(answer.reserved.id, now_ns + 1))
        slots.written(1)
        return True

    yield decide


@contextmanager
def _relay_durable(count: int) -> Iterator[Decide]:
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder:
        clock = FakeClock(START_NS - 1)
        account = Throttle(Path(folder) / "history", [messages(count, DAY_S)], 0, RealDisk(), clock)

        def decide(now_ns: int) -> bool:
            clock.advance(now_ns - clock.boottime_ns())
            (answer,) = account.reserve([Request(1)])
            if not isinstance(answer, Reservation):
                return False
            account.settle([Settlement(answer, now_ns)])
            return True

        yield decide
        account.close()


def _library(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Missing(f"{package} is not installed: .venv/bin/python -m pip install {package}") from None


def _asking(bucket: Any, pyrate: Any) -> Decide:
    asked = 0

    def decide(now_ns: int) -> bool:
        nonlocal asked
        now_ms = now_ns // 1_000_000
        asked += 1
        if asked % LEAK_EACH == 0:
            bucket.leak(now_ms)
        return bool(bucket.put(pyrate.RateItem("isp", now_ms)))

    return decide


@contextmanager
def _pyrate(count: int) -> Iterator[Decide]:
    pyrate = _library("pyrate_limiter", "pyrate-limiter")
    yield _asking(pyrate.InMemoryBucket([pyrate.Rate(count, DAY_S * 1000)]), pyrate)


@contextmanager
def _pyrate_durable(count: int) -> Iterator[Decide]:
    pyrate = _library("pyrate_limiter", "pyrate-limiter")
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder:
        rates = [pyrate.Rate(count, DAY_S * 1000)]
        bucket = pyrate.SQLiteBucket.init_from_file(rates, db_path=str(Path(folder) / "bucket"))
        yield _asking(bucket, pyrate)
        bucket.close()


@contextmanager
def _limits(count: int) -> Iterator[Decide]:
    limits = _library("limits", "limits")
    memory = _library("limits.storage.memory", "limits")
    clock = SimpleNamespace(time=lambda: START_NS / SECOND_NS)
    theirs, memory.time = memory.time, clock
    try:
        limiter = limits.strategies.MovingWindowRateLimiter(limits.storage.MemoryStorage())
        item = limits.RateLimitItemPerDay(count)

        def decide(now_ns: int) -> bool:
            clock.time = lambda: now_ns / SECOND_NS
            return bool(limiter.hit(item, "isp"))

        yield decide
    finally:
        memory.time = theirs


CONTENDERS: dict[tuple[str, bool], Any] = {
    ("relay", False): _relay,
    ("pyrate-limiter", False): _pyrate,
    ("limits", False): _limits,
    ("relay", True): _relay_durable,
    ("pyrate-limiter", True): _pyrate_durable,
}


def measure(rounds: int, say: Callable[[str], object]) -> list[Rate]:
    """Measure every contender that is there; the rounds alternate.  `say` is told what is missing."""
    rates: list[Rate] = []
    for is_durable in (False, True):
        for count in COUNTS:
            found: dict[str, list[float]] = {}
            for _ in range(rounds):
                for (name, durable), contender in CONTENDERS.items():
                    if durable is is_durable:
                        try:
                            found.setdefault(name, []).append(_round(contender, count, is_durable))
                        except Missing as missing:
                            say(f"left out: {missing}\n")
            rates += [
                Rate(name, is_durable, count, statistics.median(each)) for name, each in found.items() if each
            ]
    say("left out: limits, durable: it has no storage on disk (Redis, Memcached, MongoDB, etcd only)\n")
    return rates


def summarise(rates: list[Rate]) -> list[dict[str, Any]]:
    """Return a row for each contender: its rate at each N, and ours divided by it."""
    rows: list[dict[str, Any]] = []
    for name, is_durable in CONTENDERS:
        of = {each.count: each for each in rates if (each.contender, each.is_durable) == (name, is_durable)}
        if of:
            row: dict[str, Any] = {"contender": name, "kind": "durable" if is_durable else "in memory"}
            row |= {f"N = {count:,}": round(of[count].decisions_per_s) for count in COUNTS}
            ours = {
                each.count: each
                for each in rates
                if (each.contender, each.is_durable) == ("relay", is_durable)
            }
            ratios = (ours[count].decisions_per_s / of[count].decisions_per_s for count in COUNTS)
            rows.append(row | {"relay / it": " ".join(f"{ratio:.2f}" for ratio in ratios)})
    return rows


def _round(contender: Any, count: int, is_durable: bool) -> float:
    """Return the decisions a second of a fresh contender in its steady state."""
    decisions = DURABLE_DECISIONS if is_durable else MEMORY_DECISIONS
    prefilled = min(count, decisions if is_durable else PREFILLED)
    # Rounded up, and by a little more: each asks when its slot has opened by any of their clocks.
    gap_ns = DAY_NS // count + 2_000_000
    with contender(count) as decide:
        now_ns = START_NS
        for _ in range(prefilled):
            assert decide(now_ns)
            now_ns += gap_ns
        # In memory: the time of this process, so that what else runs does not count.  A disk is waited for.
        timer = time.perf_counter if is_durable else time.process_time
        began_s = timer()
        for _ in range(decisions):
            assert decide(now_ns), "a slot had opened"
            now_ns += gap_ns
        return decisions / (timer() - began_s)
