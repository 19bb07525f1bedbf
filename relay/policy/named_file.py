"""Opens the policy file and the files that the policy names.

Guarantees: only a regular file is read, also behind symbolic links, and at most one byte more than asked for.
A FIFO or a device under the name does not block.
Does not: help if the server of a network file system is gone; there every call waits.
"""

import errno
import os
import stat
from pathlib import Path


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


def read_regular(path: Path, most_bytes: int) -> tuple[bytes, os.stat_result]:
    """Return the content and the status of a regular file; of a longer file, `most_bytes` and one byte.

    Raises OSError.
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
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most_bytes + 1), status
    finally:
        os.close(descriptor)
