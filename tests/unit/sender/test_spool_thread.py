"""What the spool thread does where the spool does not, what it keeps at hand, and many values in one call."""

import asyncio
import errno
import random
import threading
from collections.abc import Sequence

import pytest

from relay.sender.host import Batch, CallThread
from relay.sender.spool_thread import AGAIN_SECONDS, MOST_BYTES_AT_HAND, SpoolThread
from relay.spool.interface import Full, Message, Settlement, Status, Unavailable
from relay.spool.maildir.engine import MaildirSpool
from tests.engines.spool.engine import CONTENT, accept, note, read
from tests.engines.spool.maildir_engine import MAILDIR
from tests.engines.spool.world import prepared
from tests.fakes.clock import FakeClock
from tests.fakes.disk import Fault
from tests.fakes.virtual_time import WorkersInTurn, pass_time


class Queue:
    """A spool thread over a model disk, with messages of three recipients claimed."""

    def __init__(self, *contents: bytes) -> None:
        self.disk, clock = prepared(), FakeClock()
        self.spool = MaildirSpool(MAILDIR.root, self.disk, clock, lambda *_told: None)
        self.told: list[Full | Unavailable] = []
        self.thread = SpoolThread(self.spool, self._tell, WorkersInTurn())
        intake = MAILDIR.listener(self.disk.another(), clock, random.Random(1).randbytes)
        self.queue_ids = [accept(intake, content=each) for each in contents or (CONTENT, CONTENT)]

    def _tell(self, trouble: Full | Unavailable) -> None:
        self.told.append(trouble)

    def fail(self, number: int, kind: str, path: str, *, forever: bool = True) -> None:
        self.disk.fail(Fault(1, number, forever=forever, kinds=frozenset({kind}), path=path))

    async def claimed(self) -> list[Message]:
        claimed = [message for message, _ in await self.thread.claim(9, lambda message: message.queue_id)]
        for message in claimed:
            self.thread.keep(message)
        return claimed


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, Full), (errno.EIO, Unavailable)])
async def test_what_came_to_pass_is_asked_again_until_it_is_done(
    number: int, kind: type[Full | Unavailable]
) -> None:
    queue = Queue()
    marked = [
        Settlement(each.queue_id, each.envelope, {0: Status.RELAYED, 1: Status.BOUNCED}, (note(1),))
        for each in await queue.claimed()
    ]
    queue.fail(number, "write", "/notes/")
    settling = asyncio.gather(*map(queue.thread.settle, marked))
    await pass_time(2.5 * AGAIN_SECONDS)
    # Told once for both, each time.
    assert [type(each) for each in queue.told] == [kind] * 3
    for each in marked:
        # What the upstream took is marked all the same: a crash must not send it again.
        assert read(queue.spool, each.queue_id).statuses[:2] == (Status.RELAYED, Status.TODO)

    queue.disk.heal()
    await settling
    for each in marked:
        assert read(queue.spool, each.queue_id).statuses[:2] == (Status.RELAYED, Status.BOUNCED)


async def test_what_is_at_hand_is_bounded_and_ends_with_the_first_settlement() -> None:
    long = b"x" * 250_000
    queue = Queue(*[long] * 80)
    claimed: list[Message] = []
    while page := await queue.claimed():
        claimed += page
    queue.fail(errno.EIO, "open", "/cur/")
    read_now = await queue.thread.read(queue.queue_ids)
    at_hand = [each for each in read_now if isinstance(each, Message)]
    assert 0 < sum(len(each.head) for each in at_hand) <= MOST_BYTES_AT_HAND + len(long)

    queue.disk.heal()
    first = at_hand[0]
    await queue.thread.settle(Settlement(first.queue_id, first.envelope, {0: Status.RELAYED}))
    (again,) = await queue.thread.read([first.queue_id])
    assert isinstance(again, Message)
    assert again.left == (1, 2)


async def test_what_comes_in_one_turn_of_the_loop_is_one_call_and_each_has_its_own_end() -> None:
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


async def test_what_was_submitted_is_done_though_its_caller_is_gone_and_others_hear_of_theirs() -> None:
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
