"""What makes a message older and what does not: it is returned for its own sake or not at all."""

from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.queue.scheduler import State
from relay.sender.state_file import boots_path
from relay.spool.disk.durable import RealDisk
from relay.spool.maildir.inspection import Inspector
from relay.spool.root.foreign import BOOTS_FORMAT
from tests.fakes.clock import FakeClock, LeapingClock
from tests.fakes.smarthost import Script, Smarthost, turns
from tests.unit.sender.in_process_relay import Relay, policy_of

DAY_NS = 86400 * SECOND_NS
RETRY = "retry: {min: 1h, max: 2h, lifetime: 1d, warn_after: null}"
NOT_HIS = "553 5.7.1 Sender address rejected: not owned by user mjd"


async def test_time_that_a_sender_rested_is_no_age_of_its_mail(tmp_path: Path) -> None:
    clock = LeapingClock()
    script = Script(mail=turns(NOT_HIS), rcpt=turns("451 4.7.1 Greylisted, try later"))
    async with (
        Smarthost(script) as host,
        Relay(policy_of(tmp_path, host.port, ", pipelining: false", RETRY), clock=clock) as relay,
    ):
        queue_id = relay.accept()
        await relay.until(lambda: (q := relay.queued(queue_id)) and q.is_sitting_out)
        clock.ahead_ns += 2 * DAY_NS
        relay.dispatcher.wake()
        await relay.until(
            lambda: ((q := relay.queued(queue_id)) and "Greylisted" in q.reason) or not relay.sender.queue
        )

        queued = relay.queued(queue_id)
        assert queued is not None
        assert queued.state is State.DEFERRED
        assert queued.due_at_ns - clock.boottime_ns() <= 3600 * SECOND_NS


GREYLISTED = "451 4.7.1 Greylisted, try later"
BRIEF = "retry: {min: 1h, max: 2h, lifetime: 10s, warn_after: null}"
SHORT = "retry: {min: 10s, max: 20s, lifetime: 1d, warn_after: 4h}"


def is_deferred(relay: Relay) -> bool:
    return any(queued.state is State.DEFERRED for queued in relay.sender.queue)


def logged(relay: Relay) -> str:
    relay.events.flush()
    return relay.log.getvalue()


@pytest.mark.parametrize("restart", ["of the relay", "of the host"])
@pytest.mark.parametrize("step_days", [30, -30])
async def test_a_step_of_the_clock_expires_nothing_over_a_restart(
    tmp_path: Path, restart: str, step_days: int
) -> None:
    clock = FakeClock()
    async with Smarthost(Script(rcpt=turns(*[GREYLISTED] * 3))) as host:
        policy = policy_of(tmp_path, host.port, ", pipelining: false", SHORT)
        async with Relay(policy, clock=clock) as relay:
            queue_id = relay.accept()
            await relay.until(lambda: (q := relay.queued(queue_id)) and q.state is State.DEFERRED)
            clock.advance(15 * SECOND_NS)
            clock.step_wall(step_days * DAY_NS)
        if restart == "of the host":
            clock.reboot()
        before = len(host.sessions)
        async with Relay(policy, clock=clock) as relay:
            await relay.until(lambda: len(host.sessions) > before)
            await relay.until(lambda: (q := relay.queued(queue_id)) and q.state is State.DEFERRED)

            queued = relay.queued(queue_id)
            assert queued is not None
            assert clock.boottime_ns() - queued.arrived_at_ns <= 30 * SECOND_NS
            assert await relay.late.look() == 0
            relay.events.flush()
            assert "status=expired" not in relay.log.getvalue()
        assert [message for message in host.relayed if message.reverse_path == ""] == []


