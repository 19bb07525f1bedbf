"""Mail goes by its routes: to several upstreams at once, and elsewhere while one is down."""

import errno
import threading
from pathlib import Path

from relay.clock import SECOND_NS
from relay.control.operations import OK
from relay.mail.envelope import QueueId
from relay.policy.model import Policy
from relay.policy.source import parse_policy
from relay.sender.pausing import Pausing
from relay.verdicts.operator_pause import PauseAsked
from tests.fakes.clock import FakeClock
from tests.fakes.smarthost import CLOSE, Script, Smarthost, turns
from tests.fakes.unsynced import Unsynced
from tests.unit.sender.in_process_relay import Relay, virtual_clock
from tests.unit.sender.test_races import turns_of_the_loop

LASTING = PauseAsked("anna")
MINUTE_NS = 60 * SECOND_NS


def policy_of(folder: Path, ports: dict[str, int], routes: str, rest: str = "") -> Policy:
    upstreams = "".join(
        f"  {name}: {{host: 127.0.0.1, port: {port}, tls: none, connections: 2, history: {name}, "
        "shield: null, limits: []}\n"
        for name, port in ports.items()
    )
    text = f"""
spool: ./spool
hostname: relay.test
listen: [{{address: "127.0.0.1:0", clients: [127.0.0.0/8]}}]
upstreams:
{upstreams}
routes:
{routes}
{rest or "retry: {min: 50ms, max: 100ms, lifetime: 1d}"}
"""
    return parse_policy(text.encode(), folder / "policy.yaml")


def pausing(relay: Relay, name: str) -> Pausing:
    return relay.sender.upstreams.in_use[name].pausing


def recipients(host: Smarthost) -> list[str]:
    return sorted(each for mail in host.relayed for each in mail.recipients)


async def leap(relay: Relay, clock: FakeClock, span_ns: int) -> None:
    """Let time pass, as after a suspend: every account looks again."""
    clock.advance(span_ns)
    relay.sender.upstreams.wake()
    relay.sender.reroute()
    await turns_of_the_loop()


BOTH = "  - {upstreams: [one, two]}"


async def test_an_unknown_outcome_stays_with_its_upstream_to_the_deadline(tmp_path: Path) -> None:
    clock = virtual_clock()
    async with Smarthost(Script(eod=turns(CLOSE))) as one, Smarthost() as two:
        routes = "  - {upstreams: [one, two], failover_after: 1m}"
        policy = policy_of(tmp_path, {"one": one.port, "two": two.port}, routes)
        async with Relay(policy) as relay:
            queue_id = relay.accept("a@x.example")
            await relay.until(lambda: (part := relay.queued(queue_id)) and part.past.unknown_until_ns)
            await relay.operator.pause("one", LASTING)
            other = relay.accept("b@x.example")
            await relay.until(lambda: relay.queued(other))
            await leap(relay, clock, 20 * MINUTE_NS)
            await relay.until(lambda: len(relay.sender.queue) == 1)
            assert recipients(two) == ["b@x.example"]
            (shown,) = await relay.operator.queue()
            assert (shown.upstream, shown.upstream_because) == ("one", "unknown: one may have relayed it")
            await leap(relay, clock, 11 * MINUTE_NS)
            await relay.until_empty()

    # Perhaps twice: that is the window between the final dot and its reply.
    assert recipients(two) == ["a@x.example", "b@x.example"]
    assert len(one.transactions) == 1


TO_ONE, TO_TWO = "  - {upstreams: [one]}", "  - {upstreams: [two]}"


