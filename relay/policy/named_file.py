"""How a file that an owner names is opened and watched: the policy itself, and every file that it points to.

Guarantees: nothing here blocks on a FIFO or a device, whatever stands under the name; only
a regular file is read, at the end of symbolic links as well; never more than was asked for.
Does not: help against a network file system whose server is gone; there every call waits.
"""

import enum
import errno
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


class SecretError(ValueError):
    """A secret, or another file that a policy names, is not there or not fit for use.

    The words never hold what is in it.  `str` names the file or the variable.  A fault of a policy has the
    words alone: where a policy is not good yet, the name may be the password itself.
    """

    def __init__(self, words: str, named: object = "") -> None:
        super().__init__(words)
        self.words = words
        self.named = named

    def __str__(self) -> str:
        return f"{self.named}: {self.words}" if self.named else self.words


class FileChange(enum.Enum):
    NOTHING = enum.auto()
    CHANGED = enum.auto()
    """What they say now is in force; by request also where it is as before."""
    REFUSED = enum.auto()
    """They changed, or were asked for, and cannot be used: what was in force stays."""


class WatchedFiles(Generic[T]):
    """What some files say together, read at each look.

    Guarantees: files that are not whole or not fit for use change nothing: the last good ones stay in force,
    and they are read again until they are good.  A change counts once the files say the same at two looks, or
    at once by request.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], T]) -> None:
        """Read them for the first time: what `read` raises is passed on; later it may raise SecretError."""
        self.paths = tuple(paths)
        self.error = ""
        """Why they cannot be used as they are now."""
        self._read = read
        self.in_force = read()
        self._decided: T | str = self.in_force
        self._seen: T | str = self.in_force
        """What they said, or why they could not be used: when it was loaded or refused; at the last look."""

    def look(self, *, is_asked: bool = False) -> FileChange:
        try:
            now: T | str = self._read()
        except SecretError as error:
            now = str(error)
        is_settled, self._seen = now == self._seen, now
        if not is_asked and (not is_settled or now == self._decided):
            return FileChange.NOTHING
        self._decided = now
        if isinstance(now, str):
            self.error = now
            return FileChange.REFUSED
        self.error, self.in_force = "", now
        return FileChange.CHANGED


def read_regular(path: Path, most_bytes: int, check: Callable[[os.stat_result], None] | None = None) -> bytes:
    """Return what a regular file holds; where that is more than allowed, one byte more.

    Raises OSError, and what `check` raises of the file that was opened.
    """
    try:
        # O_NONBLOCK: a FIFO without a writer must not stop us before fstat tells it apart.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except ValueError:
        raise OSError(errno.EINVAL, "not a path") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if check is not None:
            check(status)
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most_bytes + 1)
    finally:
        os.close(descriptor)
