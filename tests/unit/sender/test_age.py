"""What makes a message older and what does not: it is returned for its own sake or not at all."""

from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.queue.scheduler import State
from tests.fakes.smarthost import Script, Smarthost, turns
from tests.unit.sender.in_process_relay import Relay, policy_of, virtual_clock

DAY_NS = 86400 * SECOND_NS


GREYLISTED = "451 4.7.1 Greylisted, try later"
SHORT = "retry: {min: 10s, max: 20s, lifetime: 1d, warn_after: 4h}"


@pytest.mark.parametrize("restart", ["of the relay", "of the host"])
@pytest.mark.parametrize("step_days", [30, -30])
async def test_a_step_of_the_clock_expires_nothing_over_a_restart(
    tmp_path: Path, restart: str, step_days: int
) -> None:
    clock = virtual_clock()
    async with Smarthost(Script(rcpt=turns(*[GREYLISTED] * 3))) as host:
        policy = policy_of(tmp_path, host.port, ", pipelining: false", SHORT)
        async with Relay(policy) as relay:
            queue_id = relay.accept()
            await relay.until(lambda: (q := relay.queued(queue_id)) and q.state is State.DEFERRED)
            clock.advance(15 * SECOND_NS)
            clock.step_wall(step_days * DAY_NS)
        if restart == "of the host":
            clock.reboot()
        before = len(host.sessions)
        async with Relay(policy) as relay:
            await relay.until(lambda: len(host.sessions) > before)
            await relay.until(lambda: (q := relay.queued(queue_id)) and q.state is State.DEFERRED)

            queued = relay.queued(queue_id)
            assert queued is not None
            assert clock.boottime_ns() - queued.arrived_at_ns <= 30 * SECOND_NS
            assert await relay.late.look() == 0
            relay.events.flush()
            assert "status=expired" not in relay.log.getvalue()
        assert [message for message in host.relayed if message.reverse_path == ""] == []


async def test_a_next_attempt_waits_no_longer_than_a_back_off_after_a_step(tmp_path: Path) -> None:
    clock = virtual_clock()
    async with Smarthost(Script(rcpt=turns(GREYLISTED))) as host:
        policy = policy_of(tmp_path, host.port, ", pipelining: false", SHORT)
        async with Relay(policy) as relay:
            queue_id = relay.accept()
            await relay.until(lambda: (q := relay.queued(queue_id)) and q.state is State.DEFERRED)
        clock.step_wall(-30 * DAY_NS)
        async with Relay(policy) as relay:
            await relay.until_empty()
        assert len(host.relayed) == 1


async def test_a_restart_neither_hastens_nor_delays_the_next_attempt(tmp_path: Path) -> None:
    clock = virtual_clock()
    async with Smarthost(Script(rcpt=turns(GREYLISTED))) as host:
        policy = policy_of(tmp_path, host.port, rest="retry: {min: 1h, max: 2h, lifetime: 1d}")
        began_ns = clock.boottime_ns()
        async with Relay(policy) as relay:
            queue_id = relay.accept()
            await relay.until(lambda: (q := relay.queued(queue_id)) and q.state is State.DEFERRED)
        async with Relay(policy) as relay:
            await relay.until_empty()
        assert 1800 <= (clock.boottime_ns() - began_ns) // SECOND_NS <= 7200
