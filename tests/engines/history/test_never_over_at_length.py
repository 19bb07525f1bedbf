"""A brute-force oracle checks each grant of random events: 40,000 of them in `make test-all`.

Senders share one history, and any event may happen at any moment. The disk fails or loses power, processes
die in calls, and the wall clock steps. The oracle is a list of all flights in true time, searched anew for
every limit and every key. It counts each flight at its worst instant, and a flight without an end until its
deadline. It knows nothing of windows, shares, events or files.
"""

import concurrent.futures
import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import get_args

import pytest

from relay.clock import SECOND_NS
from relay.policy.lane import UNITS
from relay.throttle.admission import Request, TooLarge, Wait
from relay.throttle.book import BOUNDS, Book, Bounds
from relay.throttle.file_history import FileHistory
from relay.throttle.history import HistoryError
from relay.throttle.limit import ForEach, Limit
from relay.throttle.throttle import Reservation, Throttle
from tests.engines.history.limits import limit
from tests.fakes.clock import FakeClock
from tests.fakes.disk import FAULTS, Killed, ModelDisk

PATH = Path("/history/isp")
TRANSACTION_NS = 200
LONGEST_NS = 1000
YEAR_NS = 365 * 86_400 * SECOND_NS
STEPS_NS = (1, 300, SECOND_NS, 3600 * SECOND_NS, YEAR_NS, 10 * YEAR_NS)
FOR_EACH: tuple[ForEach | None, ...] = (None, None, *get_args(ForEach))
LANES = ("", "u", "v")
"""An empty lane belongs to a relay without lanes."""


@dataclass
class Flight:
    """One transaction in true time, with its weights and keys."""

    started_at_ns: int
    latest_end_ns: int
    ended_at_ns: int
    weights: dict[str, int]
    keys: dict[str, dict[str, int]]
    """For each kind of key and each key: the number of recipients."""
    reservation: Reservation


@dataclass
class Sender:
    limits: list[Limit]
    throttle: Throttle | None = None
    flying: list[Flight] = field(default_factory=list)


