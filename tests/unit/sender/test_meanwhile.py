"""What the dispatcher or an operator does to a message of the queue while somebody else has it."""

import asyncio
import errno
from pathlib import Path

from relay.queue.queued import WaitReason
from relay.queue.scheduler import State
from relay.spool.disk.durable import RealDisk
from tests.unit.sender.in_process_relay import Relay, policy_of


class NoRoomToHold(RealDisk):
    """A disk on which no name can be added to hold/."""

    def rename(self, source: str, target: str) -> None:
        if "/hold/" in target:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().rename(source, target)


async def test_a_parked_message_not_held_goes_when_there_is_room(tmp_path: Path) -> None:
    relay = Relay(policy_of(tmp_path, 9), NoRoomToHold())
    queue_id = relay.accept()
    await relay.sender.read()
    scheduler, now_ns = relay.line, relay.clock.boottime_ns()
    assert scheduler.next_ready(now_ns) is relay.queued(queue_id)
    scheduler.park(queue_id, "its sender", now_ns, WaitReason("no room"))

    async def look() -> None:
        """Do what the dispatcher does in each round, while the message is being moved."""
        while [queued.state for queued in scheduler] != [State.ACTIVE]:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0)
        scheduler.places_due(now_ns)

    results, _ = await asyncio.gather(relay.operator.act("hold", [queue_id]), look())

    assert "No space left" in results[queue_id]
    for place in scheduler.places_due(now_ns):
        scheduler.let_leave(place, 1, now_ns)
    assert scheduler.next_ready(now_ns) is relay.queued(queue_id)
    relay.sender.close()
    relay.trigger.close()


async def test_a_queued_message_moved_to_new_is_not_queued_twice(tmp_path: Path) -> None:
    relay = Relay(policy_of(tmp_path, 9))
    queue_id = relay.accept()
    await relay.sender.read()
    under_way = relay.line.next_ready(relay.clock.boottime_ns())
    (path,) = (policy_of(tmp_path, 9).spool / "cur").glob(f"*/{queue_id}")
    path.rename(policy_of(tmp_path, 9).spool / "new" / queue_id)

    await relay.sender._arrivals.take()

    assert relay.queued(queue_id) is under_way
    assert not relay.line.has_ready(relay.clock.boottime_ns())
    assert path.exists()
    relay.sender.close()
    relay.trigger.close()
