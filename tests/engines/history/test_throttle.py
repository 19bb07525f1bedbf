"""What the door promises: exact counts, order, whole decisions, and no waste."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.clock import SECOND_NS
from relay.spool.disk.durable import Disk, RealDisk
from relay.throttle.admission import Wait
from relay.throttle.bounds import HistoryBounds
from relay.throttle.history_check import audit_file
from relay.throttle.throttle import Request, Reservation, Throttle
from tests.engines.history.limits import (
    TRANSACTION_NS,
    PerPeriod,
    ask,
    granted,
    messages,
    openings_ns,
    recipients,
    settle,
    throttle,
    waiting,
)
from tests.engines.history.memory_disk import MemoryDisk
from tests.engines.history.oracle import Seen, worst_window
from tests.fakes.clock import FakeClock

PATH = Path("/history/isp")


@pytest.mark.parametrize("count", [1, 3, 10])
@pytest.mark.parametrize("reopened", [False, True])
def test_instant_transactions_get_exactly_count_in_every_period(
    count: int, reopened: bool, path: Path, disk: Disk, clock: FakeClock
) -> None:
    account = throttle(path, disk, clock, [messages(count, seconds=60)])
    start_ns = clock.boottime_ns()
    started_at_ns: list[int] = []

    while len(started_at_ns) < 5 * count:
        for reservation in granted(account, *[1] * (count + 2)):
            started_at_ns.append(clock.boottime_ns() - start_ns)
            settle(account, clock, reservation)
        if reopened:
            account.flush()
            account.close()
            account = throttle(path, disk, clock, [messages(count, seconds=60)])
        wait = waiting(account)
        assert wait.until_ns > clock.boottime_ns()
        clock.advance(wait.until_ns - clock.boottime_ns())

    assert started_at_ns == [period * 60 * SECOND_NS for period in range(5) for _ in range(count)]


def test_a_slot_is_free_one_period_after_its_end(memory: MemoryDisk, clock: FakeClock) -> None:
    account = throttle(PATH, memory, clock, [messages(1, seconds=60)])
    (reservation,) = granted(account, 1)
    clock.advance(25 * SECOND_NS)
    settle(account, clock, reservation)

    clock.advance(60 * SECOND_NS - 1)
    assert waiting(account).until_ns == clock.boottime_ns() + 1
    clock.advance(1)
    assert len(granted(account, 1)) == 1


def test_an_end_never_known_occupies_until_deadline_and_period(memory: MemoryDisk, clock: FakeClock) -> None:
    account = throttle(PATH, memory, clock, [messages(1, seconds=60)])
    (reservation,) = granted(account, 1)
    assert reservation.deadline_ns == clock.boottime_ns() + TRANSACTION_NS

    clock.advance(TRANSACTION_NS + 60 * SECOND_NS - 1)
    assert waiting(account).until_ns == reservation.deadline_ns + 60 * SECOND_NS
    clock.advance(1)
    assert len(granted(account, 1)) == 1


def test_a_late_transaction_is_charged_again_from_its_end(memory: MemoryDisk, clock: FakeClock) -> None:
    account = throttle(PATH, memory, clock, [messages(1, seconds=60)])
    (reservation,) = granted(account, 1)
    clock.advance(TRANSACTION_NS + 70 * SECOND_NS)
    assert account.usage()[0].used == 0
    settle(account, clock, reservation)

    other = throttle(PATH, memory, clock, [messages(1, seconds=60)])
    account.flush()
    assert waiting(account).until_ns == clock.boottime_ns() + 60 * SECOND_NS
    assert waiting(other).until_ns == clock.boottime_ns() + 60 * SECOND_NS


def test_the_guard_widens_every_window(memory: MemoryDisk, clock: FakeClock) -> None:
    limits = [messages(1, seconds=60), recipients(1, seconds=3600)]
    account = throttle(PATH, memory, clock, limits, guard_ns=None)
    settle(account, clock, *granted(account, 1))

    by_messages, by_recipients = account.usage()
    now_ns = clock.boottime_ns()
    assert by_messages.opens_at_ns == now_ns + 60 * SECOND_NS + 600_000_000
    assert by_recipients.opens_at_ns == now_ns + 3600 * SECOND_NS + 1 * SECOND_NS


def test_all_limits_apply_and_the_wait_names_the_one_that_opens_last(
    memory: MemoryDisk, clock: FakeClock
) -> None:
    account = throttle(PATH, memory, clock, [messages(2, seconds=60), messages(3, seconds=3600)])
    settle(account, clock, *granted(account, 1, 1, 1))
    assert waiting(account).limit_label == "2 messages per 60s"

    clock.advance(60 * SECOND_NS)
    settle(account, clock, *granted(account, 1, 1, 1))
    assert waiting(account).limit_label == "3 messages per 3600s"
    assert [usage.used for usage in account.usage()] == [1, 3]


def test_a_message_is_split_to_the_recipients_there_is_room_for(memory: MemoryDisk, clock: FakeClock) -> None:
    account = throttle(PATH, memory, clock, [recipients(10, seconds=60)])

    answers = ask(account, 4, 9, 1)

    assert [a.recipients for a in answers if isinstance(a, Reservation)] == [4, 6]
    assert not isinstance(answers[2], Reservation)
    assert account.usage()[0].used == 10


def test_nothing_overtakes_what_has_to_wait(memory: MemoryDisk, clock: FakeClock) -> None:
    account = throttle(PATH, memory, clock, [messages(1, seconds=60), recipients(100, seconds=60)])

    first, *others = ask(account, 5, 1, 1)

    assert isinstance(first, Reservation)
    assert others == [others[0], others[0]]
    assert not isinstance(others[0], Reservation)
    assert [usage.used for usage in account.usage()] == [1, 5]


class Slowly(list[Request]):
    """Requests between which time passes, and somebody looks at the windows."""

    def __init__(self, account: Throttle, clock: FakeClock, *requests: Request) -> None:
        super().__init__(requests)
        self._account = account
        self._clock = clock

    def __iter__(self) -> Iterator[Request]:
        for request in super().__iter__():
            yield request
            self._clock.advance(SECOND_NS)
            self._account.room()


def test_nothing_overtakes_what_waits_though_room_opens_meanwhile(
    memory: MemoryDisk, clock: FakeClock
) -> None:
    account = throttle(PATH, memory, clock, [messages(1, seconds=1)])
    settle(account, clock, *granted(account, 1))

    first, second = account.reserve(Slowly(account, clock, Request(1), Request(1)))
    assert second == first
    assert not isinstance(first, Reservation)


def test_a_batch_is_one_group_and_one_sync(memory: MemoryDisk, clock: FakeClock) -> None:
    account = throttle(PATH, memory, clock, [messages(100, seconds=60)])
    reserved = granted(account, 1)
    memory.operations.clear()

    settle(account, clock, *reserved)
    assert memory.operations == []
    granted(account, *[1] * 20)
    assert memory.operations == ["write", "sync", "note"]


def test_without_limits_all_is_granted_and_recorded_durably(memory: MemoryDisk, clock: FakeClock) -> None:
    account = throttle(PATH, memory, clock, [])
    first = granted(account, 7, 1)
    memory.operations.clear()

    settle(account, clock, *first)
    reservations = granted(account, 7, 1)

    assert memory.operations == ["write", "sync", "note"]
    assert [(each.recipients, list(each.chosen)) for each in reservations] == [(7, [*range(7)]), (1, [0])]
    assert reservations[0].deadline_ns == clock.boottime_ns() + TRANSACTION_NS
    assert account.usage() == []
    assert account.opens_at_ns(5) == clock.boottime_ns()


def test_several_throttles_of_one_history_see_each_other(path: Path, disk: Disk, clock: FakeClock) -> None:
    limits = [messages(3, seconds=60)]
    first, second = throttle(path, disk, clock, limits), throttle(path, disk, clock, limits)

    mine = granted(first, 1, 1)
    theirs = granted(second, 1, 1)
    settle(first, clock, mine[0])
    settle(second, clock, *theirs)
    clock.advance(60 * SECOND_NS)
    first.flush()
    second.flush()

    assert (len(mine), len(theirs)) == (2, 1)
    assert len(granted(second, 1, 1, 1)) == 2
    waiting(first)
    assert first.usage()[0].used == 3


def test_an_id_that_ended_is_given_to_no_other_at_the_same_instant(
    memory: MemoryDisk, clock: FakeClock
) -> None:
    """Else its end, told once more, would end the other's reservation, whose upstream counts on."""
    limits, often = [messages(99, seconds=60)], HistoryBounds(compact_above_bytes=0)
    first, known = throttle(PATH, memory, clock, limits, often), set[int]()
    for _ in range(20):  # so that all is written anew, by then without its reservations
        (ended,) = granted(first, 1)
        known.add(ended.id)
        settle(first, clock, ended)
        first.flush()

        (given,) = granted(throttle(PATH, memory, clock, limits, often), 1)
        assert given.id not in known
        known.add(given.id)


