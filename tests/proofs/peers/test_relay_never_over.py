"""The promise that gives the relay its name, judged by the upstream: never over, and nothing wasted."""

import heapq
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.proofs.peers import smtp_tools
from tests.proofs.peers.demand import demand
from tests.proofs.peers.practice import Practice, Seen
from tests.proofs.peers.relay import RelayProcess
from tests.proofs.peers.smtp_tools import smtp_source
from tests.proofs.peers.waiting import free_port

COUNT, PERIOD_NS = 20, 5_000_000_000
GUARD_NS = PERIOD_NS // 100
"""What a policy adds without a `guard` key."""
LIMIT = {"messages": COUNT, "per": "5s"}
LATEST_REPLY_S = 2.0
SMALLEST_SHARE = 0.95


@pytest.mark.parametrize(
    "messages", [pytest.param(60, marks=pytest.mark.slow), pytest.param(300, marks=pytest.mark.crash)]
)
def test_no_window_holds_one_too_many_and_little_is_wasted(tmp_path: Path, messages: int) -> None:
    """60 messages, or 300, through 20 per 5 s, by an upstream that replies late and counts when it likes.

    It counts each transaction at an instant of its own choosing between MAIL and reply, and
    judges every window by brute force.  The share of the windows that was used is the last
    reply's instant with an ideal scheduler, divided by the real one: see `_ideal_span_ns`.
    """
    demand(smtp_tools.why_missing())
    with Practice(tmp_path, LIMIT, seed=20, latest_reply_s=LATEST_REPLY_S) as host:
        # The whole queue is there before the first slot is asked for, as the ideal has it.
        relay = RelayProcess(tmp_path, {"isp": {"host": "127.0.0.1", "port": free_port(), "tls": "none"}})
        with relay:
            smtp_source(relay.port, messages=messages, sessions=10)
        relay.policy["upstreams"] = {"isp": host.upstream(connections=COUNT, limits=[LIMIT])}
        relay.write_policy()
        with relay:
            host.wait_until(lambda ledger: ledger.relayed + ledger.refused >= messages, within_s=300)
            relay.wait_until_empty()

    ledger = host.ledger
    assert ledger.most_in_any_window() == COUNT, "20 were to be had in a window"
    assert (ledger.relayed, ledger.refused, ledger.abandoned) == (messages, 0, 0)
    seen = sorted(host.seen(), key=lambda each: each.mail_at_ns)
    took_ns = max(each.ended_at_ns for each in seen) - seen[0].mail_at_ns
    share = _ideal_span_ns(seen) / (took_ns - host.stalled_ns)
    assert share >= SMALLEST_SHARE, f"{share:.3f} of the windows used, {took_ns / 1e9:.1f} s"


def _ideal_span_ns(seen: Sequence[Seen]) -> int:
    """Return how long the same transactions take with a scheduler that loses no time at all.

    There are N slots.  A transaction that starts at s and lasts d, as the upstream timed it,
    occupies its slot until s + d + T + guard, which is the least that is safe with an upstream
    that does not say when it counts.  Transactions start in their real order, each at the
    very instant at which a slot is free: in this order no scheduler that is safe ends earlier.
    Taken off the real span is the time during which the machine did not run the upstream.
    """
    free_at_ns = [0] * COUNT
    last_end_ns = 0
    for each in seen:
        end_ns = heapq.heappop(free_at_ns) + each.ended_at_ns - each.mail_at_ns
        last_end_ns = max(last_end_ns, end_ns)
        heapq.heappush(free_at_ns, end_ns + PERIOD_NS + GUARD_NS)
    return last_end_ns
