"""A long queue spills as a short one: what would wait too long, and nothing in one long turn of the loop."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from relay.clock import SECOND_NS
from relay.daemon.spilling import Spilling
from relay.mail.envelope import QueueId
from relay.mail.header import NO_NAMES
from relay.policy.lane import routes_of
from relay.queue.queued import ListedWords, Queued, origin_of
from relay.queue.routes import Part
from relay.status.watch import FORETOLD
from relay.verdicts.operator_pause import PauseAsked
from tests.fakes.smarthost import Smarthost
from tests.unit.sender.in_process_relay import Relay
from tests.unit.sender.test_routes import policy_of, policy_with_limit

LONG = 3 * FORETOLD
IN_TIME = FORETOLD + FORETOLD // 2
"""Messages that an upstream relays, one a minute, before mail is to spill."""


@pytest_asyncio.fixture
async def relay(tmp_path: Path) -> AsyncIterator[Relay]:
    """Yield a relay whose two upstreams take one message a minute each, and just took one."""
    routes = (
        '  - {sender: "owner@here.example", upstreams: [two]}\n'
        f"  - {{upstreams: [one, two], spill_after: {IN_TIME}m}}"
    )
    async with Smarthost() as one, Smarthost() as two:
        policy = policy_of(tmp_path, {"one": one.port, "two": two.port}, routes, "retry: {lifetime: 30d}")
        for name in ("one", "two"):
            policy = policy_with_limit(policy, name, "{messages: 1, per: 1m}")
        async with Relay(policy) as relay:
            relay.accept("first@x.example")
            await relay.until(lambda: len(one.relayed) == 1)
            await relay.until_empty()
            # What the tests queue up has no files.
            relay.sender.upstreams.halt()
            yield relay


def queue_up(relay: Relay, numbers: range, route: int = 1) -> None:
    now_ns, wall_ns = relay.clock.boottime_ns(), relay.clock.wall_ns()
    part = Part(routes_of(relay.policy.routes)[route])
    for number in numbers:
        relay.sender.queue.add(
            Queued(
                QueueId(f"{number:016d}"),
                origin_of(f"{number % 7}@here.example", "unknown[127.0.0.1]"),
                4096,
                now_ns,
                1,
                listed=ListedWords(NO_NAMES, wall_ns, ("b@x.example",)),
                domains=(("x.example", 1),),
                part=part,
            ),
            now_ns=now_ns,
        )


def numbers_at(relay: Relay, name: str) -> list[int]:
    return [int(part.queue_id) for part in relay.sender.queue.line(name)]


async def test_of_a_long_line_what_goes_in_time_stays(relay: Relay) -> None:
    queue_up(relay, range(LONG))
    looking = Spilling(relay.sender, relay.watch, relay.clock)
    moved = await looking.look()

    assert moved == len(numbers_at(relay, "two")) == pytest.approx(LONG - IN_TIME, rel=0.02)
    assert sorted(numbers_at(relay, "one")) == list(range(LONG - moved)), "who came first goes first"
    assert await looking.look() <= 1, "nothing goes to and fro"


@pytest.mark.parametrize(("failover", "moved"), [("15m", 0), ("null", LONG)])
async def test_mail_that_fails_over_does_not_spill_as_well(tmp_path: Path, failover: str, moved: int) -> None:
    routes = f"  - {{upstreams: [one, two], spill_after: {IN_TIME}m, failover_after: {failover}}}"
    policy = policy_of(tmp_path, {"one": 9, "two": 9}, routes, "retry: {lifetime: 30d}")
    async with Relay(policy_with_limit(policy, "one", "{messages: 1, per: 1m}")) as relay:
        relay.sender.upstreams.halt()
        queue_up(relay, range(LONG), route=0)
        await relay.operator.pause("one", PauseAsked("anna", length_ns=10 * IN_TIME * 60 * SECOND_NS))

        assert await Spilling(relay.sender, relay.watch, relay.clock).look() == moved
