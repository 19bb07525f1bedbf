"""A transaction whose end nobody saw: the upstream may count it yet, so its slot stays until the deadline."""

from pathlib import Path

from relay.clock import SECOND_NS
from tests.fakes.smarthost import SILENCE, Script, Smarthost, turns
from tests.unit.sender.in_process_relay import Relay, policy_of, virtual_clock

LIMIT = ", limits: [{messages: 1, per: 1m}], guard: 1ms, max_transaction: 10m"
MINUTE_NS = 60 * SECOND_NS


async def _settled(relay: Relay) -> None:
    """Wait until the first transaction is at its end, as far as anybody will know."""
    await relay.until(lambda: (found := next(iter(relay.sender.queue), None)) and found.reason)
    await relay.until(lambda: relay.account.in_flight == 0)


async def test_a_lost_reply_of_which_a_busy_host_hears_late_costs_one_slot(tmp_path: Path) -> None:
    clock = virtual_clock()
    limit = LIMIT.replace("messages: 1", "messages: 2").replace("10m", "5s")
    script = Script(eod=turns(SILENCE))
    async with Smarthost(script) as host, Relay(policy_of(tmp_path, host.port, limit)) as relay:
        relay.accept()
        await host.until(lambda: host.transactions)
        clock.advance(5 * SECOND_NS + SECOND_NS // 10)
        await _settled(relay)
        assert relay.free_slots == 1


async def test_what_a_suspended_host_sent_when_it_woke_counts_from_then(tmp_path: Path) -> None:
    clock, limit = virtual_clock(), LIMIT.replace("10m", "5s")
    script = Script(eod=turns(SILENCE))
    async with Smarthost(script) as host, Relay(policy_of(tmp_path, host.port, limit)) as relay:
        relay.accept()
        await host.until(lambda: host.transactions)
        # Long after deadline and T: only now the dot may reach the upstream.
        clock.advance(10 * MINUTE_NS)
        woke_ns = clock.boottime_ns()
        await _settled(relay)
        assert relay.free_slots == 0
        await relay.until(lambda: host.relayed)
        assert clock.boottime_ns() >= woke_ns + MINUTE_NS
