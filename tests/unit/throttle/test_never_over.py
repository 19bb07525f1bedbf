"""Never over: whatever dies, steps, tears or changes, no upstream counts more than N in any T.

A machine of several senders on one history, against the worst upstream there can be
(`oracle`): it counts each transaction wherever in its flight it hurts most, and those
that nobody saw the end of it counts until their deadline.

Left out is the one thing that cannot be detected: a wall clock that is further ahead
when the history is first read after a reboot than it was before.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from relay.throttle import history, slots
from relay.throttle.history_format import HistoryError, header
from relay.throttle.throttle import Request, Reservation, Throttle
from tests.fakes.clock import FakeClock
from tests.unit.throttle.limits import PerPeriod
from tests.unit.throttle.memory_disk import Killed, MemoryDisk
from tests.unit.throttle.oracle import Seen, most_in_a_window

PATH = Path("/history/isp")
TRANSACTION_NS = 200
LONGEST_NS = 1000
LIMITS = st.lists(
    st.builds(
        PerPeriod,
        st.integers(1, 8),
        st.sampled_from([1, 50, 300, LONGEST_NS]),
        st.sampled_from(["messages", "recipients"]),
    ),
    min_size=1,
    max_size=3,
)
SENDERS = st.integers(0, 2)
RANDOM = st.randoms(use_true_random=False)


@dataclass
class Sender:
    limits: list[PerPeriod]
    throttle: Throttle | None = None
    flying: list["Flight"] = field(default_factory=list)


@dataclass
class Flight:
    sender: Sender
    reservation: Reservation
    seen: Seen
    latest_end_ns: int


class NeverOver(RuleBasedStateMachine):
    """Three senders, one disk, one clock; `true_ns` is the time that never errs."""

    flights: Bundle[Flight] = Bundle("flights")

    @initialize(limits=LIMITS)
    def begin(self, limits: list[PerPeriod]) -> None:
        self.disk = MemoryDisk()
        self.clock = FakeClock()
        self.true_ns = 0
        self.wall_error_ns = self.least_wall_error_ns = 0
        self.senders = [Sender(limits) for _ in range(3)]
        self.seen: list[Seen] = []
        self.disk_failed = False

    @rule(
        target=flights,
        which=SENDERS,
        wanted=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    )
    def reserve(self, which: int, wanted: list[int]) -> Any:
        sender = self.senders[which]
        answers = self._throttle(sender).reserve([Request(each) for each in wanted])

        assert all(
            isinstance(earlier, Reservation) or not isinstance(later, Reservation)
            for earlier, later in pairwise(answers)
        )
        return multiple(*self._start(sender, answers))

    def _start(self, sender: Sender, answers: list[Any]) -> list[Flight]:
        started = []
        for answer in answers:
            if not isinstance(answer, Reservation):
                assert answer.until_ns > self.clock.boottime_ns()
                continue
            # Until an end is known it is the latest that the caller has promised.
            latest_ns = self.true_ns + answer.deadline_ns - answer.reserved_at_ns
            seen = Seen(self.true_ns, latest_ns, 1, answer.recipients)
            self.seen.append(seen)
            for limit in sender.limits:
                counted = most_in_a_window(self.seen, limit.unit, limit.per_ns, last=seen)
                assert counted <= limit.count, f"{counted} for {limit.label}"
            started.append(Flight(sender, answer, seen, latest_ns))
        sender.flying += started
        return started

    @rule(which=SENDERS, wanted=st.integers(1, 9), dies_at=st.integers(1, 7), random=RANDOM)
    def die_while_reserving(self, which: int, wanted: int, dies_at: int, random: Random) -> None:
        self.disk.kill_at(dies_at, random)
        sender = self.senders[which]
        try:
            self._start(sender, self._throttle(sender).reserve([Request(wanted)] * wanted))
        except Killed:
            self._die(sender)
        finally:
            self._all_reopen()

    @rule(flight=consumes(flights))
    def settle(self, flight: Flight) -> None:
        sender = flight.sender
        if flight not in sender.flying or sender.throttle is None:
            return
        sender.flying.remove(flight)
        late_ns = max(0, self.true_ns - flight.latest_end_ns)
        sender.throttle.settle(flight.reservation, self.clock.boottime_ns() - late_ns)
        flight.seen.ended_at_ns = self.true_ns - late_ns

    @rule(which=SENDERS)
    def flush(self, which: int) -> None:
        self._throttle(self.senders[which]).flush()

    @rule(which=SENDERS, limits=LIMITS)
    def edit_the_policy(self, which: int, limits: list[PerPeriod]) -> None:
        sender = self.senders[which]
        self._throttle(sender).replan(limits, 0)
        sender.limits = limits

    @rule(by_ns=st.one_of(st.integers(0, 60), st.integers(0, 2 * LONGEST_NS)))
    def pass_time(self, by_ns: int) -> None:
        self.clock.advance(by_ns)
        self.true_ns += by_ns

    @rule(by_ns=st.integers(-3 * LONGEST_NS, 3 * LONGEST_NS))
    def step_the_wall_clock(self, by_ns: int) -> None:
        if not (self.disk.read(str(PATH)) or b"").startswith(header(self.clock.boot_id())):
            by_ns = min(by_ns, 0)
        self.clock.step_wall(by_ns)
        self.wall_error_ns += by_ns
        self.least_wall_error_ns = min(self.least_wall_error_ns, self.wall_error_ns)

    @rule(which=SENDERS)
    def kill(self, which: int) -> None:
        self._die(self.senders[which])

    @rule(
        down_ns=st.integers(0, 2 * LONGEST_NS),
        boottime_ns=st.integers(0, 500),
        behind_ns=st.one_of(st.just(0), st.integers(0, 2 * LONGEST_NS)),
        random=RANDOM,
    )
    def lose_power(self, down_ns: int, boottime_ns: int, behind_ns: int, random: Random) -> None:
        for sender in self.senders:
            self._die(sender)
        self.disk.cut_power(random)
        self.clock.reboot(down_ns, boottime_ns=boottime_ns)
        self.true_ns += down_ns + boottime_ns
        error_ns = self.least_wall_error_ns - behind_ns
        self.clock.step_wall(error_ns - self.wall_error_ns)
        self.wall_error_ns = self.least_wall_error_ns = error_ns

    @rule(
        which=SENDERS,
        operation=st.sampled_from(
            ["write", "sync", "truncate", "rename", "open_new", "sync_directory", "pread"]
        ),
        wanted=st.integers(1, 9),
    )
    def fail_while_reserving(self, which: int, operation: str, wanted: int) -> None:
        self.disk.fail(operation)
        self.disk_failed = True
        sender = self.senders[which]
        try:
            self._start(sender, self._throttle(sender).reserve([Request(wanted)]))
        except HistoryError:
            assert operation not in self.disk._failures
        self.disk._failures.clear()

    @precondition(lambda self: hasattr(self, "disk"))
    @invariant()
    def nobody_holds_the_lock(self) -> None:
        assert not self.disk._locks

    def teardown(self) -> None:
        """Be neither stuck nor wasteful: when all is past, the whole limit is free again."""
        if not hasattr(self, "disk") or self.disk_failed:
            return
        self.clock.advance(2 * (LONGEST_NS + TRANSACTION_NS))
        # After clocks that went back over reboots, some of that may count as not passed yet.
        self.clock.advance(self.true_ns)
        limit = PerPeriod(5, LONGEST_NS)
        account = Throttle(PATH, [limit], 0, self.disk, self.clock, transaction_ns=TRANSACTION_NS)
        assert len([a for a in account.reserve([Request(1)] * 6) if isinstance(a, Reservation)]) == 5

    def _throttle(self, sender: Sender) -> Throttle:
        if sender.throttle is None:
            sender.throttle = Throttle(
                PATH, sender.limits, 0, self.disk, self.clock, transaction_ns=TRANSACTION_NS
            )
        return sender.throttle

    def _die(self, sender: Sender) -> None:
        """Leave its transactions in flight, for the upstream to count until their deadline."""
        sender.throttle = None
        sender.flying.clear()

    def _all_reopen(self) -> None:
        """Let every sender die in the same instant, since `bury` closes what they had open."""
        self.disk.bury()
        for sender in self.senders:
            self._die(sender)


@pytest.mark.parametrize("compacts_often", [False, True])
def test_never_over(compacts_often: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if compacts_often:
        # Small enough for the machine to reach what takes thousands of messages.
        monkeypatch.setattr(history, "COMPACT_ABOVE_BYTES", 0)
        monkeypatch.setattr(history, "LONGEST_RECORD_BYTES", 10)
        monkeypatch.setattr(slots, "EXACT_ENDS", 3)
    run_state_machine_as_test(
        NeverOver,
        settings=settings(
            max_examples=80,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
