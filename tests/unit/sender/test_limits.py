"""Limits of every kind, from the policy to the smarthost: what goes, what waits, and when it goes."""

from pathlib import Path

from relay.clock import SystemClock
from relay.spool.disk.durable import RealDisk
from relay.throttle.audit import audit
from relay.throttle.history_check import book_in_file
from tests.fakes.smarthost import Script, Smarthost
from tests.unit.sender.in_process_relay import Relay, policy_of, virtual_clock


async def test_no_window_sees_more_connections_than_its_limit(
    tmp_path: Path,
) -> None:
    upstream = ", limits: [{connections: 2, per: 500ms}], guard: 1ms, max_messages: 1"
    clock, seen_at_ns = virtual_clock(), list[int]()

    def greeting(_: str) -> str:
        seen_at_ns.append(clock.boottime_ns())
        return "220 host.example ESMTP"

    async with Smarthost(Script(connect=greeting)) as host:
        async with Relay(policy_of(tmp_path, host.port, upstream)) as relay:
            for number in range(5):
                relay.accept(f"r{number}@x.example")
            await relay.until_empty()
            assert relay.watch.snapshot().upstreams[0].limits[0].unit == "connections"

        assert len(host.relayed) == len(seen_at_ns) == 5
        assert all(
            later - earlier >= 500_000_000 for earlier, later in zip(seen_at_ns, seen_at_ns[2:], strict=False)
        )
        slots = book_in_file(relay.policy.history_path("isp"), (), None, RealDisk(), SystemClock()).slots()
        found = audit(slots, relay.policy.upstreams["isp"].limits)
        assert (found.findings[0].most, found.findings[0].is_exceeded) == (2, False)


async def test_an_edit_lets_the_parked_go_at_once_where_the_new_limit_has_room(tmp_path: Path) -> None:
    upstream = ", limits: [{messages: 1, per: 1h, for_each: sender}]"
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port, upstream)) as relay:
        for number in range(4):
            relay.accept(f"r{number}@x.example")
        await relay.until(lambda: len(host.relayed) == 1 and _reasons(relay) == {NO_ROOM})

        await relay.sender.apply(
            policy_of(tmp_path, host.port, ", limits: [{messages: 3, per: 1h, for_each: sender}]")
        )
        await relay.until(lambda: len(host.relayed) == 3)
        await relay.sender.apply(policy_of(tmp_path, host.port, ", limits: [{messages: 9, per: 1h}]"))
        await relay.until_empty()

        assert len(host.relayed) == 4


NO_ROOM = "limit 1 messages per 3600s for each sender"


def _reasons(relay: Relay) -> set[str]:
    return {message.reason for message in relay.watch.listing().messages()}
