"""`relay pause --new`: what comes in is held with the pause, and goes on with its end, whatever crashes."""

import asyncio
import random
from pathlib import Path

import pytest

from relay.clock import SECOND_NS
from relay.control.offline import OfflineOperations
from relay.control.operations import HELD_BY_PAUSE, OK
from relay.control.recorded import record_pause, record_resume, recorded_pause
from relay.mail.envelope import QueueId
from relay.queue.scheduler import State
from relay.sender.upstreams import new_mail_hold
from relay.status.snapshot import QueueState
from relay.verdicts.operator_pause import PauseAsked
from tests.fakes.clock import FakeClock, LeapingClock
from tests.fakes.disk import ModelDisk
from tests.fakes.platter import Model, Platter
from tests.fakes.smarthost import Script, Smarthost, turns
from tests.unit.sender.in_process_relay import Relay, policy_of

DAY_NS = 86400 * SECOND_NS
HOLDING = PauseAsked("anna", holds_new=True)


async def comes_in(relay: Relay, recipient: str) -> QueueId:
    queue_id = relay.accept(recipient)
    await relay.until(lambda: relay.queued(queue_id))
    return queue_id


def state_of(relay: Relay, queue_id: QueueId) -> State | None:
    return None if (queued := relay.queued(queue_id)) is None else queued.state


async def test_what_comes_in_is_held_and_goes_on_after_resume(tmp_path: Path) -> None:
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port)) as relay:
        assert await relay.operator.pause("isp", PauseAsked("anna")) == OK
        before = await comes_in(relay, "before@there.example")
        assert await relay.operator.pause("isp", HOLDING) == OK
        new, kept = await comes_in(relay, "new@there.example"), await comes_in(relay, "kept@there.example")

        assert [state_of(relay, each) for each in (before, new, kept)] == [
            State.WAITING,
            State.HELD,
            State.HELD,
        ]
        shown = await relay.operator.snapshot()
        assert shown.upstreams[0].holds_new
        assert shown.upstreams[0].paused_because.endswith("; new mail for it is held")
        assert shown.counts(QueueState.HELD).messages == 2
        listed = {view.queue_id: view for view in await relay.operator.queue()}
        assert (listed[new].reason, listed[new].is_held_by_pause) == ("held by the pause of isp", True)
        by = shown.upstreams[0].paused_because.removeprefix("by ")
        assert listed[new].held_by == listed[before].held_by == f"operator: {by}"
        assert not (Path(relay.policy.spool) / "hold" / new).exists()

        assert await relay.operator.act("release", [new]) == {new: HELD_BY_PAUSE}
        assert await relay.operator.act("retry", [new]) == {new: HELD_BY_PAUSE}
        assert await relay.operator.act("hold", [kept]) == {kept: OK}
        assert (Path(relay.policy.spool) / "hold" / kept).exists()
        assert await relay.operator.resume("isp") == OK
        await relay.until(lambda: len(host.relayed) == 2)
        assert state_of(relay, kept) is State.HELD
        relay.events.flush()
        assert "isp paused by anna until -; new mail for it is held" in relay.log.getvalue()


async def test_a_restart_holds_just_the_same(tmp_path: Path) -> None:
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port)
        async with Relay(policy) as relay:
            await relay.operator.pause("isp", PauseAsked("anna"))
            before = await comes_in(relay, "before@there.example")
            await relay.operator.pause("isp", HOLDING)
            new = await comes_in(relay, "new@there.example")
            relay.trigger.close()
        operations = OfflineOperations(policy)
        try:
            down = {view.queue_id: view.state for view in await operations.queue()}
        finally:
            await operations.close()
        assert down == {before: QueueState.WAITING, new: QueueState.HELD}
        async with Relay(policy) as relay:
            untaken = relay.accept("untaken@there.example")
            await relay.until(lambda: relay.queued(untaken) and state_of(relay, new) is State.HELD)
            assert [state_of(relay, each) for each in (before, untaken)] == [State.WAITING, State.HELD]
            await relay.operator.resume("isp")
            await relay.until_empty()
        assert len(host.relayed) == 3


