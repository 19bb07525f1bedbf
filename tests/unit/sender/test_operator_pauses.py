"""An operator's pause of an upstream: what it keeps back, and what it outlives."""

import asyncio
from pathlib import Path

from relay.clock import SECOND_NS
from relay.control.operations import ABSENT, OK, UNCHANGED
from relay.queue.queued import State
from relay.sender.state_file import parse, pause_path
from relay.status.snapshot import UpstreamState
from relay.verdicts.account import PauseAsked
from tests.fakes.smarthost import Script, Smarthost, Until, turns
from tests.unit.sender.in_process_relay import Relay, policy_of, virtual_clock
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


async def test_what_is_in_flight_finishes_and_nothing_new_begins(tmp_path: Path) -> None:
    may_end = asyncio.Event()
    script = Script(eod=turns([Until(may_end), "250 ok"]))
    async with Smarthost(script) as host, Relay(policy_of(tmp_path, host.port, connections=1)) as relay:
        relay.accept("first@there.example")
        await relay.until(lambda: relay.account.in_flight)
        second = relay.accept("second@there.example")
        await relay.until(lambda: relay.queued(second))

        assert await relay.operator.pause("isp", LASTING) == OK
        may_end.set()
        await kept_back(relay)
        assert [mail.recipients for mail in host.relayed] == [["first@there.example"]]
        assert await relay.operator.resume("isp") == OK
        await relay.until_empty()
        assert len(host.relayed) == 2
        assert await relay.operator.resume("isp") == UNCHANGED
        assert await relay.operator.pause("nobody", LASTING) == ABSENT


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


async def test_its_time_is_no_age_and_mail_goes_at_its_end(tmp_path: Path) -> None:
    clock = virtual_clock()
    script = Script(rcpt=turns("451 4.7.1 later"))
    async with Smarthost(script) as host:
        async with Relay(policy_of(tmp_path, host.port)) as relay:
            queue_id = relay.accept("b@there.example")
            await relay.operator.pause("isp", PauseAsked("anna", 30 * DAY_NS))
            await relay.until(lambda: relay.queued(queue_id))
            (shown,) = (await relay.operator.snapshot()).upstreams
            assert shown.paused_until_ns is not None
            assert shown.drained_at_ns is not None
            assert shown.drained_at_ns > shown.paused_until_ns - SECOND_NS
            clock.advance(30 * DAY_NS)
            relay.account.wake()

            # The lifetime of a message is a day: it would have been returned.
            await relay.until(lambda: (q := relay.queued(queue_id)) and q.state is State.DEFERRED)
            assert relay.account.pausing.state.operator is None
            relay.events.flush()
            assert "the operator's pause has ended: the time of" in relay.log.getvalue()
            await relay.until_empty()
        # Beside it its sender hears that it is late, which counts from its acceptance.
        assert ["b@there.example"] in [mail.recipients for mail in host.relayed]


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
