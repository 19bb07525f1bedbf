"""A world of senders on one history, in which anything may happen at any moment; for tests.

`World(random).live(events)` draws events and holds each grant against an oracle of its own:
a list of every flight in true time, searched anew for every limit and every key.  It
counts each flight wherever in it it hurts most, and those without an end until their
deadline.  It knows nothing of windows, shares or files.

Of a calendar's periods it counts by the upstream's clock, which never errs.  It does so where the sender
could know that clock: its own is right now, or was within the longest period, in this boot, when it
asked or when something was granted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import floor
from pathlib import Path
from random import Random

from relay.clock import SECOND_NS
from relay.throttle.admission import TooLarge, Wait
from relay.throttle.bounds import BOUNDS, HistoryBounds
from relay.throttle.history_format import HistoryError
from relay.throttle.limit import ForEach, Unit
from relay.throttle.throttle import Request, Reservation, Throttle
from tests.engines.history.limits import PerPeriod, Rise, Shifts, Ticks
from tests.engines.history.memory_disk import Killed, MemoryDisk
from tests.fakes.clock import FakeClock

PATH = Path("/history/isp")
TRANSACTION_NS = 200
LONGEST_NS = 1000
YEAR_NS = 365 * 86_400 * SECOND_NS
STEPS_NS = (1, 300, SECOND_NS, 3600 * SECOND_NS, YEAR_NS, 10 * YEAR_NS)
FOR_EACH: tuple[ForEach | None, ...] = (
    None,
    None,
    "sender",
    "sender_domain",
    "recipient_domain",
    "client",
    "user",
    "lane",
)
LANES = ("", "u", "v")
"""A relay without lanes says nothing of them."""
UNITS: tuple[Unit, ...] = ("messages", "recipients", "connections", "bytes")
FAILURES = ("write", "sync", "truncate", "rename", "open_new", "sync_directory", "pread")


@dataclass
class Flight:
    """One transaction in true time, and whose it was."""

    started_at_ns: int
    latest_end_ns: int
    ended_at_ns: int
    weights: dict[str, int]
    keys: dict[str, dict[str, int]]
    """For each kind of key and each key: how many recipients."""
    sender: "Sender"
    reservation: Reservation


@dataclass
class Sender:
    """One process."""

    limits: list[PerPeriod]
    throttle: Throttle | None = None
    flying: list[Flight] = field(default_factory=list)
    right_at_ns: int | None = None
    """When it last read a clock that was right."""


class World:
    """Three senders, one disk, one clock; `true_ns` is the time that never errs."""

    def __init__(self, random: Random, bounds: HistoryBounds = BOUNDS) -> None:
        self.random = random
        self.bounds = bounds
        self.disk = MemoryDisk()
        self.clock = FakeClock()
        self.true_ns = 0
        self.wall_error_ns = self.least_wall_error_ns = self.most_wall_error_ns = 0
        self.flights: list[Flight] = []
        self.grants = 0
        self.first_ns: int | None = None
        """When anything was asked for first: it may have been granted, and its process dead by then."""
        self.right_at_ns: int | None = None
        """When, in this boot, something was granted last by a clock that was right."""
        self.boundaries = 0
        """Grants that a sliding window of the same length would have refused."""
        shared = self._limits()
        self.senders = [Sender(shared if random.random() < 0.8 else self._limits()) for _ in range(3)]

    def live(self, events: int) -> None:
        """Have so much happen."""
        chances = self._chances()
        acts = self.random.choices([act for _, act in chances], [chance for chance, _ in chances], k=events)
        for act in acts:
            act()
            assert not self.disk.locks

    def _chances(self) -> list[tuple[int, Callable[[], None]]]:
        return [
            (30, self._reserve),
            (5, self._connect),
            (25, self._settle),
            (20, self._pass_time),
            (4, self._flush),
            (3, self._edit),
            # In half of the worlds the clock is right, for periods to begin anew.
            (self.random.choice([0, 4]), self._step_the_wall_clock),
            (3, self._kill),
            (3, self._die_at_the_disk),
            (2, self._fail),
            (1, self._lose_power),
        ]

    def all_is_free_at_last(self) -> bool:
        """Return whether, once all is past, a limit is free again, and no more than that."""
        self.clock.advance(2 * (LONGEST_NS + TRANSACTION_NS) + self.true_ns)
        account = self._new_throttle([PerPeriod(5, LONGEST_NS)])
        return sum(isinstance(answer, Reservation) for answer in account.reserve([Request(1)] * 6)) == 5

    def _limits(self) -> list[PerPeriod]:
        return [self._limit() for _ in range(self.random.choice([0, 1, 1, 2, 2, 3, 3]))]

    def _limit(self) -> PerPeriod:
        unit = self.random.choice(UNITS)
        for_each = None if unit == "connections" else self.random.choice(FOR_EACH)
        if for_each == "lane" and unit == "bytes":
            for_each = None
        count = self.random.randint(1, 8) * (10 if unit == "bytes" else 1)
        per_ns = self.random.choice([1, 50, 300, LONGEST_NS])
        calendar = Ticks(per_ns, self.random.choice([0, per_ns // 3])) if self.random.random() < 0.4 else None
        is_open_always = for_each is not None or unit == "connections" or self.random.random() < 0.8
        rise = Rise(self.random.randint(1, count), count, self.random.choice([1, 500, 5000]))
        return PerPeriod(
            count,
            per_ns,
            unit,
            for_each,
            self.random.choice(LANES[1:]) if for_each == "lane" else None,
            calendar,
            None if is_open_always else Shifts(200, self.random.choice([1, 150])),
            rise if self.random.random() < 0.2 else None,
        )

    def _new_throttle(self, limits: list[PerPeriod]) -> Throttle:
        return Throttle(
            PATH, limits, 0, self.disk, self.clock, transaction_ns=TRANSACTION_NS, bounds=self.bounds
        )

    def _throttle(self, sender: Sender) -> Throttle:
        if sender.throttle is None:
            sender.throttle = self._new_throttle(sender.limits)
        return sender.throttle

    def _requests(self) -> list[Request]:
        return [self._request() for _ in range(self.random.randint(1, 3))]

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
        sender, requests = self.random.choice(self.senders), self._requests()
        self.first_ns = self.true_ns if self.first_ns is None else self.first_ns
        answers = self._throttle(sender).reserve(requests)
        self._read_clock(sender)
        is_stopped = False
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, Wait):
                assert answer.until_ns > self.clock.boottime_ns()
                is_stopped = is_stopped or answer.place is None
            elif isinstance(answer, TooLarge):
                assert request.size_bytes > answer.count
            else:
                assert not is_stopped, "overtaken"
                assert 1 <= answer.recipients == len(answer.chosen) <= request.largest
                self._fly(sender, answer, request)

    def _connect(self) -> None:
        sender = self.random.choice(self.senders)
        self.first_ns = self.true_ns if self.first_ns is None else self.first_ns
        answer = self._throttle(sender).reserve_connection(TRANSACTION_NS)
        self._read_clock(sender)
        if isinstance(answer, Reservation):
            self._fly(sender, answer, None)

    def _fly(self, sender: Sender, answer: Reservation, request: Request | None) -> None:
        """Start what was granted, and hold it against all that every limit may have seen."""
        latest_ns = self.true_ns + answer.deadline_ns - answer.reserved_at_ns
        weights = {"messages": 0, "recipients": 0, "connections": 1, "bytes": 0}
        keys: dict[str, dict[str, int]] = {}
        if request is not None:
            weights = {
                "messages": 1,
                "recipients": answer.recipients,
                "connections": 0,
                "bytes": request.size_bytes,
            }
            domains: dict[str, int] = {}
            for position in answer.chosen:
                domain = request.recipient_domains[position]
                domains[domain] = domains.get(domain, 0) + 1
            keys = {
                "sender": {request.sender: answer.recipients},
                "sender_domain": {request.sender_domain: answer.recipients},
                "client": {request.client: answer.recipients},
                "user": {request.user: answer.recipients},
                "recipient_domain": domains,
                "lane": {request.lane: answer.recipients},
            }
        flight = Flight(self.true_ns, latest_ns, latest_ns, weights, keys, sender, answer)
        self.grants += 1
        if not self.wall_error_ns:
            self.right_at_ns = self.true_ns
        self.flights = [each for each in self.flights if each.ended_at_ns >= self.true_ns - LONGEST_NS]
        self.flights.append(flight)
        sender.flying.append(flight)
        # What weighs nothing in a limit is not asked by it, and others may have gone by other limits.
        for limit in (each for each in sender.limits if weights[each.unit]):
            wall_ns = self.clock.wall_ns()
            assert limit.open_hours is None or limit.open_hours.opens_at(wall_ns) == wall_ns, limit.label
            if limit.calendar is not None and not self._knows_the_clock(sender, limit.per_ns):
                continue
            for key in flight.keys.get(limit.for_each or "", {None: 0}):
                if limit.only not in (None, key):
                    continue
                counted = sum(self._counted(limit, key, flight))
                assert counted <= self._most(limit), f"{counted} for {limit.label}, {key}"
                if limit.calendar is not None:
                    sliding = sum(self._counted(replace(limit, calendar=None), key, flight))
                    self.boundaries += sliding > limit.count

    def _counted(self, limit: PerPeriod, key: str | None, last: Flight) -> Iterator[int]:
        """Return what each flight can weigh in the window that ends just behind the start of the last."""
        first_ns = last.started_at_ns - limit.per_ns + 1
        if isinstance(limit.calendar, Ticks):
            # By the clock that never errs.
            ahead_ns = self.clock.wall_ns() - self.wall_error_ns - self.true_ns
            first_ns = limit.calendar.begin_of(last.started_at_ns + ahead_ns) - ahead_ns
        for flight in self.flights:
            if flight.ended_at_ns >= first_ns:
                if limit.for_each is None:
                    yield flight.weights[limit.unit]
                else:
                    of_key = flight.keys.get(limit.for_each, {}).get(key or "", 0)
                    size_bytes = flight.weights["bytes"] if of_key else 0
                    whole = size_bytes if limit.unit == "bytes" else min(of_key, 1)
                    yield of_key if limit.unit == "recipients" else whole

    def _most(self, limit: PerPeriod) -> int:
        """Return the N of now, by the time that never errs."""
        if limit.rise is None:
            return limit.count
        part = min(Fraction(1), Fraction(self.true_ns - (self.first_ns or 0), limit.rise.over_ns))
        return min(limit.count, floor(limit.rise.first + (limit.rise.last - limit.rise.first) * part))

    def _read_clock(self, sender: Sender) -> None:
        if not self.wall_error_ns:
            sender.right_at_ns = self.true_ns

    def _knows_the_clock(self, sender: Sender, longest_ns: int) -> bool:
        known = (sender.right_at_ns, self.right_at_ns)
        return any(at_ns is not None and self.true_ns - at_ns <= longest_ns for at_ns in known)

    def _settle(self) -> None:
        sender = self.random.choice(self.senders)
        if not sender.flying or sender.throttle is None:
            return
        flight = sender.flying.pop(self.random.randrange(len(sender.flying)))
        late_ns = max(0, self.true_ns - flight.latest_end_ns)
        sender.throttle.settle(flight.reservation, self.clock.boottime_ns() - late_ns)
        flight.ended_at_ns = self.true_ns - late_ns

    def _pass_time(self) -> None:
        self._advance(self.random.randint(0, self.random.choice([20, 60, 2 * LONGEST_NS])))

    def _advance(self, by_ns: int) -> None:
        self.clock.advance(by_ns)
        self.true_ns += by_ns

    def _flush(self) -> None:
        self._throttle(self.random.choice(self.senders)).flush()

    def _edit(self) -> None:
        sender, limits = self.random.choice(self.senders), self._limits()
        if self.random.random() < 0.5:
            # Some stay as they are, or with another N.
            kept = self.random.sample(sender.limits, self.random.randint(0, len(sender.limits)))
            limits += [replace(each, count=self.random.choice([each.count, 3])) for each in kept]
        self._throttle(sender).replan(limits, 0)
        sender.limits = limits

    def _step_the_wall_clock(self) -> None:
        by_ns = self.random.choice(STEPS_NS) * self.random.choice([-1, 1])
        if self.wall_error_ns and self.random.random() < 0.5:
            by_ns = -self.wall_error_ns  # somebody put it right
        self._set_wall_error(self.wall_error_ns + by_ns)

    def _set_wall_error(self, error_ns: int) -> None:
        self.clock.step_wall(error_ns - self.wall_error_ns)
        self.wall_error_ns = error_ns
        self.least_wall_error_ns = min(self.least_wall_error_ns, error_ns)
        self.most_wall_error_ns = max(self.most_wall_error_ns, error_ns)

    def _kill(self) -> None:
        self._die(self.random.choice(self.senders))

    def _die(self, sender: Sender) -> None:
        """Leave its transactions in flight, for the upstream to count until their deadline."""
        sender.throttle = None
        sender.flying.clear()
        sender.right_at_ns = None

    def _die_at_the_disk(self) -> None:
        self.disk.kill_at(self.random.randint(1, 7), self.random)
        try:
            self.random.choice([self._reserve, self._reserve, self._flush, self._connect])()
        except Killed:
            pass
        finally:
            # Whoever has the disk open is gone with it: all die in the same instant.
            self.disk.bury()
            for sender in self.senders:
                self._die(sender)

    def _fail(self) -> None:
        self.disk.fail(self.random.choice(FAILURES))
        try:
            self._reserve()
        except HistoryError:
            assert not self.disk.failures
        self.disk.failures.clear()

    def _lose_power(self) -> None:
        for sender in self.senders:
            self._die(sender)
        self.disk.cut_power(self.random)
        down_ns, boottime_ns = self.random.randint(0, 2 * LONGEST_NS), self.random.randint(0, 500)
        self.clock.reboot(down_ns, boottime_ns=boottime_ns)
        self.true_ns += down_ns + boottime_ns
        # A clock that was set while the host was off says nothing of what it said before.
        self.right_at_ns = None
        # Further ahead than it ever was, by more than is believed: a little further cannot be detected.
        beyond_ns = self.most_wall_error_ns + 23 * YEAR_NS
        error_ns = self.random.choice(
            [
                self.least_wall_error_ns,
                self.least_wall_error_ns - self.random.randint(0, 2 * LONGEST_NS),
                self.least_wall_error_ns - self.random.choice(STEPS_NS),
                -self.clock.wall_ns() + self.wall_error_ns + boottime_ns,  # 1970
                beyond_ns,  # 2038, and further with each such boot
            ]
        )
        self._set_wall_error(error_ns if error_ns == beyond_ns else min(error_ns, self.least_wall_error_ns))
        self._read_once()

    def _read_once(self) -> None:
        """Have somebody read the history by the clock as it is, before it is put right."""
        if self.disk.read(str(PATH)) is not None:
            self._throttle(self.senders[0]).flush()
