"""Ages over restarts, against an oracle that knows the true time."""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from relay.mail.age import Boots, BootsRecord, Stretch
from relay.spool.root.foreign import BOOTS_FORMAT

DAY_NS = 86400 * 10**9
spans_ns = st.integers(0, 3 * DAY_NS)
steps_ns = st.one_of(st.integers(-(40 * DAY_NS), 40 * DAY_NS), st.sampled_from([-30 * DAY_NS, 30 * DAY_NS]))


@dataclass
class Accepted:
    """A message, by the clocks of its acceptance and by the true one."""

    boot_id: str
    boottime_ns: int
    wall_ns: int
    true_ns: int
    unwitnessed_ns: int = 0
    """How much of its life no record knows: the host was off, or went down behind the last record."""


class Hosts(RuleBasedStateMachine):
    """One spool on hosts that boot, crash and set their clocks as they like."""

    def __init__(self) -> None:
        super().__init__()
        self.true_ns = self.wall_ns = 10**18
        self.boot, self.boottime_ns = 1, 5 * 10**9
        self.kept: BootsRecord | None = None
        self.kept_at_ns = self.boottime_ns
        self.boots: Boots | None = None
        self.messages: list[Accepted] = []

    @initialize()
    def begin(self) -> None:
        self.start()

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boot}"

    def pass_time(self, span_ns: int) -> None:
        self.true_ns += span_ns
        self.wall_ns += span_ns
        self.boottime_ns += span_ns

    @rule(span_ns=spans_ns)
    def time_passes(self, span_ns: int) -> None:
        self.pass_time(span_ns)

    @rule(by_ns=steps_ns)
    def the_clock_is_set(self, by_ns: int) -> None:
        self.wall_ns += by_ns

    @rule(has_stamp=st.sampled_from([True, True, True, False]))
    def a_message_comes_in(self, *, has_stamp: bool) -> None:
        stamp = (self.boot_id, self.boottime_ns) if has_stamp else ("", 0)
        self.messages.append(Accepted(*stamp, self.wall_ns, self.true_ns))
        if self.boots is not None:
            self.age_ns(self.messages[-1])  # the sender takes it

    @precondition(lambda self: self.boots is not None)
    @rule()
    def the_record_is_kept(self) -> None:
        assert self.boots is not None
        self.kept = BOOTS_FORMAT.parse(BOOTS_FORMAT.render(self.boots.record(self.boottime_ns)))
        self.kept_at_ns = self.boottime_ns

    @rule()
    def the_relay_is_killed(self) -> None:
        self.boots = None

    @precondition(lambda self: self.boots is None)
    @rule()
    def start(self) -> None:
        self.boots = Boots(self.boot_id, self.boottime_ns, self.kept)
        for message in self.messages:
            if self.kept is None:
                message.unwitnessed_ns = self.true_ns - message.true_ns
            self.age_ns(message)
        self.the_record_is_kept()

    @rule(off_ns=spans_ns, boottime_ns=st.integers(0, 10**10), by_ns=st.one_of(st.just(0), steps_ns))
    def the_host_reboots(self, off_ns: int, boottime_ns: int, by_ns: int) -> None:
        lost_ns = max(0, self.boottime_ns - self.kept_at_ns)
        self.pass_time(off_ns + boottime_ns)
        self.wall_ns += by_ns
        for message in self.messages:
            message.unwitnessed_ns += lost_ns + off_ns + boottime_ns
        self.boot += 1
        self.boottime_ns = boottime_ns
        self.boots = None
        self.start()

    @rule()
    def the_record_is_lost(self) -> None:
        self.kept = None

    def age_ns(self, message: Accepted) -> int:
        assert self.boots is not None
        arrived_at_ns = self.boots.arrived_at_ns(
            message.boot_id, message.boottime_ns, self.boottime_ns, self.wall_ns - message.wall_ns
        )
        return self.boottime_ns - arrived_at_ns

    @invariant()
    def no_message_is_taken_to_be_older_than_it_is(self) -> None:
        for message in self.messages if self.boots is not None else ():
            # Without a stamp only the first sight of its kind and the wall clock tell.
            if message.boot_id:
                assert 0 <= self.age_ns(message) <= self.true_ns - message.true_ns

    @invariant()
    def a_message_is_younger_by_no_more_than_nobody_witnessed(self) -> None:
        for message in self.messages if self.boots is not None else ():
            if message.boot_id:
                true_ns = self.true_ns - message.true_ns
                assert self.age_ns(message) >= true_ns - message.unwitnessed_ns

    @invariant()
    def within_its_boot_its_age_is_exact(self) -> None:
        for message in self.messages if self.boots is not None else ():
            if message.boot_id == self.boot_id:
                assert self.age_ns(message) == self.true_ns - message.true_ns