class GivesNothing(Unsynced):
    """A disk that for a while gives no message, or keeps who asks for one waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.fails, self.gives, self.asked = False, threading.Event(), 0
        self.gives.set()

    def open_read(self, path: str) -> int:
        if "/cur/" in path:
            self.asked += 1
            if self.fails:
                raise OSError(errno.EIO, "Input/output error")
            self.gives.wait()
        return super().open_read(path)


async def wait_unread(relay: Relay, count: int) -> list[QueueId]:
    """Queue messages of which nothing is in memory, behind upstreams that are paused."""
    for name in relay.sender.upstreams.in_use:
        await relay.operator.pause(name, LASTING)
    ids = [relay.accept(f"r{number}@x.example") for number in range(count)]
    await relay.until(lambda: len(relay.sender.queue) == count)
    for queue_id in ids:
        relay.sender.spool_thread.forget(queue_id)
    return ids


async def test_what_cannot_be_read_as_an_edit_sorts_it_is_sorted_once_it_can(tmp_path: Path) -> None:
    disk = GivesNothing()
    async with (
        Smarthost() as one,
        Relay(policy_of(tmp_path, {"one": one.port, "two": 9}, TO_TWO), disk) as relay,
    ):
        damaged, _ = await wait_unread(relay, 2)
        disk.fails = True
        await relay.sender.apply(policy_of(tmp_path, {"one": one.port}, TO_ONE))
        await relay.until(lambda: disk.asked)
        (path,) = relay.policy.spool.glob(f"cur/*/{damaged}")
        path.write_bytes(b"?")
        disk.fails = False
        await relay.operator.resume("one")
        await relay.until_empty()
    assert recipients(one) == ["r1@x.example"]


async def test_what_is_sorted_late_goes_by_an_edit_that_came_meanwhile(tmp_path: Path) -> None:
    disk, count, ports = GivesNothing(), 250, {"one": 9, "two": 9}
    policy = policy_of(tmp_path, ports, TO_TWO)
    async with Relay(policy, disk, is_threaded=True) as relay:
        await wait_unread(relay, count)
        disk.fails = True
        await relay.sender.apply(policy_of(tmp_path, ports, TO_ONE))
        await relay.until(lambda: disk.asked == count)
        disk.fails, disk.asked = False, 0
        disk.gives.clear()
        await relay.until(lambda: disk.asked)
        await relay.sender.apply(policy)
        disk.gives.set()
        await relay.until(lambda: disk.asked > count)
        await turns_of_the_loop()
        assert {part.upstream for part in relay.sender.queue} == {"two"}


async def test_mail_that_has_waited_too_long_goes_to_the_next_upstream_that_is_usable(tmp_path: Path) -> None:
    clock = virtual_clock()
    async with Smarthost() as one, Smarthost() as two:
        routes = "  - {upstreams: [one, two], spill_after: 30m}"
        policy = policy_of(tmp_path, {"one": one.port, "two": two.port}, routes)
        async with Relay(policy_with_limit(policy, "one", "{messages: 2, per: 1h}")) as relay:
            await relay.operator.pause("two", LASTING)
            for number in range(4):
                relay.accept(f"r{number}@x.example")
            await relay.until(lambda: len(one.relayed) == 2 and len(relay.sender.queue) == 2)
            await leap(relay, clock, 32 * MINUTE_NS)
            late = relay.accept("late@x.example")
            await relay.until(lambda: relay.queued(late))
            assert not two.relayed, "there is nowhere to go"
            assert await relay.operator.resume("two") == OK
            await relay.until(lambda: len(two.relayed) == 2)
            relay.events.flush()
            assert "instead of one: spill" in relay.log.getvalue()

            await leap(relay, clock, 29 * MINUTE_NS)
            await relay.until_empty()
        # It was for less than half an hour in line when the first one had room again.
        assert "late@x.example" in recipients(one)


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


def policy_with_limit(policy: Policy, name: str, limit: str, **others: int) -> Policy:
    text = f"""
spool: /s
listen: [{{address: '127.0.0.1:0', clients: [127.0.0.0/8]}}]
upstreams: {{x: {{host: h, limits: [{limit}]}}}}
"""
    limits = parse_policy(text.encode(), policy.spool / "x.yaml").upstreams["x"].limits
    changed = policy.upstreams[name].model_copy(update={"limits": limits, **others})
    return policy.model_copy(update={"upstreams": {**policy.upstreams, name: changed}})