async def test_its_own_end_lets_all_go_and_its_time_is_no_age(tmp_path: Path) -> None:
    clock = LeapingClock()
    script = Script(rcpt=turns("451 4.7.1 later"))
    async with Smarthost(script) as host, Relay(policy_of(tmp_path, host.port), clock=clock) as relay:
        await relay.operator.pause("isp", PauseAsked("anna", 30 * DAY_NS, holds_new=True))
        new = await comes_in(relay, "new@there.example")
        (listed,) = await relay.operator.queue()
        assert listed.state is QueueState.HELD
        assert listed.eta_at_ns is not None
        (shown,) = (await relay.operator.snapshot()).upstreams
        assert shown.paused_until_ns is not None
        assert listed.eta_at_ns >= shown.paused_until_ns - SECOND_NS
        assert shown.drained_at_ns is not None
        assert shown.drained_at_ns >= shown.paused_until_ns - SECOND_NS
        assert await relay.late.look() == 0
        clock.ahead_ns += 30 * DAY_NS
        relay.dispatcher.wake()

        # Its lifetime is a day: it would have been returned.
        await relay.until(lambda: state_of(relay, new) is State.DEFERRED)
        await relay.until_empty()
    assert ["new@there.example"] in [mail.recipients for mail in host.relayed]


async def test_a_report_about_what_is_held_is_not_held(tmp_path: Path) -> None:
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port)) as relay:
        await relay.operator.pause("isp", HOLDING)
        new = await comes_in(relay, "new@there.example")
        assert await relay.operator.act("bounce", [new]) == {new: OK}
        report = QueueId(f"{new}r")
        await relay.until(lambda: relay.queued(report))

        assert state_of(relay, report) is State.WAITING
        await relay.operator.resume("isp")
        await relay.until_empty()
        assert [mail.recipients for mail in host.relayed] == [["a@here.example"]]


async def test_a_pause_without_it_lets_go_of_what_was_held(tmp_path: Path) -> None:
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port)) as relay:
        await relay.operator.pause("isp", HOLDING)
        new = await comes_in(relay, "new@there.example")
        await relay.operator.pause("isp", PauseAsked("ben", DAY_NS, holds_new=True))
        assert state_of(relay, new) is State.HELD
        await relay.operator.pause("isp", PauseAsked("ben", DAY_NS))
        await relay.until(lambda: state_of(relay, new) is State.WAITING)
        assert host.relayed == []


async def test_what_would_go_elsewhere_by_an_edit_is_held_no_longer(tmp_path: Path) -> None:
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port)) as relay:
        await relay.operator.pause("isp", HOLDING)
        await comes_in(relay, "new@there.example")
        other = policy_of(tmp_path, host.port, ", history: other").upstreams["isp"]
        upstreams = {"other": other, **relay.policy.upstreams}
        await relay.sender.apply(relay.policy.model_copy(update={"upstreams": upstreams}))
        await relay.until_empty()
        assert [mail.recipients for mail in host.relayed] == [["new@there.example"]]


async def test_a_reboot_tells_what_came_in_before_from_what_came_after(tmp_path: Path) -> None:
    clock = FakeClock()
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port)
        async with Relay(policy, clock=clock) as relay:
            await relay.operator.pause("isp", PauseAsked("anna"))
            before = await comes_in(relay, "before@there.example")
            clock.advance(60 * SECOND_NS)
            await relay.operator.pause("isp", HOLDING)
            clock.advance(60 * SECOND_NS)
            new = await comes_in(relay, "new@there.example")
        clock.reboot(3600 * SECOND_NS)
        async with Relay(policy, clock=clock) as relay:
            await relay.sender.upstreams.recalled("isp")
            await relay.until(lambda: state_of(relay, new) is State.HELD)
            await asyncio.sleep(0)
            assert state_of(relay, before) is State.WAITING


@pytest.mark.parametrize("model", Model)
def test_a_power_cut_leaves_the_hold_of_one_of_two_words(model: Model, tmp_path: Path) -> None:
    policy, clock = policy_of(tmp_path, 25), FakeClock()
    disk, rng, found = ModelDisk(Platter(model)), random.Random(1), list[int | None]()

    def look() -> None:
        for image in disk.cuts(rng, 16):
            record = recorded_pause(policy, "isp", image, clock)
            hold = new_mail_hold("isp", None if record is None else record.operator)
            found.append(None if hold is None else hold.since_ns)

    record_pause(policy, "isp", PauseAsked("anna"), disk, clock)
    began_ns = clock.boottime_ns()
    disk.after = look
    record_pause(policy, "isp", HOLDING, disk, clock)
    assert set(found) == {None, began_ns}
    found.clear()
    clock.advance(SECOND_NS)
    record_resume(policy, "isp", disk, clock)
    assert set(found) == {began_ns, None}
    found.clear()
    look()
    assert set(found) == {None}
