"""What the spool thread keeps in memory."""

import errno
import random

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
