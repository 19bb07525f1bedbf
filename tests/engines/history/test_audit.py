"""The audit of the peak use of each limit, compared with an oracle that never reads the history file."""

from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from relay.clock import SECOND_NS
from relay.throttle.audit import audit
from relay.throttle.book import Bounds
from relay.throttle.limit import Limit
from relay.throttle.throttle import Throttle
from tests.engines.history.limits import TRANSACTION_NS, granted, messages, recipients, settle, throttle
from tests.fakes.clock import FakeClock
from tests.fakes.disk import ModelDisk

PATH = Path("/history/isp")
EARLIER = [messages(9, seconds=60), recipients(20, seconds=100)]


@dataclass
class Seen:
    """One transaction. The upstream counts it at an unknown instant between start and end."""

    started_at_ns: int
    ended_at_ns: int
    messages: int
    recipients: int


def worst_window(seen: list[Seen], unit: str, period_ns: int) -> int:
    """Return the most that any half-open window of this length can have held.

    The worst window for the transactions up to a given one ends just behind its start.
    """
    return max(
        sum(
            each.messages if unit == "messages" else each.recipients
            for each in seen
            if each.started_at_ns <= last.started_at_ns and each.ended_at_ns > last.started_at_ns - period_ns
        )
        for last in seen
    )


def _live(account: Throttle, clock: FakeClock, random: Random, longest_s: int = 3) -> list[Seen]:
    seen: list[Seen] = []
    for _ in range(60):
        for reservation in granted(account, *[random.randint(1, 4)] * random.randint(1, 3)):
            started_ns = reservation.reserved_at_ns
            clock.advance(random.randint(0, longest_s) * SECOND_NS)
            settle(account, clock, reservation)
            seen.append(Seen(started_ns, clock.boottime_ns(), 1, reservation.recipients))
        clock.advance(random.randint(0, 30) * SECOND_NS)
    return seen


@pytest.mark.parametrize("seed", range(8))
def test_the_audit_agrees_with_an_oracle_that_never_saw_the_file(seed: int, clock: FakeClock) -> None:
    random = Random(seed)
    account = throttle(PATH, ModelDisk(), clock, EARLIER)
    # Some transactions outlive their deadline.
    seen = _live(account, clock, random, longest_s=TRANSACTION_NS * 5 // 4 // SECOND_NS)
    account.flush()
    limits: list[Limit] = [*EARLIER, messages(3, seconds=50), recipients(9, seconds=70)]
    account.replan(limits)

    found = audit(account.book.slots(), limits)

    assert found.transactions == len(seen)
    assert (found.in_flight, found.merged, found.exact_since_ns) == (0, 0, None)
    for limit, peak in zip(limits, found.findings, strict=True):
        assert peak.most == worst_window(seen, limit.unit, limit.per_ns)
        assert peak.is_exceeded == (peak.most > limit.count)


def test_the_audit_leaves_out_merged_slots_and_says_since_when_it_is_exact(clock: FakeClock) -> None:
    bounds = Bounds(exact=10, parts=16)
    account = throttle(PATH, ModelDisk(), clock, EARLIER, replace_above_bytes=0, bounds=bounds)
    seen = _live(account, clock, Random(1))
    account.flush()

    found = audit(account.book.slots(), EARLIER)

    assert found.transactions + found.merged == len(seen)
    assert found.exact_since_ns is not None
    exact = [each for each in seen if each.ended_at_ns > found.exact_since_ns]
    assert found.transactions <= len(exact) + 1
    for limit, peak in zip(EARLIER, found.findings, strict=True):
        assert peak.most == worst_window(seen[-found.transactions :], limit.unit, limit.per_ns)


def test_the_audit_counts_each_key_alone_and_leaves_out_slots_without_a_key(clock: FakeClock) -> None:
    account = throttle(PATH, ModelDisk(), clock, [])
    granted(account, 1)
    each = messages(2, 60, "sender")
    account.replan([each])
    granted(account, 1, 1)

    (peak,) = audit(account.book.slots(), [each]).findings

    assert (peak.most, peak.key) == (1, "")
