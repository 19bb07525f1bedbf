"""A second name of a message is given up only when the one that stays is durable."""

import errno
import random

import pytest

from relay.spool.maildir.layout import Layout
from tests.fakes.clock import FakeClock
from tests.fakes.disk import Fault
from tests.fakes.platter import Platter
from tests.unit.spool.engine import BOUNCED, CONTENT, RELAYED, accept, note
from tests.unit.spool.maildir_engine import MAILDIR
from tests.unit.spool.plays import prepared
from tests.unit.spool.recovering import recover


def test_the_folder_that_a_message_enters_is_synced_before_the_one_it_leaves() -> None:
    disk, clock, layout = prepared(), FakeClock(), Layout(MAILDIR.root)
    spool = MAILDIR.sender(disk, clock, lambda *_told: None)
    recover(spool)
    queue_id = accept(MAILDIR.listener(disk.another(), clock, random.Random(1).randbytes))
    spool.take(9)
    steps: list[str] = []
    disk.before = steps.append
    spool.hold(queue_id)
    spool.release(queue_id)

    home, hold = layout.queued_folder(queue_id), layout.folder("hold")
    synced = [step.removeprefix("sync_directory ") for step in steps if step.startswith("sync_directory ")]
    assert synced == [hold, home, home, hold]


def test_a_message_keeps_its_name_until_the_held_one_is_durable() -> None:
    disk, clock, layout = prepared(), FakeClock(), Layout(MAILDIR.root)
    spool = MAILDIR.sender(disk, clock, lambda *_told: None)
    recover(spool)
    queue_id = accept(MAILDIR.listener(disk.another(), clock, random.Random(1).randbytes))
    spool.take(9)
    spool.close()
    # By a hand, or a tool that moves by link and unlink and was killed between the two.
    disk.another().link(layout.queued(queue_id), layout.held(queue_id))
    instants: list[Platter] = []
    disk.after = lambda: instants.append(disk.platter.copy())
    recover(MAILDIR.sender(disk, clock, lambda *_told: None))

    for platter in instants:
        for image in type(disk)(platter).cuts(random.Random(2), 64):
            again = MAILDIR.sender(image, clock, lambda *_told: None)
            recover(again)
            assert again.load(queue_id).content == CONTENT


@pytest.mark.parametrize("number", [errno.EINTR, errno.ENOMEM])
def test_a_message_whose_second_name_cannot_go_at_first_is_not_missing_and_keeps_its_notes(
    number: int,
) -> None:
    disk, clock, layout = prepared(), FakeClock(), Layout(MAILDIR.root)
    spool = MAILDIR.sender(disk, clock, lambda *_told: None)
    recover(spool)
    queue_id = accept(MAILDIR.listener(disk.another(), clock, random.Random(1).randbytes))
    spool.take(9)
    spool.note({queue_id: [note(1)]})
    spool.mark({queue_id: {0: RELAYED, 1: BOUNCED}})
    spool.hold(queue_id)
    spool.close()
    second = f"{layout.folder('new')}/{queue_id}"
    disk.another().link(layout.held(queue_id), second)

    disk.fail(Fault(1, number, kinds=frozenset({"unlink"}), path=second))
    again = MAILDIR.sender(disk, clock, lambda *_told: None)
    recovery = recover(again)

    assert disk.has_failed
    assert disk.names(layout.folder("new")) == []
    assert recovery.missing_recipients == 0
    assert again.notes(queue_id) == [note(1)]
