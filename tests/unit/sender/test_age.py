"""What makes a message older and what does not: it is returned for its own sake or not at all."""

from pathlib import Path

from relay.clock import SECOND_NS
from relay.queue.queued import State
from tests.fakes.smarthost import Script, Smarthost, turns
from tests.unit.sender.in_process_relay import Relay, policy_of, virtual_clock

GREYLISTED = "451 4.7.1 Greylisted, try later"


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
