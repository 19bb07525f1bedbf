"""Mail that could go by now is not slept through, whatever an upstream's line waited for before."""

from pathlib import Path

from relay.clock import SECOND_NS
from relay.queue.queued import Queued, State
from tests.fakes.smarthost import Script, Smarthost, turns
from tests.unit.sender.in_process_relay import CONTENT, Relay
from tests.unit.sender.test_routes import policy_of, policy_with_limit, recipients

LARGE = CONTENT + b"x" * 5000 + b"\r\n"
NO_ROOM_FOR_LARGE = "{bytes: 6000, per: 1h}"
ONE_CONNECTION = {"connections": 1}


def _has_no_room(queued: Queued | None) -> bool:
    return queued is not None and queued.state is State.WAITING and "limit" in queued.reason


async def test_what_stands_behind_mail_that_spilled_goes_at_once(tmp_path: Path) -> None:
    routes = (
        '  - {sender: "owner@here.example", upstreams: [one]}\n  - {upstreams: [one, two], spill_after: 1m}'
    )
    async with Smarthost() as one, Smarthost() as two:
        policy = policy_of(tmp_path, {"one": one.port, "two": two.port}, routes)
        policy = policy_with_limit(policy, "one", NO_ROOM_FOR_LARGE, **ONE_CONNECTION)
        async with Relay(policy) as relay:
            relay.accept("first@x.example", content=LARGE)
            await relay.until_empty()
            large = relay.accept("large@x.example", content=LARGE)
            await relay.until(lambda: _has_no_room(relay.queued(large)))
            small = relay.accept("small@x.example", sender="owner@here.example")
            await relay.until(lambda: relay.queued(small))

            began_ns = relay.clock.boottime_ns()
            await relay.until_empty()
            assert relay.clock.boottime_ns() - began_ns < 70 * SECOND_NS
        assert recipients(two) == ["large@x.example"]
        assert recipients(one) == ["first@x.example", "small@x.example"]


async def test_the_end_of_a_back_off_is_not_slept_through_while_other_mail_waits_for_room(
    tmp_path: Path,
) -> None:
    rest = """
retry: {min: 500ms, max: 1s, lifetime: 1d}
lanes: {fast: {share: 50, sender: owner@here.example}}
"""
    async with Smarthost(Script(rcpt=turns("250 ok", "451 4.2.0 greylisted"))) as one:
        policy = policy_of(tmp_path, {"one": one.port}, "  - {upstreams: [one]}", rest)
        async with Relay(policy_with_limit(policy, "one", NO_ROOM_FOR_LARGE)) as relay:
            relay.accept("first@x.example", content=LARGE)
            await relay.until_empty()
            small = relay.accept("small@x.example", sender="owner@here.example")
            await relay.until(lambda: (queued := relay.queued(small)) and queued.state is State.DEFERRED)
            # So the other lane goes next, once it has mail.
            relay.accept("second@x.example")
            relay.accept("third@x.example")
            await relay.until(lambda: len(one.relayed) == 3)
            large = relay.accept("large@x.example", content=LARGE)
            await relay.until(lambda: _has_no_room(relay.queued(large)))
            await relay.until(lambda: len(one.relayed) == 4)
        assert one.relayed[-1].recipients == ["small@x.example"]


async def test_a_message_that_spills_wakes_the_line_that_it_goes_to_and_the_one_that_it_left(
    tmp_path: Path,
) -> None:
    """Both were asleep for an hour: one at its limit, the other without mail."""
    routes = (
        "  - {sender: 'owner@here.example', upstreams: [one]}\n  - {upstreams: [one, two], spill_after: 1m}"
    )
    async with Smarthost() as one, Smarthost() as two:
        policy = policy_of(tmp_path, {"one": one.port, "two": two.port}, routes)
        async with Relay(
            policy_with_limit(policy, "one", "{messages: 1, per: 1h, for_each: sender}")
        ) as relay:
            relay.accept("first@x.example")
            await relay.until(lambda: one.relayed)
            began_ns = relay.clock.boottime_ns()
            relay.accept("second@x.example")
            await relay.until(lambda: two.relayed)
            assert relay.clock.boottime_ns() - began_ns <= 61 * SECOND_NS
            relay.accept("third@x.example", sender="owner@here.example")
            await relay.until(lambda: len(one.relayed) == 2)
            assert relay.clock.boottime_ns() - began_ns <= 62 * SECOND_NS