TestHosts = Hosts.TestCase
TestHosts.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)


def test_an_older_relays_message_is_no_older_than_is_known() -> None:
    boots = Boots("here", 1000)
    assert boots.arrived_at_ns("", 0, 1000, 5 * DAY_NS) == 1000
    # Met 3,000 ns ago; by the wall clock it came in 2,000 ns ago, or 5 days, or is yet to come.
    assert boots.arrived_at_ns("", 0, 4000, 2000) == 2000
    assert boots.arrived_at_ns("", 0, 4000, 5 * DAY_NS) == 1000
    assert boots.arrived_at_ns("", 0, 4000, -5) == 4000


def test_a_message_of_an_older_relay_goes_on_ageing_over_reboots() -> None:
    boots = Boots("one", 1000)
    boots.arrived_at_ns("", 0, 1000, DAY_NS)
    record = boots.record(9000)
    assert Boots("two", 10, record).arrived_at_ns("", 0, 510, DAY_NS) == 510 - 8500


def test_a_spool_that_was_elsewhere_meanwhile_counts_no_time_twice() -> None:
    there = Boots("there", 50, Boots("here", 100).record(1000))
    back = Boots("here", 5000, there.record(150))
    # Accepted there at 90: 60 were witnessed there, and 10 since it is back.
    assert back.arrived_at_ns("there", 90, 5010, 0) == 5010 - 70
    assert back.arrived_at_ns("here", 900, 5010, 0) == 900


def test_a_boot_that_came_back_counts_from_its_own_stretch() -> None:
    record = Boots("here", 100).record(1000)
    record = Boots("there", 50, record).record(150)
    record = Boots("here", 5000, record).record(6000)
    # 500 were witnessed in the second stretch of that boot, and 10 in this one.
    assert Boots("next", 10, record).arrived_at_ns("here", 5500, 20, 0) == 20 - 510


def test_mail_behind_the_last_record_ages_from_the_next_start() -> None:
    record = Boots("one", 0).record(1000)
    assert Boots("two", 10, record).arrived_at_ns("one", 5000, 510, 0) == 10


def test_unknown_boots_are_forgotten_with_their_last_message() -> None:
    boots = Boots("here", 0)
    for boot_id in ("gone", "queued"):
        boots.arrived_at_ns(boot_id, 7, 10, 0)
    boots.forget_but({"queued", "here"})
    assert boots.record(10).met_at_ns == {"queued": 10}


def test_the_record_of_many_boots_stays_small() -> None:
    record = BootsRecord()
    for number in range(1000):
        record = Boots(f"{number:036}", 0, record).record(10)
    assert len(BOOTS_FORMAT.render(record)) < 64 * 1024
    assert record.stretches[-1].ends_at_ns == 10_000
    assert BOOTS_FORMAT.parse(BOOTS_FORMAT.render(record)) == record


@pytest.mark.parametrize(
    "record",
    [
        BootsRecord((Stretch("a", 5, 4, 0),)),
        BootsRecord((Stretch("a", 0, 4, 0), Stretch("b", 0, 4, 3))),
        BootsRecord((Stretch("a", 0, 4, 0),), {"b": 5}),
    ],
)
def test_instants_out_of_order_are_no_record_of_boots(record: BootsRecord) -> None:
    with pytest.raises(ValueError, match="not a record of boots"):
        BOOTS_FORMAT.parse(BOOTS_FORMAT.render(record))
