"""Decisions a second: the throttle beside pyrate-limiter, in memory and durable, at several N.

Every contender has a limit of N a day and a window that is full: N slots that were used evenly over the
last day.  That it is full is seen each time: just before the first slot opens, one more is asked for,
and refused.  Then it is asked by a clock that moves on by a day / N with each decision: as one slot
opens, one message asks and is let through.  That is the steady state of a queue that waits.  Of an N above
`EXACT_SLOTS` ours opens slots some at a time, a 1024th of the day late at most: so all are asked a
thousandth of the day after theirs opened, and 99.9 % of the window is full.

A decision of ours is all that one transaction costs: the reservation and its end.  pyrate-limiter knows no
end: its slot starts to age when it is granted, so a slow upstream can see more than N.  It is asked at its
bucket, without the cost of its Limiter; its SQLite file is committed once a decision, by SQLite's default of
synchronous=FULL.  Durable is ours alone in the full sense: the slot is on disk (fsync) before it is granted,
for every process that shares the file.  pyrate-limiter is optional (`make bench` fetches it).
"""

import importlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from relay.clock import SECOND_NS
from relay.spool.disk.durable import RealDisk
from relay.throttle.admission import Request
from relay.throttle.book import Book
from relay.throttle.file_history import FileHistory
from relay.throttle.throttle import Reservation, Throttle
from relay.throttle.window import EXACT_SLOTS
from tests.engines.history.limits import messages
from tests.engines.history.test_cost import decide as decide_and_end
from tests.fakes.clock import FakeClock

COUNTS = (8, 1_000, 1_000_000)
DAY_S = 86_400
DAY_NS = DAY_S * SECOND_NS
MILLISECOND_NS = 1_000_000
TRANSACTION_NS = 60 * SECOND_NS
MOST_IN_A_BATCH = 1_000
START_NS = 1_000_000 * SECOND_NS
MEMORY_DECISIONS = 50_000
DURABLE_DECISIONS = 500
LEAK_EACH = 1_000

Decide = Callable[[int], bool]
"""Decides about one message at an instant (ns, ascending); says whether it may go."""


class Contender(NamedTuple):
    """One that decides, and how its slots come to be used."""

    decide: Decide
    fill: Callable[[Sequence[int]], None]
    """Use a slot at each of these instants, which ascend."""


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


def _one_by_one(decide: Decide) -> Contender:
    def fill(instants_ns: Sequence[int]) -> None:
        for now_ns in instants_ns:
            assert decide(now_ns), "there was room"

    return Contender(decide, fill)


@contextmanager
def _relay(count: int) -> Iterator[Contender]:
    book = Book()
    book.judge_by([messages(count, DAY_S)], 0)
    yield _one_by_one(lambda now_ns: decide_and_end(book, now_ns, Request(1)))


@contextmanager
def _relay_durable(count: int) -> Iterator[Contender]:
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder:
        clock = FakeClock(START_NS - 1)
        history = FileHistory(Path(folder) / "history", RealDisk(), clock)
        account = Throttle(history, [messages(count, DAY_S)], 0, clock)

        def decide(now_ns: int) -> bool:
            clock.advance(now_ns - clock.boottime_ns())
            (answer,) = account.reserve([Request(1)])
            if not isinstance(answer, Reservation):
                return False
            account.settle(answer, now_ns)
            return True

        def fill(instants_ns: Sequence[int]) -> None:
            at_once = max(1, min(MOST_IN_A_BATCH, TRANSACTION_NS * count // DAY_NS))
            for first in range(0, len(instants_ns), at_once):
                batch = instants_ns[first : first + at_once]
                clock.advance(batch[0] - clock.boottime_ns())
                answers = account.reserve([Request(1)] * len(batch))
                clock.advance(batch[-1] - clock.boottime_ns())
                granted = [answer for answer in answers if isinstance(answer, Reservation)]
                assert len(granted) == len(batch), "there was room"
                for each, end_ns in zip(granted, batch, strict=True):
                    account.settle(each, end_ns)

        yield Contender(decide, fill)
        account.close()


def _pyrate_limiter() -> Any:
    try:
        return importlib.import_module("pyrate_limiter")
    except ImportError:
        advice = ".venv/bin/python -m pip install pyrate-limiter"
        raise Missing(f"pyrate-limiter is not installed: {advice}") from None


def _asking(bucket: Any, pyrate: Any) -> Decide:
    asked = 0

    def decide(now_ns: int) -> bool:
        nonlocal asked
        now_ms = now_ns // MILLISECOND_NS
        asked += 1
        if asked % LEAK_EACH == 0:
            bucket.leak(now_ms)
        return bool(bucket.put(pyrate.RateItem("isp", now_ms)))

    return decide


@contextmanager
def _pyrate(count: int) -> Iterator[Contender]:
    pyrate = _pyrate_limiter()
    yield _one_by_one(_asking(pyrate.InMemoryBucket([pyrate.Rate(count, DAY_S * 1000)]), pyrate))


@contextmanager
def _pyrate_durable(count: int) -> Iterator[Contender]:
    pyrate = _pyrate_limiter()
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder:
        rates = [pyrate.Rate(count, DAY_S * 1000)]
        bucket = pyrate.SQLiteBucket.init_from_file(rates, db_path=str(Path(folder) / "bucket"))

        def fill(instants_ns: Sequence[int]) -> None:
            rows = [("isp", now_ns // MILLISECOND_NS) for now_ns in instants_ns]
            bucket.conn.executemany(f"INSERT INTO '{bucket.table}' VALUES (?, ?)", rows)
            bucket.conn.commit()

        yield Contender(_asking(bucket, pyrate), fill)
        bucket.close()


CONTENDERS: dict[tuple[str, bool], Any] = {
    ("relay", False): _relay,
    ("pyrate-limiter", False): _pyrate,
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
    decisions = DURABLE_DECISIONS if is_durable else MEMORY_DECISIONS
    gap_ns = DAY_NS // count
    # Each round of all slots begins later by so much: then a slot has opened by any of their clocks.
    late_ns = DAY_NS // 1000 if count > EXACT_SLOTS else 2 * MILLISECOND_NS
    instants_ns = [START_NS + k * gap_ns + k // count * late_ns for k in range(count + decisions)]
    with contender(count) as (decide, fill):
        fill(instants_ns[:count])
        assert not decide(START_NS + DAY_NS - MILLISECOND_NS), "the window is full"
        # In memory: the time of this process, so that what else runs does not count.  A disk is waited for.
        timer = time.perf_counter if is_durable else time.process_time
        began_s = timer()
        for now_ns in instants_ns[count:]:
            assert decide(now_ns), "a slot had opened"
        return decisions / (timer() - began_s)
