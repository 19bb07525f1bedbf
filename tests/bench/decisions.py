"""Decisions of the throttle a second, in memory and durable, at several N.

The limit is N a day, and its window is full: N slots were used evenly over the last day.  Each round checks
that: just before the first slot opens, one more request is refused.  Then the clock moves on by a day / N
with each decision: as a slot opens, a message asks and gets it, as in the steady state of a queue that waits.
If N is above half of `BOUNDS.exact`, the throttle opens some slots at a time, at most a 1024th of a day late.
So they are asked for a thousandth of a day after they opened, and 99.9 % of the window is full.

A decision is all that one transaction costs: the reservation and its end.  Durable means that the slot is on
disk (fsync) before it is granted, for every process that shares the file.
"""

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from relay.clock import SECOND_NS
from relay.spool.disk.durable import RealDisk
from relay.throttle.admission import Request
from relay.throttle.book import BOUNDS, Book
from relay.throttle.file_history import FileHistory
from relay.throttle.throttle import Reservation, Throttle
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
REPLACED_AFTER = 20_000
"""In memory: after so many decisions a history would be replaced, so the book merges its past."""

Throttled = tuple[Callable[[int], bool], Callable[[Sequence[int]], None]]
"""Two functions: one decides at an instant (ns, ascending), the other uses a slot at each of many."""


@contextmanager
def _in_memory(count: int) -> Iterator[Throttled]:
    book, number = Book(), itertools.count(1)
    book.judge_by([messages(count, DAY_S)])

    def decide(now_ns: int) -> bool:
        if next(number) % REPLACED_AFTER == 0:
            book.events()
        return decide_and_end(book, now_ns, Request(1))

    def fill(instants_ns: Sequence[int]) -> None:
        for now_ns in instants_ns:
            assert decide(now_ns), "there was room"

    yield decide, fill


@contextmanager
def _durable(count: int) -> Iterator[Throttled]:
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder:
        clock = FakeClock(START_NS - 1)
        history = FileHistory(Path(folder) / "history", RealDisk(), clock)
        account = Throttle(history, [messages(count, DAY_S)], clock, transaction_ns=TRANSACTION_NS)

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

        yield decide, fill
        account.close()


def rows(rounds: int) -> list[dict[str, Any]]:
    """Return a row for each kind: the median of the decisions a second at each N."""
    found = []
    for throttled in (_in_memory, _durable):
        row: dict[str, Any] = {"kind": throttled.__name__.strip("_").replace("_", " ")}
        for count in COUNTS:
            rates = [_round(throttled, count, throttled is _durable) for _ in range(rounds)]
            row[f"N = {count:,}"] = round(statistics.median(rates))
        found.append(row)
    return found


def _round(throttled: Any, count: int, is_durable: bool) -> float:
    decisions = DURABLE_DECISIONS if is_durable else MEMORY_DECISIONS
    gap_ns = DAY_NS // count
    # Each round of all slots begins later by this.
    late_ns = DAY_NS // 1000 if count > BOUNDS.exact // 2 else 2 * MILLISECOND_NS
    instants_ns = [START_NS + k * gap_ns + k // count * late_ns for k in range(count + decisions)]
    with throttled(count) as (decide, fill):
        fill(instants_ns[:count])
        assert not decide(START_NS + DAY_NS - MILLISECOND_NS), "the window is full"
        # In memory: processor time, so that other programs do not count.  The wait for a disk does count.
        timer = time.perf_counter if is_durable else time.process_time
        began_s = timer()
        for now_ns in instants_ns[count:]:
            assert decide(now_ns), "a slot had opened"
        return decisions / (timer() - began_s)
