"""Edits of the limits while it runs: the history is never reset, and the new rule holds at once."""

from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.policy.source import parse_policy
from relay.throttle.throttle import Request, Reservation
from tests.engines.history.limits import (
    PerPeriod,
    connections,
    granted,
    messages,
    recipients,
    settle,
    throttle,
)
from tests.engines.history.memory_disk import MemoryDisk
from tests.fakes.clock import FakeClock

PATH = Path("/history/isp")
BEFORES = [[messages(4, seconds=60)], []]
"""A limit, or none: what went before an edit counts either way."""
# Four messages to three recipients each went 10 s ago, and two connections were opened before them.


@pytest.mark.parametrize("before", BEFORES, ids=["a limit", "no limit"])
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
        ([messages(9, 60), connections(2, 60)], 5),
        ([], 9),  # all removed
    ],
)
def test_the_same_past_is_judged_by_the_new_numbers_at_once(
    after: list[PerPeriod], expected: int, before: list[PerPeriod], memory: MemoryDisk, clock: FakeClock
) -> None:
    account = throttle(PATH, memory, clock, before)
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


def test_a_limit_that_is_removed_and_comes_back_has_missed_nothing(
    memory: MemoryDisk, clock: FakeClock
) -> None:
    account = throttle(PATH, memory, clock, [messages(9, 60), recipients(8, 60)])
    assert len(granted(account, 3)) == 1
    account.replan([messages(9, 60)], 0)
    assert len(granted(account, 3)) == 1

    account.replan([messages(9, 60), recipients(8, 60)], 0)

    assert [reservation.recipients for reservation in granted(account, 3, 1)] == [2]


def test_mail_in_flight_counts_for_the_first_limit(memory: MemoryDisk, clock: FakeClock) -> None:
    account = throttle(PATH, memory, clock, [])
    flying = granted(account, 1, 1, 1)
    clock.advance(50 * SECOND_NS)

    account.replan([messages(4, 60)], 0)
    assert len(granted(account, 1, 1)) == 1

    settle(account, clock, *flying)
    clock.advance(59 * SECOND_NS)
    assert not granted(account, 1)
    clock.advance(SECOND_NS)
    assert len(granted(account, 1, 1, 1, 1)) == 3


def test_keys_are_known_from_the_first_limit_that_asks(memory: MemoryDisk, clock: FakeClock) -> None:
    def send(sender: str, domain: str) -> bool:
        request = Request(2, sender=sender, recipient_domains=(domain, domain))
        (answer,) = account.reserve([request])
        return isinstance(answer, Reservation)

    account = throttle(PATH, memory, clock, [messages(9, 60)])
    assert send("a", "x")
    account.replan([messages(9, 60), messages(2, 60, "sender")], 0)
    assert [send("a", "x"), send("a", "x"), send("b", "x")] == [True, False, True]

    # Of another kind of key, asked for later, all of that may have been of any domain.
    account.replan([recipients(8, 60, "recipient_domain")], 0)
    assert [send("c", "x"), send("c", "x"), send("c", "y"), send("c", "y")] == [True, False, True, False]


def test_a_new_longest_transaction_holds_from_the_edit_on(memory: MemoryDisk, clock: FakeClock) -> None:
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
