"""The trigger: wakes whoever listens, and is never in anybody's way."""

import fcntl
import os
import select
from pathlib import Path

import pytest

from relay.spool.disk.durable import RealDisk
from relay.spool.root.trigger import Trigger


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path)


def is_pulled(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def test_a_pull_wakes_who_listens_until_it_is_cleared(root: str) -> None:
    sender, listener = Trigger(root, RealDisk()), Trigger(root, RealDisk())
    fd = sender.listen()
    assert fd == sender.listen()
    assert not is_pulled(fd)
    for _ in range(2):
        listener.pull()
        listener.pull()
        assert is_pulled(fd)
        sender.clear()
        assert not is_pulled(fd)
    sender.close()
    listener.close()


def test_a_pull_with_nobody_there_is_forgotten(root: str) -> None:
    listener = Trigger(root, RealDisk())
    listener.pull()
    sender = Trigger(root, RealDisk())
    fd = sender.listen()
    assert not is_pulled(fd)
    listener.pull()
    assert is_pulled(fd)
    sender.close()
    # EPIPE: the sender is gone.
    listener.pull()
    listener.pull()
    sender = Trigger(root, RealDisk())
    fd = sender.listen()
    listener.pull()
    assert is_pulled(fd)
    sender.close()
    listener.close()


def test_many_pulls_that_nobody_answers_neither_block_nor_fail(root: str) -> None:
    sender, listener = Trigger(root, RealDisk()), Trigger(root, RealDisk())
    fd = sender.listen()
    for _ in range(70_000):
        listener.pull()
    assert is_pulled(fd)
    sender.clear()
    assert not is_pulled(fd)
    listener.pull()
    assert is_pulled(fd)
    sender.close()
    listener.close()


def test_clearing_empties_a_pipe_of_any_size(root: str) -> None:
    sender = Trigger(root, RealDisk())
    fd = sender.listen()
    assert fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, 4 * 65_536) == 4 * 65_536
    assert os.write(fd, bytes(3 * 65_536 + 1)) == 3 * 65_536 + 1
    sender.clear()

    assert not is_pulled(fd)
    sender.close()


def test_listeners_that_come_and_go_do_not_look_like_pulls(root: str) -> None:
    sender = Trigger(root, RealDisk())
    fd = sender.listen()
    for _ in range(3):
        listener = Trigger(root, RealDisk())
        listener.pull()
        listener.close()
        sender.clear()
        # Neither readable nor at its end, though no writer is left.
        assert not is_pulled(fd)
    sender.close()
    sender.close()


def test_both_ends_may_be_in_one_process(root: str) -> None:
    both = Trigger(root, RealDisk())
    fd = both.listen()
    both.pull()
    assert is_pulled(fd)
    both.clear()
    both.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_clearing_without_listening_is_nothing(root: str) -> None:
    trigger = Trigger(root, RealDisk())
    trigger.clear()
    trigger.close()


def test_something_else_of_that_name_is_not_written_to(root: str) -> None:
    path = Path(root) / "trigger"
    path.write_bytes(b"mine")
    trigger = Trigger(root, RealDisk())
    trigger.pull()
    with pytest.raises(OSError, match="not a FIFO"):
        trigger.listen()

    assert path.read_bytes() == b"mine"


def test_a_link_of_that_name_is_not_followed_to_a_fifo(root: str) -> None:
    os.mkfifo(Path(root) / "elsewhere")
    (Path(root) / "trigger").symlink_to("elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        Trigger(root, RealDisk()).listen()
