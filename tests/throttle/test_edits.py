"""Edits of the limits while it runs: the history is never reset, and the new rule holds at once."""

from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.policy.source import parse_policy
from relay.throttle.throttle import Request, Reservation
from tests.fakes.clock import FakeClock
from tests.throttle.limits import PerPeriod, connections, granted, messages, recipients, settle, throttle
from tests.throttle.memory_disk import MemoryDisk

PATH = Path("/history/isp")
BEFORE = [messages(4, seconds=60)]
# Four messages to three recipients each went 10 s ago, and two connections were opened before them.


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ([messages(4, 60)], 0),
        ([messages(5, 60)], 1),  # N up
        ([messages(9, 60)], 5),
        ([messages(3, 60)], 0),  # N down
        ([messages(4, 3600)], 0),  # T up
        ([messages(6, 3600)], 2),
        ([messages(4, 10)], 4),  # T down: what is 10 s old is free
        ([messages(4, 11)], 0),
        ([messages(9, 60), messages(5, 3600)], 1),  # one added
        ([messages(9, 60), recipients(14, 60)], 2),  # of another unit: split at the last
        ([messages(9, 60), recipients(12, 60)], 0),
        ([messages(9, 60, "sender")], 5),  # of each: what was before may be of anyone
        ([messages(4, 60, "sender")], 0),
        ([recipients(13, 60, "recipient_domain")], 1),
        ([messages(9, 60), connections(1, 60)], 5),  # messages are not connections
        ([], 9),  # all removed
    ],
)
def test_the_same_past_is_judged_by_the_new_numbers_at_once(
    after: list[PerPeriod], expected: int, memory: MemoryDisk, clock: FakeClock
) -> None:
    account = throttle(PATH, memory, clock, BEFORE)
    for _ in range(2):
        opened = account.reserve_connection(SECOND_NS)
        assert isinstance(opened, Reservation)
        settle(account, clock, opened)
    settle(account, clock, *granted(account, 3, 3, 3, 3))
    clock.advance(10 * SECOND_NS)

    account.replan(after, 0)

    # From then on, nobody ends: each that goes is one that there was room for.
    went = [answer for answer in account.reserve([Request(1)] * 9) if isinstance(answer, Reservation)]
    assert len(went) == expected


def test_connections_opened_before_there_was_a_limit_on_them_count(
    memory: MemoryDisk, clock: FakeClock
) -> None:
    account = throttle(PATH, memory, clock, BEFORE)
    for _ in range(2):
        opened = account.reserve_connection(SECOND_NS)
        assert isinstance(opened, Reservation)
        settle(account, clock, opened)

    account.replan([connections(3, 60)], 0)

    assert isinstance(account.reserve_connection(SECOND_NS), Reservation)
    assert not isinstance(account.reserve_connection(SECOND_NS), Reservation)


def test_a_limit_that_is_removed_and_comes_back_has_missed_nothing(
    memory: MemoryDisk, clock: FakeClock
) -> None:
    account = throttle(PATH, memory, clock, [messages(9, 60), recipients(8, 60)])
    assert len(granted(account, 3)) == 1
    account.replan([messages(9, 60)], 0)
    assert len(granted(account, 3)) == 1

    account.replan([messages(9, 60), recipients(8, 60)], 0)

    assert [reservation.recipients for reservation in granted(account, 3, 1)] == [2]


def test_another_longest_transaction_is_of_what_is_reserved_from_then_on(
    memory: MemoryDisk, clock: FakeClock
) -> None:
    account = throttle(PATH, memory, clock, [messages(2, 60)])
    (before,) = granted(account, 1)
    account.replan([messages(2, 60)], 0, transaction_ns=SECOND_NS)
    (after,) = granted(account, 1)

    assert after.deadline_ns == clock.boottime_ns() + SECOND_NS
    clock.advance(61 * SECOND_NS)
    assert len(granted(account, 1, 1)) == 1
    clock.advance(before.deadline_ns + 60 * SECOND_NS - clock.boottime_ns())
    assert len(granted(account, 1, 1)) == 2


def test_an_upstream_that_is_renamed_keeps_the_history_of_its_account() -> None:
    text = """
spool: ./spool
listen: [{address: "127.0.0.1:0"}]
upstreams:
  %s: {host: smtp.example.net, auth: {user: mjd, password_file: p}, limits: [{messages: 1, per: 1m}]}
"""
    paths = [
        parse_policy((text % name).encode(), Path("/etc/relay/policy.yaml")).history_path(name)
        for name in ("isp", "provider")
    ]

    assert paths[0] == paths[1] == Path("/etc/relay/history/mjd@smtp.example.net")
