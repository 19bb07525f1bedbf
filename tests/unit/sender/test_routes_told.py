"""Of a failover or spill-over an operator hears once, not once a message; figures say how much went by it."""

from pathlib import Path
from typing import Any

from relay.control.operations import OK
from relay.status.collector import SnapshotCollector
from relay.status.snapshot import to_json
from tests.fakes.smarthost import Smarthost
from tests.unit.sender.in_process_relay import Relay, virtual_clock
from tests.unit.sender.test_routes import (
    BOTH,
    LASTING,
    MINUTE_NS,
    leap,
    pausing,
    policy_of,
)

COUNTED = "relay_route_diverted_messages_total"


def told(relay: Relay) -> list[str]:
    relay.events.flush()
    return [
        line.split("]: ", 1)[1].rpartition(" event=")[0]
        for line in relay.log.getvalue().splitlines()
        if " route" in line
    ]


def counted(relay: Relay, *labels: str) -> float | None:
    names = ("upstream", "instead_of", "because")
    return relay.metrics.registry.get_sample_value(COUNTED, dict(zip(names, labels, strict=True)))


def gauges(relay: Relay) -> dict[tuple[str, ...], float]:
    collector = SnapshotCollector(relay.metrics, relay.watch.snapshot, relay.events, relay.clock)
    return {
        tuple(sample.labels.values()): sample.value
        for family in collector.collect()
        for sample in family.samples
        if sample.name in ("relay_route_diverted", "relay_routes_down")
    }


def shown_routes(relay: Relay) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = to_json(relay.watch.snapshot())["routes"]
    return shown


async def test_a_failover_is_told_once_and_counted_by_message(tmp_path: Path) -> None:
    clock = virtual_clock()
    async with Smarthost() as one, Smarthost() as two:
        policy = policy_of(tmp_path, {"one": one.port, "two": two.port}, BOTH)
        async with Relay(policy) as relay:
            failover, spill, all_down = ("two", "one", "failover"), ("two", "one", "spill"), ()
            await relay.operator.pause("one", LASTING)
            for number in range(10):
                relay.accept(f"r{number}@x.example")
            await relay.until(lambda: len(relay.sender.queue) == 10)
            assert told(relay) == []
            await leap(relay, clock, 16 * MINUTE_NS)
            await relay.until_empty()

            assert told(relay) == ["warning: route 1: mail goes through two instead of one: failover"]
            assert counted(relay, *failover) == 10
            assert gauges(relay) == {failover: 1, spill: 0, all_down: 0}
            shown = shown_routes(relay)[0]
            assert (shown["because"], shown["upstream"], shown["numbers"]) == ("failover", "two", [1])

            assert await relay.operator.resume("one") == OK
            relay.accept("last@x.example")
            await relay.until_empty()
            await relay.until(lambda: pausing(relay, "one").state.is_used and len(told(relay)) == 2)
            assert told(relay)[1] == "route 1: mail goes through one again; what is over: failover"
            assert gauges(relay) == {failover: 0, spill: 0, all_down: 0}
            assert counted(relay, *failover) == 10


async def test_a_route_of_which_every_upstream_is_down_is_told(tmp_path: Path) -> None:
    clock = virtual_clock()
    async with Smarthost() as one, Smarthost() as two:
        routes = "  - {sender: '@a.example', upstreams: [one, two]}\n" + BOTH
        policy = policy_of(tmp_path, {"one": one.port, "two": two.port}, routes)
        async with Relay(policy) as relay:
            await relay.operator.pause("one", LASTING)
            await relay.operator.pause("two", LASTING)
            await leap(relay, clock, 16 * MINUTE_NS)
            await relay.until(lambda: told(relay))

            # Two routes that differ in what they take alone are told of together.
            assert told(relay) == ["error: route 1, 2: every upstream is down, and mail waits for one"]
            assert gauges(relay)[()] == 2
            assert shown_routes(relay)[0]["takes"] == ["sender", "all other mail"]
