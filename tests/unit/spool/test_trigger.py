"""The trigger wakes the sender that listens, and never blocks a listener."""

import fcntl
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.spool.disk.durable import RealDisk
from relay.spool.root.trigger import Trigger

Pair = tuple[Trigger, Trigger]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Return a sender's trigger and a listener's."""
    both = Trigger(str(tmp_path), RealDisk()), Trigger(str(tmp_path), RealDisk())
    yield both
    for each in both:
        each.close()


def is_pulled(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def test_a_pull_wakes_the_sender_until_the_trigger_is_cleared(pair: Pair) -> None:
    sender, listener = pair
    fd = sender.listen()
    assert fd == sender.listen()
    assert not is_pulled(fd)
    for _ in range(2):
        listener.pull()
        listener.pull()
        assert is_pulled(fd)
        sender.clear()
        assert not is_pulled(fd)


def test_pulls_without_a_sender_neither_block_nor_fail(pair: Pair) -> None:
    sender, listener = pair
    for _ in range(2):
        listener.pull()
        listener.pull()
        fd = sender.listen()
        sender.clear()
        assert not is_pulled(fd)
        listener.pull()
        assert is_pulled(fd)
        sender.close()


def test_pulls_into_a_full_fifo_neither_block_nor_fail(pair: Pair) -> None:
    sender, listener = pair
    fd = sender.listen()
    assert fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, 65_536) == 65_536
    assert os.write(fd, bytes(65_535)) == 65_535
    for _ in range(9):
        listener.pull()
    assert is_pulled(fd)
    sender.clear()
    assert not is_pulled(fd)
    listener.pull()
    assert is_pulled(fd)


def test_a_listener_that_leaves_does_not_look_like_a_pull(pair: Pair) -> None:
    sender, listener = pair
    fd = sender.listen()
    for _ in range(3):
        listener.pull()
        listener.close()
        sender.clear()
        # The FIFO is neither readable nor at its end, although no writer is left.
        assert not is_pulled(fd)
