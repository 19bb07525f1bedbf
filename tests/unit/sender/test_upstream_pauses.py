"""A pause: what it does to the message that met it, to the order, to ages, and over a restart."""

from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.queue.queued import State
from tests.fakes.smarthost import Script, Smarthost, turns
from tests.unit.sender.in_process_relay import Relay, policy_of, virtual_clock

REFUSED = "421 4.7.0 too much from you, come back later"
DAY_NS = 86400 * SECOND_NS


async def _paused(relay: Relay) -> None:
    """Wait until the upstream rests and everything that was in flight is back in the queue."""
    await relay.until(lambda: relay.account.pausing.state.why and relay.account.in_flight == 0)


def _over(relay: Relay) -> None:
    relay.account.pausing.end()
    relay.account.wake()


def mails(host: Smarthost) -> int:
    """Return how many transactions were begun."""
    return sum(command.startswith("MAIL") for command in host.commands)


async def test_a_step_of_the_clock_is_told_and_counted_once(tmp_path: Path) -> None:
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port)) as relay:
        relay.accept()
        await relay.until_empty()
        virtual_clock().step_wall(-365 * DAY_NS)

        def is_told() -> bool:
            relay.events.flush()
            return "the clock of this host was set by -31536000" in relay.log.getvalue()

        await relay.until(is_told)
        relay.accept()
        await relay.until_empty()

        assert len(host.relayed) == 2
        assert relay.log.getvalue().count("the clock of this host was set") == 1


@pytest.mark.parametrize("after", ["the process", "the host"])
async def test_a_restart_goes_on_with_the_pause_and_does_not_knock(tmp_path: Path, after: str) -> None:
    clock = virtual_clock()
    async with Smarthost(Script(mail=turns(REFUSED))) as host:
        policy = policy_of(tmp_path, host.port)
        async with Relay(policy) as relay:
            queue_id = relay.accept()
            await _paused(relay)
            left_ns = relay.account.pausing.state.until_ns - clock.boottime_ns()
        before = len(host.sessions)
        if after == "the host":
            clock.reboot()
        async with Relay(policy) as relay:
            await relay.until(lambda: relay.account.pausing.state.why)
            queued = relay.queued(queue_id)
            assert queued is not None
            assert queued.state is State.WAITING
            assert "too much from you" in relay.account.pausing.state.why
            assert 0 < relay.account.pausing.state.until_ns - clock.boottime_ns() <= left_ns
            assert len(host.sessions) == before

            _over(relay)
            await relay.until_empty()
        assert len(host.relayed) == 1
