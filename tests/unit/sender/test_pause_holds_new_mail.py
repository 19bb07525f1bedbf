"""`relay pause --new`: what comes in is held with the pause, and goes on with its end, whatever crashes."""

from pathlib import Path

from relay.control.operations import HELD_BY_PAUSE, OK
from relay.mail.envelope import QueueId
from relay.queue.scheduler import State
from relay.status.snapshot import QueueState
from relay.verdicts.operator_pause import PauseAsked
from tests.fakes.smarthost import Smarthost
from tests.fakes.virtual_time import pass_time
from tests.unit.sender.in_process_relay import Relay, policy_of

HOLDING = PauseAsked("anna", holds_new=True)


async def comes_in(relay: Relay, recipient: str) -> QueueId:
    await pass_time(1)
    queue_id = relay.accept(recipient)
    await relay.until(lambda: relay.queued(queue_id))
    return queue_id


def state_of(relay: Relay, queue_id: QueueId) -> State | None:
    return None if (queued := relay.queued(queue_id)) is None else queued.state


async def test_what_comes_in_is_held_and_goes_on_after_resume(tmp_path: Path) -> None:
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port)) as relay:
        assert await relay.operator.pause("isp", PauseAsked("anna")) == OK
        before = await comes_in(relay, "before@there.example")
        await pass_time(1)
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
