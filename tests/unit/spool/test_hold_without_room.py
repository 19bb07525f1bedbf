"""A message that cannot be held, or released, for lack of room stays where it can be found."""

import errno
import random

import pytest

from relay.spool.interface import SpoolFull
from tests.fakes.clock import FakeClock
from tests.fakes.disk import Fault
from tests.unit.spool.engine import CONTENT, accept
from tests.unit.spool.maildir_engine import MAILDIR
from tests.unit.spool.plays import prepared
from tests.unit.spool.recovering import recover


@pytest.mark.parametrize("is_held", [False, True])
def test_what_could_not_be_moved_is_still_read_where_it_is(*, is_held: bool) -> None:
    disk, clock = prepared(), FakeClock()
    spool = MAILDIR.sender(disk, clock, lambda *_told: None)
    recover(spool)
    queue_id = accept(MAILDIR.listener(disk.another(), clock, random.Random(1).randbytes))
    spool.take(9)
    if is_held:
        spool.hold(queue_id)
    move = spool.release if is_held else spool.hold
    disk.fail(Fault(1, errno.ENOSPC, forever=True, kinds=frozenset({"rename"}), path=queue_id))

    with pytest.raises(SpoolFull):
        move(queue_id)
    message = spool.load(queue_id)
    assert (message.is_held, message.content) == (is_held, CONTENT)
    disk.heal()
    move(queue_id)
    assert spool.load(queue_id).is_held is not is_held
