"""An operator's pause of an upstream: what it keeps back, and what it outlives."""

from pathlib import Path

from relay.clock import SECOND_NS
from relay.control.operations import OK
from relay.sender.state_file import parse, pause_path
from relay.status.snapshot import UpstreamState
from relay.verdicts.operator_pause import PauseAsked
from tests.fakes.smarthost import Smarthost
from tests.unit.sender.in_process_relay import Relay, policy_of
from tests.unit.sender.test_races import turns_of_the_loop

DAY_NS = 86400 * SECOND_NS
LASTING = PauseAsked("anna")


async def kept_back(relay: Relay) -> None:
    """Let the relay do whatever it would do now."""
    await relay.until(lambda: relay.account.in_flight == 0)
    for _ in range(3):
        relay.account.wake()
        await turns_of_the_loop()
    assert relay.account.in_flight == 0


async def test_it_outlives_a_restart_and_says_who_paused_and_when(tmp_path: Path) -> None:
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port)
        async with Relay(policy) as relay:
            assert await relay.operator.pause("isp", LASTING) == OK
            pause = relay.account.pausing.state.operator
            assert parse(pause_path(policy, "isp").read_bytes()).state.operator == pause
        async with Relay(policy) as relay:
            queue_id = relay.accept("b@there.example")
            await relay.until(lambda: relay.queued(queue_id))
            await kept_back(relay)

            assert relay.account.pausing.state.operator == pause
            (shown,) = (await relay.operator.snapshot()).upstreams
            assert (shown.state, shown.paused_by) == (UpstreamState.PAUSED, "anna")
            assert shown.paused_until_ns is shown.drained_at_ns is None
            assert shown.held_by == f"operator: {shown.paused_because.removeprefix('by ')}"
            (listed,) = await relay.operator.queue()
            assert (listed.held_by, listed.eta_at_ns) == (shown.held_by, None)
            assert listed.reason == f"isp is paused: {shown.paused_because}"
            assert host.relayed == []
            assert await relay.operator.resume("isp") == OK
            await relay.until_empty()


async def test_an_edit_of_the_account_carries_the_pause_over(tmp_path: Path) -> None:
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port)) as relay:
        await relay.operator.pause("isp", LASTING)
        before = relay.account
        pause = before.pausing.state.operator
        await relay.sender.apply(policy_of(tmp_path, host.port, ", history: other"))

        assert relay.account is not before
        assert relay.account.pausing.state.operator == pause
        assert await relay.sender.upstreams.recorded("isp") == ""
        edited = policy_of(
            tmp_path, host.port, ", history: other, verdicts: [{text: x, verdict: defer recipient}]"
        )
        await relay.sender.apply(edited)
        assert relay.account.pausing.state.operator == pause


async def test_a_pause_that_is_not_on_disk_is_said_to_be_so(tmp_path: Path) -> None:
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port)
        async with Relay(policy) as relay:
            path = pause_path(policy, "isp")
            path.mkdir(parents=True)
            told = await relay.operator.pause("isp", LASTING)
            assert told.startswith("paused, but not on disk, so a restart would end it: ")
            assert relay.account.pausing.state.operator is not None
            told = await relay.operator.resume("isp")
            assert told.startswith("used again, but not on disk, so a restart may rest again: ")
            path.rmdir()
            assert await relay.operator.pause("isp", LASTING) == OK