class World:
    """Three senders, one history and one clock. `true_ns` is the true time."""

    def __init__(self, random: Random, bounds: Bounds, *, replaces_often: bool) -> None:
        """Small bounds of the book reach in a few messages what otherwise takes thousands."""
        self.random, self._bounds = random, bounds
        self._replace_above_bytes = 0 if replaces_often else 1 << 30
        self.clock, self.true_ns = FakeClock(), 0
        self.disk = ModelDisk()
        self.wall_error_ns = self.least_wall_error_ns = self.most_wall_error_ns = 0
        self.flights: list[Flight] = []
        self.grants = 0
        shared = self._limits()
        self.senders = [Sender(shared if random.random() < 0.8 else self._limits()) for _ in range(3)]

    def live(self, events: int) -> None:
        chances = self._chances()
        acts = self.random.choices([act for _, act in chances], [chance for chance, _ in chances], k=events)
        for act in acts:
            act()

    def _chances(self) -> list[tuple[int, Callable[[], None]]]:
        return [
            (30, self._reserve),
            (5, self._connect),
            (25, self._settle),
            (20, self._pass_time),
            (4, self._flush),
            (4, self._look),
            (3, self._edit),
            (3, lambda: self._die(self.random.choice(self.senders))),
            (2, self._fail),
            (4, self._step_the_wall_clock),
            (3, self._die_at_the_disk),
            (1, self._lose_power),
        ]

    def all_is_free_at_last(self) -> bool:
        """Return whether a limit has all its slots, and no more, once every flight is past."""
        self.clock.advance(2 * (LONGEST_NS + TRANSACTION_NS) + self.true_ns)
        account = self._new_throttle([limit(5, LONGEST_NS)])
        return sum(isinstance(answer, Reservation) for answer in account.reserve([Request(1)] * 6)) == 5

    def _limits(self) -> list[Limit]:
        return [self._limit() for _ in range(self.random.choice([0, 1, 1, 2, 2, 3, 3]))]

    def _limit(self) -> Limit:
        unit = self.random.choice(UNITS)
        for_each = None if unit == "connections" else self.random.choice(FOR_EACH)
        count = self.random.randint(1, 8) * (10 if unit == "bytes" else 1)
        only = self.random.choice(LANES[1:]) if for_each == "lane" else None
        return limit(count, self.random.choice([1, 50, 300, LONGEST_NS]), unit, for_each, only)

    def _new_throttle(self, limits: list[Limit]) -> Throttle:
        above = self._replace_above_bytes
        history = FileHistory(PATH, self.disk, self.clock, replace_above_bytes=above)
        book = Book(self._bounds)
        return Throttle(history, limits, self.clock, transaction_ns=TRANSACTION_NS, book=book)

    def _throttle(self, sender: Sender) -> Throttle:
        if sender.throttle is None:
            sender.throttle = self._new_throttle(sender.limits)
        return sender.throttle

    def _request(self) -> Request:
        count, domain = self.random.randint(1, 6), self.random.choice("xy")
        return Request(
            count,
            sender=f"{self.random.choice('ab')}@{domain}",
            sender_domain=domain,
            client=self.random.choice("pqr"),
            user=self.random.choice(["", "s", "t"]),
            lane=self.random.choice(LANES),
            recipient_domains=tuple(self.random.choices("lmn", k=count)),
            most=self.random.choice([None, None, 2]),
            size_bytes=self.random.randint(1, 25),
        )

    def _reserve(self) -> None:
        sender = self.random.choice(self.senders)
        requests = [self._request() for _ in range(self.random.randint(1, 3))]
        answers = self._throttle(sender).reserve(requests)
        is_stopped = False
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, Wait):
                assert answer.until_ns > self.clock.boottime_ns()
                is_stopped = is_stopped or answer.place is None
            elif isinstance(answer, TooLarge):
                assert request.size_bytes > answer.limit.count
            else:
                assert not is_stopped, "overtaken"
                assert 1 <= answer.recipients == len(answer.chosen) <= request.largest
                self._fly(sender, answer, request)

    def _connect(self) -> None:
        sender = self.random.choice(self.senders)
        answer = self._throttle(sender).reserve_connection(TRANSACTION_NS)
        if isinstance(answer, Reservation):
            self._fly(sender, answer, None)

    def _fly(self, sender: Sender, answer: Reservation, request: Request | None) -> None:
        """Start a granted flight, and check its limits against the most that an upstream may count."""
        assert answer.reserved_at_ns == self.clock.boottime_ns()
        latest_ns = self.true_ns + answer.deadline_ns - answer.reserved_at_ns
        weights = {"messages": 0, "recipients": 0, "connections": 1, "bytes": 0}
        keys: dict[str, dict[str, int]] = {}
        if request is not None:
            count, size_bytes = answer.recipients, request.size_bytes
            weights = {"messages": 1, "recipients": count, "connections": 0, "bytes": size_bytes}
            domains: dict[str, int] = {}
            for position in answer.chosen:
                domain = request.recipient_domains[position]
                domains[domain] = domains.get(domain, 0) + 1
            kinds = ("sender", "sender_domain", "client", "user", "lane")
            keys = {kind: {getattr(request, kind): count} for kind in kinds} | {"recipient_domain": domains}
        flight = Flight(self.true_ns, latest_ns, latest_ns, weights, keys, answer)
        self.grants += 1
        self.flights = [each for each in self.flights if each.ended_at_ns >= self.true_ns - LONGEST_NS]
        self.flights.append(flight)
        sender.flying.append(flight)
        # A limit does not apply to a flight that weighs nothing in it; flights by other limits may exceed it.
        for each in (each for each in sender.limits if weights[each.unit]):
            for key in flight.keys.get(each.for_each or "", {None: 0}):
                if each.only in (None, key):
                    counted = sum(self._counted(each, key, flight))
                    assert counted <= each.count, f"{counted} for {each.label}, {key}"

    def _counted(self, by: Limit, key: str | None, last: Flight) -> Iterator[int]:
        """Yield the most that each flight can weigh in the window that ends behind the start of `last`."""
        first_ns = last.started_at_ns - by.per_ns + 1
        for flight in self.flights:
            if flight.ended_at_ns >= first_ns:
                if by.for_each is None:
                    yield flight.weights[by.unit]
                else:
                    of_key = flight.keys.get(by.for_each, {}).get(key or "", 0)
                    size_bytes = flight.weights["bytes"] if of_key else 0
                    whole = size_bytes if by.unit == "bytes" else min(of_key, 1)
                    yield of_key if by.unit == "recipients" else whole

    def _settle(self) -> None:
        sender = self.random.choice(self.senders)
        if not sender.flying or sender.throttle is None:
            return
        flight = sender.flying.pop(self.random.randrange(len(sender.flying)))
        late_ns = max(0, self.true_ns - flight.latest_end_ns)
        is_too_late = late_ns > 0 and self.random.random() < 0.3
        late_ns = 0 if is_too_late else late_ns
        sender.throttle.settle(flight.reservation, self.clock.boottime_ns() - late_ns)
        flight.ended_at_ns = self.true_ns - late_ns
        if is_too_late:
            # It outlived its deadline: grants made meanwhile cannot be revoked, but from now on it counts.
            sender.throttle.flush()
            self.flights = [*(each for each in self.flights if each is not flight), flight]

    def _pass_time(self) -> None:
        by_ns = self.random.randint(0, self.random.choice([20, 60, 2 * LONGEST_NS]))
        self.clock.advance(by_ns)
        self.true_ns += by_ns

    def _flush(self) -> None:
        self._throttle(self.random.choice(self.senders)).flush()

    def _look(self) -> None:
        """Read what a status page reads; this changes nothing."""
        self._throttle(self.random.choice(self.senders)).usage()

    def _edit(self) -> None:
        sender, limits = self.random.choice(self.senders), self._limits()
        if self.random.random() < 0.5:
            # Some limits stay, or change their count only.
            kept = self.random.sample(sender.limits, self.random.randint(0, len(sender.limits)))
            limits += [replace(each, count=self.random.choice([each.count, 3])) for each in kept]
        self._throttle(sender).replan(limits)
        sender.limits = limits

    @staticmethod
    def _die(sender: Sender) -> None:
        """Leave its transactions in flight; the upstream counts them until their deadline."""
        sender.throttle = None
        sender.flying.clear()

    def _fail(self) -> None:
        """Let a disk call fail in any way, once or until the power goes."""
        fault, nth = self.random.choice(list(FAULTS.values())), self.random.randint(1, 7)
        self.disk.has_failed = False
        self.disk.fail(replace(fault, nth=nth, drops_pages=self.random.random() < 0.5))
        try:
            self.random.choice([self._reserve, self._reserve, self._flush, self._connect])()
        except HistoryError:
            assert self.disk.has_failed
        self.disk.heal()
        if fault.forever or self.random.random() < 0.3:
            self._lose_power()

    def _step_the_wall_clock(self) -> None:
        by_ns = self.random.choice(STEPS_NS) * self.random.choice([-1, 1])
        if self.wall_error_ns and self.random.random() < 0.5:
            by_ns = -self.wall_error_ns  # an operator corrects the clock
        self._set_wall_error(self.wall_error_ns + by_ns)

    def _set_wall_error(self, error_ns: int) -> None:
        self.clock.step_wall(error_ns - self.wall_error_ns)
        self.wall_error_ns = error_ns
        self.least_wall_error_ns = min(self.least_wall_error_ns, error_ns)
        self.most_wall_error_ns = max(self.most_wall_error_ns, error_ns)

    def _die_at_the_disk(self) -> None:
        self.disk.kill_at(self.random.randint(1, 7))
        with contextlib.suppress(Killed):
            self.random.choice([self._reserve, self._reserve, self._flush, self._connect])()
        # The model disk belongs to all processes, so all die in the same instant.
        self.disk.before = None
        if self.random.random() < 0.5:
            self._lose_power()
            return
        self.disk = self.disk.after_kill()
        for sender in self.senders:
            self._die(sender)

    def _lose_power(self) -> None:
        for sender in self.senders:
            self._die(sender)
        self.disk = self.random.choice(list(self.disk.cuts(self.random, 8)))
        down_ns, boottime_ns = self.random.randint(0, 2 * LONGEST_NS), self.random.randint(0, 500)
        self.clock.reboot(down_ns, boottime_ns=boottime_ns)
        self.true_ns += down_ns + boottime_ns
        # Ahead of every earlier error by more than is believed. A smaller step ahead cannot be detected.
        beyond_ns = self.most_wall_error_ns + 23 * YEAR_NS
        error_ns = self.random.choice(
            [
                self.least_wall_error_ns,
                self.least_wall_error_ns - self.random.randint(0, 2 * LONGEST_NS),
                self.least_wall_error_ns - self.random.choice(STEPS_NS),
                -self.clock.wall_ns() + self.wall_error_ns + boottime_ns,  # 1970
                beyond_ns,  # 2038; each such boot goes further ahead
            ]
        )
        self._set_wall_error(error_ns if error_ns == beyond_ns else min(error_ns, self.least_wall_error_ns))
        # A process reads the history by this wrong clock before an operator corrects the clock.
        self._throttle(self.senders[0]).flush()