async def test_a_message_expires_by_the_time_that_relays_ran_over_reboots(tmp_path: Path) -> None:
    clock = FakeClock()
    async with Smarthost(Script(rcpt=turns(*[GREYLISTED] * 9))) as host:
        policy = policy_of(tmp_path, host.port, ", pipelining: false", SHORT)
        for half_days in range(2):
            async with Relay(policy, clock=clock) as relay:
                if not half_days:
                    relay.accept()
                await relay.until(lambda: is_deferred(relay))
                clock.advance(DAY_NS // 2)
                relay.events.flush()
                assert "status=expired" not in relay.log.getvalue()
            clock.reboot(down_ns=3 * DAY_NS)
        async with Relay(policy, clock=clock) as relay:
            await relay.until(lambda: "status=expired" in logged(relay))


async def test_a_next_attempt_waits_no_longer_than_a_back_off_after_a_step(tmp_path: Path) -> None:
    clock = FakeClock()
    async with Smarthost(Script(rcpt=turns(GREYLISTED))) as host:
        policy = policy_of(tmp_path, host.port, ", pipelining: false", SHORT)
        async with Relay(policy, clock=clock) as relay:
            queue_id = relay.accept()
            await relay.until(lambda: (q := relay.queued(queue_id)) and q.state is State.DEFERRED)
        clock.step_wall(-30 * DAY_NS)
        async with Relay(policy, clock=clock) as relay:
            await relay.until_empty()
        assert len(host.relayed) == 1


async def test_a_pause_is_no_age_after_a_reboot_with_another_clock(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    script = Script(mail=turns("421 4.7.0 too many messages from you"), rcpt=turns(GREYLISTED))
    async with Smarthost(script) as host:
        policy = policy_of(tmp_path, host.port, ", pipelining: false", BRIEF)
        async with Relay(policy, clock=clock) as relay:
            queue_id = relay.accept()
            await relay.until(lambda: relay.dispatcher.pausing.because)
            clock.advance(relay.dispatcher.pausing.paused_until_ns - clock.boottime_ns())
        clock.step_wall(30 * DAY_NS)
        clock.reboot()
        async with Relay(policy, clock=clock) as relay:
            await relay.until(lambda: (q := relay.queued(queue_id)) and "Greylisted" in q.reason)
            relay.events.flush()
            assert "status=expired" not in relay.log.getvalue()


@pytest.mark.parametrize("content", [b"", b"mine\n", b'{\n "stretches": [', b"{}", b'{"mine": 1}'])
async def test_a_stranger_s_file_in_place_of_the_boots_is_set_aside(tmp_path: Path, content: bytes) -> None:
    policy = policy_of(tmp_path, 1)
    relay = Relay(policy)
    relay.accept()
    boots_path(policy).write_bytes(content)

    await relay.sender.read()
    await relay.sender.stop()

    assert [path.read_bytes() for path in (policy.spool / "corrupt").iterdir()] == [content]
    assert BOOTS_FORMAT.parse(boots_path(policy).read_bytes()).stretches


async def test_a_record_of_the_boots_stays_where_it_is_over_a_restart(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, 1)
    for _ in range(2):
        relay = Relay(policy)
        relay.accept()
        await relay.sender.read()
        await relay.sender.stop()

        assert not list((policy.spool / "corrupt").iterdir())
        assert Inspector(str(policy.spool), RealDisk()).inspect().findings == []
        assert len(BOOTS_FORMAT.parse(boots_path(policy).read_bytes()).stretches) == 1


async def test_a_boot_of_no_record_is_remembered_while_it_has_mail(tmp_path: Path) -> None:
    """Else its mail would be met anew, and young, after each reboot."""
    clock, policy = FakeClock(), policy_of(tmp_path, 1)

    async def met_by_a_start() -> set[str]:
        relay = Relay(policy, clock=clock)
        await relay.sender.read()
        await relay.sender.stop()
        relay.trigger.close()
        return set(BOOTS_FORMAT.parse(boots_path(policy).read_bytes()).met_at_ns)

    boot_id = clock.boot_id()
    async with Relay(policy, clock=clock) as relay:
        queue_id = relay.accept()
    boots_path(policy).unlink(missing_ok=True)
    clock.reboot()
    assert await met_by_a_start() == {boot_id}
    assert await met_by_a_start() == {boot_id}

    async with Relay(policy, clock=clock) as relay:
        await relay.operator.act("delete", [queue_id])
        relay.accept()
    assert await met_by_a_start() == set()
