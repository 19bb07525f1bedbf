"""A verb on many messages: as fast as the disk allows, and other work goes on in between."""

import asyncio
import errno
from pathlib import Path
from typing import ClassVar

from relay.control.operations import FAULT, OK
from relay.control.operator import MOVED_AT_ONCE
from relay.spool.disk.durable import RealDisk
from tests.unit.sender.in_process_relay import Relay, policy_of

MANY = 2 * MOVED_AT_ONCE


class FailingRename(RealDisk):
    """Fails as a disk does, and for one message as a fault of ours would."""

    fails: ClassVar[dict[str, Exception]] = {}

    def rename(self, old: str, new: str) -> None:
        if (error := self.fails.get(old.rpartition("/")[2])) is not None and "/hold/" in new:
            raise error
        super().rename(old, new)


async def test_what_goes_wrong_with_one_leaves_the_results_of_the_others(tmp_path: Path) -> None:
    disk = FailingRename()
    relay = Relay(policy_of(tmp_path, 1), disk)
    ids = [relay.accept() for _ in range(4)]
    await relay.sender.read()
    disk.fails[ids[1]] = OSError(errno.EIO, "Input/output error")

    results = await relay.operator.act("hold", ids)
    assert [results[queue_id] == OK for queue_id in ids] == [True, False, True, True]
    assert "Input/output error" in results[ids[1]]

    disk.fails[ids[1]] = ZeroDivisionError("odd")
    assert await relay.operator.act("hold", [ids[1]]) == {ids[1]: FAULT}
    assert "fault in control: ZeroDivisionError: odd" in relay.log.getvalue()
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
