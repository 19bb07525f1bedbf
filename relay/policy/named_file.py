"""Opens and watches the policy file and the files that the policy names.

Guarantees: only a regular file is read, also behind symbolic links, and at most one byte more than asked for.
A FIFO or a device under the name does not block.
Does not: help if the server of a network file system is gone; there every call waits.
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
    """A secret, or another file that a policy names, is missing or unusable.

    `words` never quote the content.  `str` adds the name of the file or the variable.  A fault of a policy
    has `words` only: in a wrong policy the name may be the password itself.
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
    """The files' content was put in force; after a request also if it is as before."""
    REFUSED = enum.auto()
    """The files are unusable, and they changed or a look was requested.  The last good content stays."""


class WatchedFiles(Generic[T]):
    """The common content of several files, read again at each look.

    Guarantees: incomplete or unusable files change nothing: the last good content stays in force, and the
    files are read at each look until they are good.  A change counts once two successive looks read the same
    content, or at once by request.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], T]) -> None:
        """Read the files; an error of `read` is passed on.  At a look `read` may raise SecretError only."""
        self.paths = tuple(paths)
        self.error = ""
        """Why the files are unusable; empty if they are good."""
        self._read = read
        self.in_force = read()
        self._decided: T | str = self.in_force
        self._seen: T | str = self.in_force
        """The content or the error: `_decided` was loaded or refused last, `_seen` is from the last look."""

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
    """Return the content of a regular file; of a longer file, `most_bytes` and one byte.

    Raises OSError, and any error of `check`, which gets the status of the open file.
    """
    try:
        # O_NONBLOCK: a FIFO without a writer must not block the open, before fstat can refuse it.
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
