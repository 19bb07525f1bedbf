"""What the spool thread keeps in memory, and batches: many values in one call of a thread."""

import asyncio
import errno
import random
import threading
from collections.abc import Sequence

import pytest

from relay.sender.host import Batch, CallThread
from relay.sender.threads import MOST_BYTES_AT_HAND, SpoolThread
from relay.spool.interface import Message, Settlement, Status
from relay.spool.maildir.engine import MaildirSpool
from tests.engines.spool.engine import MAILDIR, accept
from tests.engines.spool.world import prepared
from tests.fakes.clock import FakeClock
from tests.fakes.disk import Fault
from tests.fakes.virtual_time import InTurn


async def test_messages_at_hand_are_bounded_and_dropped_at_their_first_settlement() -> None:
    disk, clock, long = prepared(), FakeClock(), b"x" * 250_000
    spool = MaildirSpool(MAILDIR.root, disk, clock, lambda *_told: None)
    thread = SpoolThread(spool, lambda _trouble: None, InTurn)
    intake = MAILDIR.listener(disk.another(), clock, random.Random(1).randbytes)
    queue_ids = [accept(intake, content=long) for _ in range(80)]
    while page := await thread.call(lambda spool: spool.claim(9)):
        for message in page:
            thread.cache(message)

    # The disk opens nothing: each message that can be read is at hand.
    disk.fail(Fault(1, errno.EIO, forever=True, kinds=frozenset({"open"}), path="/cur/"))
    at_hand = [each for each in await thread.read(queue_ids) if isinstance(each, Message)]
    assert 0 < sum(len(each.head) for each in at_hand) <= MOST_BYTES_AT_HAND + len(long)

    disk.heal()
    first = at_hand[0]
    await thread.settle(Settlement(first.queue_id, first.envelope, {0: Status.RELAYED}))
    (again,) = await thread.read([first.queue_id])
    assert isinstance(again, Message)
    assert again.left == (1, 2)


async def test_values_of_one_turn_of_the_loop_are_one_call_with_a_result_for_each() -> None:
    thread, made = CallThread("calls"), list[list[int]]()

    def commit(values: Sequence[int]) -> list[int | BaseException]:
        made.append(list(values))
        return [OSError("no room") if value == 3 else value for value in values]

    batch: Batch[int, int] = Batch(commit, thread)
    ends = await asyncio.gather(*(batch.submit(number) for number in range(10)), return_exceptions=True)
    assert isinstance(ends.pop(3), OSError)
    assert ends == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert made == [list(range(10))]
    thread.close()


async def test_a_cancelled_caller_cancels_neither_its_own_value_nor_the_others() -> None:
    thread, gate, made = CallThread("calls"), threading.Event(), list[int]()

    def commit(values: Sequence[int]) -> list[int | BaseException]:
        gate.wait()
        made.extend(values)
        return list(values)

    batch: Batch[int, int] = Batch(commit, thread)
    gone, other = batch.submit(1), batch.submit(2)
    await asyncio.sleep(0)
    gone.cancel()
    gate.set()
    assert await other == 2
    assert made == [1, 2]
    thread.close()
    with pytest.raises(RuntimeError):
        await batch.submit(3)
