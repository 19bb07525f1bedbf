"""What an error is about: us, the room on the disk, one file, or a disk that does not answer now."""

import errno

import pytest

from relay.spool.disk.os_errors import is_lack_of_means, is_lack_of_room, is_not_now, is_our_own_lack


@pytest.mark.parametrize(
    ("number", "means", "room", "ours"),
    [
        (errno.EMFILE, True, False, True),
        (errno.ENOBUFS, True, False, True),
        (errno.ENOSPC, False, True, True),
        (errno.EDQUOT, False, True, True),
        (errno.EINTR, False, False, True),
        (errno.EIO, False, False, False),
        (errno.EACCES, False, False, False),
    ],
)
def test_a_lack_of_ours_is_of_means_of_room_or_of_time(
    number: int, *, means: bool, room: bool, ours: bool
) -> None:
    error = OSError(number, "why")

    assert (is_lack_of_means(error), is_lack_of_room(error), is_our_own_lack(error)) == (means, room, ours)


def test_a_disk_that_fails_now_tells_nothing_of_the_file() -> None:
    assert is_not_now(OSError(errno.EIO, "lost"))
    assert not is_not_now(OSError(errno.EACCES, "denied"))