def test_a_lower_count_waits_until_enough_has_left(memory: MemoryDisk, clock: FakeClock) -> None:
    account = throttle(PATH, memory, clock, [messages(4, seconds=60)])
    for _ in range(4):
        settle(account, clock, *granted(account, 1))
        clock.advance(1 * SECOND_NS)

    account.replan([messages(2, seconds=60)], 0)

    # Ends at 0, 1, 2 and 3 s; now is 4 s.  Room for one of two is there when three have left.
    assert account.usage()[0].used == 4
    assert waiting(account).until_ns == clock.boottime_ns() + 58 * SECOND_NS


class _Interrupting(MemoryDisk):
    """Lets something else happen in the middle of every sync."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def sync(self, fd: int) -> None:
        self.meanwhile()
        super().sync(fd)


def test_a_loop_settles_and_asks_while_the_disk_is_waited_for(clock: FakeClock) -> None:
    disk = _Interrupting()
    account = throttle(PATH, disk, clock, [messages(2, seconds=60)])
    (first,) = granted(account, 1)
    told: list[int] = []

    def meanwhile() -> None:
        settle(account, clock, first)
        told.append(account.opens_at_ns(1))
        told.append(account.usage()[0].used)

    disk.meanwhile = meanwhile
    granted(account, 1)
    disk.meanwhile = lambda: None

    assert told == [clock.boottime_ns() + 60 * SECOND_NS, 2]
    account.flush()
    other = throttle(PATH, disk, clock, [messages(2, seconds=60)])
    other.flush()
    assert len(openings_ns(other, clock)) == 1


def test_a_message_to_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Request(0)


@given(
    limit=st.builds(
        PerPeriod, st.integers(1, 6), st.integers(1, 60), st.sampled_from(["messages", "recipients"])
    ),
    steps=st.lists(st.tuples(st.integers(1, 8), st.integers(0, 40), st.integers(0, 25)), max_size=30),
)
def test_one_sender_never_exceeds_and_is_never_told_to_come_too_late(
    limit: PerPeriod, steps: list[tuple[int, int, int]]
) -> None:
    clock = FakeClock()
    account = throttle(PATH, MemoryDisk(), clock, [limit])
    seen: list[Seen] = []
    in_flight: list[tuple[Reservation, Seen]] = []
    until_ns = 0

    for wanted, flown_ns, passed_ns in steps:
        now_ns = clock.boottime_ns()
        for answer in ask(account, wanted, wanted):
            if isinstance(answer, Reservation):
                assert now_ns >= until_ns
                in_flight.append((answer, Seen(now_ns, None, 1, answer.recipients)))
                seen.append(in_flight[-1][1])
            else:
                assert isinstance(answer, Wait)
                assert answer.until_ns > now_ns
                until_ns = answer.until_ns
                assert account.opens_at_ns(1) == until_ns
        clock.advance(passed_ns)
        for reservation, each in [pair for pair in in_flight if pair[1].started_at_ns + flown_ns <= now_ns]:
            each.ended_at_ns = clock.boottime_ns()
            settle(account, clock, reservation)
            in_flight.remove((reservation, each))

    assert worst_window(seen, limit.unit, limit.per_ns) <= limit.count


def test_senders_in_threads_take_turns_by_the_lock_of_the_file(tmp_path: Path, clock: FakeClock) -> None:
    limits = [messages(40, seconds=60)]
    accounts = [throttle(tmp_path / "isp", RealDisk(), clock, limits) for _ in range(4)]

    def send(number: int) -> list[int]:
        account = accounts[number % 4]
        reservations = granted(account, 1, 1, 1)
        settle(account, clock, *reservations)
        return [each.id for each in reservations]

    with ThreadPoolExecutor(8) as pool:
        ids = [each for sent in pool.map(send, range(20)) for each in sent]

    assert len(ids) == len(set(ids)) == 40
    for account in accounts:
        account.flush()
        account.close()
    assert granted(throttle(tmp_path / "isp", RealDisk(), clock, limits), 1) == []


def test_no_slot_is_given_away_as_of_before_a_slow_disk(tmp_path: Path) -> None:
    """The event loop asks meanwhile, by a later clock than the decision's."""
    clock = FakeClock()

    class Slow(RealDisk):
        stall_ns = 0

        def inode(self, path: str) -> int | None:
            if self.stall_ns:
                clock.advance(self.stall_ns)
                self.stall_ns = 0
                account.opens_at_ns(1)
            return super().inode(path)

    disk, limits = Slow(), [messages(1, seconds=60)]
    account = throttle(tmp_path / "isp", disk, clock, limits)
    settle(account, clock, *granted(account, 1))
    clock.advance(56 * SECOND_NS)
    disk.stall_ns = 5 * SECOND_NS

    assert len(granted(account, 1)) == 1
    account.close()
    assert audit_file(tmp_path / "isp", limits, RealDisk()).findings[0].is_proven
