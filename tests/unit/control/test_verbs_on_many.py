"""A verb on many messages: as fast as the disk allows, and other work goes on in between."""

import asyncio
from pathlib import Path

from relay.control.operations import ABSENT, OK
from relay.control.operator import MOVED_AT_ONCE
from relay.mail.envelope import QueueId
from relay.queue.queued import State
from relay.spool.disk.durable import RealDisk
from tests.unit.sender.in_process_relay import Relay, policy_of

MANY = 2 * MOVED_AT_ONCE


async def test_one_that_is_gone_keeps_back_no_other(tmp_path: Path) -> None:
    relay = Relay(policy_of(tmp_path, 1))
    ids = [relay.accept() for _ in range(20)]
    await relay.sender.read()
    RealDisk().unlink(relay.spool._layout.queued(ids[7]))

    results = await relay.operator.act("hold", [*ids, QueueId("0123456789abcdef")])

    assert [results[queue_id] for queue_id in ids] == [OK] * 7 + [ABSENT] + [OK] * 12
    assert results[QueueId("0123456789abcdef")] == ABSENT
    assert {queued.state for queued in relay.sender.queue} == {State.HELD}
    await relay.sender.stop()


async def test_other_work_goes_on_between_the_batches_of_a_verb(tmp_path: Path) -> None:
    relay = Relay(policy_of(tmp_path, 1))
    ids = [relay.accept() for _ in range(MANY)]
    await relay.sender.read()
    turns = 0

    async def other_work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(other_work())
    assert await relay.operator.act("delete", ids) == dict.fromkeys(ids, OK)
    other.cancel()

    assert turns > MANY // MOVED_AT_ONCE
    await relay.sender.stop()
