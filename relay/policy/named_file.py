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
    """What became of watched files since the last look."""

    NOTHING = enum.auto()
    REREAD = enum.auto()
    """Read by request, and as before."""
    CHANGED = enum.auto()
    """What they say now is in force."""
    REFUSED = enum.auto()
    """They changed, or were asked for, and cannot be used: what was in force stays."""


class WatchedFiles(Generic[T]):
    """What some files say together, read anew when they have changed.

    Guarantees: files that are not whole or not fit for use change nothing: the last good ones stay in force,
    and they are read again until they are good.  A change counts once the files stayed as they are from one
    look to the next, or at once by request.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], T]) -> None:
        """Read them for the first time: what `read` raises is passed on; later it may raise SecretError."""
        self.paths = tuple(paths)
        self.error = ""
        """Why they cannot be used as they are now."""
        self._read = read
        self._decided = self._seen = self._marks()
        """Of what was read and loaded or refused; as of the last look."""
        self.in_force = read()

    def look(self, *, is_asked: bool = False) -> FileChange:
        marks = self._marks()
        is_settled, self._seen = marks == self._seen, marks
        is_new = marks != self._decided
        if not is_asked and not (is_settled and (is_new or self.error)):
            return FileChange.NOTHING
        self._decided = marks
        try:
            files = self._read()
        except SecretError as error:
            self.error = str(error)
            return FileChange.REFUSED if is_new or is_asked else FileChange.NOTHING
        is_changed = bool(self.error) or files != self.in_force
        self.error, self.in_force = "", files
        if is_changed:
            return FileChange.CHANGED
        return FileChange.REREAD if is_asked else FileChange.NOTHING

    def _marks(self) -> list[tuple[int, ...] | None]:
        """Return what changes when a file does, for each; None for one that is not there."""
        return [_mark(path) for path in self.paths]


def _mark(path: Path) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - as the open that follows: at the end of symbolic links
    except (OSError, ValueError):
        return None
    # Not the time of the last access, which is what reading changes.
    return (*status[:3], status.st_size, status.st_mtime_ns, status.st_ctime_ns)


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