EVENTS_A_WORLD = 200


def _live(seed: str, number: int) -> int:
    """Run one world and return the number of its grants."""
    bounds = BOUNDS
    if number % 4 == 3:
        # Compaction rounds so coarsely here that its rounding reaches into current windows.
        bounds = Bounds(exact=3, parts=4, most_shares=6 if number % 8 == 7 else 1000)
    world = World(Random(f"{seed} {number}"), bounds, replaces_often=bool(number % 2))
    try:
        world.live(EVENTS_A_WORLD)
        assert world.all_is_free_at_last(), "stuck, or wasteful"
    except AssertionError as error:
        raise AssertionError(f"world {number} of seed {seed}: {error}") from error
    return world.grants


def _live_for(seconds: float, seed: str, first: int, step: int) -> int:
    """Run every step-th world for this long and return the number of worlds."""
    until, number = time.monotonic() + seconds, first
    while time.monotonic() < until:
        _live(seed, number)
        number += step
    return (number - first) // step


@pytest.mark.parametrize("worlds", [range(30), pytest.param(range(30, 200), marks=pytest.mark.full)])
def test_random_events_never_exceed_a_limit(worlds: range) -> None:
    grants = sum(_live("0", number) for number in worlds)

    # The test proves nothing if hardly anything was granted.
    assert grants > len(worlds) * EVENTS_A_WORLD // 20


@pytest.mark.crash
def test_random_events_never_exceed_a_limit_within_the_crash_budget(
    tell: Callable[[str], None], crash_seed: int, crash_budget_s: float
) -> None:
    """Use all cores for a quarter of the budget, and print the number of events."""
    seconds, cores = crash_budget_s / 4, os.cpu_count() or 1
    fresh = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(cores, mp_context=fresh) as pool:
        walks = [pool.submit(_live_for, seconds, str(crash_seed), first, cores) for first in range(cores)]
        worlds = sum(walk.result() for walk in walks)
    events = worlds * EVENTS_A_WORLD
    rate = events / seconds
    tell(
        f"seed {crash_seed}: {events:,} random events, none over; {rate:,.0f} a second on {cores} cores, "
        f"10^8 would take {1e8 / rate / 3600:.1f} h"
    )
    assert worlds
