"""The kernel's disk, but for files that it does not let us open."""

import errno
import os

from relay.spool.disk.durable import RealDisk


class Denying(RealDisk):
    """Refuses to open some files for reading, or to read what was opened, by an error of the test's."""

    def __init__(self, part: str, error: int, *, when_read: bool = False) -> None:
        """`part` is in the path of each file that is refused."""
        super().__init__()
        self._part = part
        # The constructor makes it PermissionError or FileNotFoundError where the number says so.
        self._error = OSError(error, os.strerror(error))
        self._when_read = when_read
        self._refused: set[int] = set()

    def open_read(self, path: str) -> int:
        if self._part not in path:
            return super().open_read(path)
        if not self._when_read:
            raise self._error
        fd = super().open_read(path)
        self._refused.add(fd)
        return fd

    def close(self, fd: int) -> None:
        super().close(fd)
        self._refused.discard(fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        if fd in self._refused:
            raise self._error
        return super().pread(fd, size, offset)


DENIED, GONE, BROKEN, TOO_MANY = errno.EACCES, errno.ENOENT, errno.EIO, errno.EMFILE
