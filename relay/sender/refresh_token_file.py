"""A refresh token on disk: replaced whole, durable before it is used, and never in the place of a newer one.

Guarantees: a token that `rotate` or `write` put there is durable when the call returns.  A crash leaves the
old token or the new one, whole, in a file of mode 0600.  A token that another process put there meanwhile
(`relay login`, another relay) stays.
Assumes: every writer takes the lock file beside it, PATH.lock, as `rotate` and `write` do.
"""

from contextlib import AbstractContextManager
from pathlib import Path

from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.replacing import put_in_place

LARGEST_BYTES = 16 * 1024


class RefreshTokenFile:
    def __init__(self, path: Path, disk: Disk) -> None:
        self._path, self._disk = str(path), disk

    def read(self) -> str | None:
        """Return the token, None without a file.  Raises OSError and ValueError."""
        if self._disk.inode(self._path) is None:
            return None
        with opened(self._disk, self._disk.open_read(self._path)) as fd:
            return self._disk.pread(fd, LARGEST_BYTES, 0).decode("utf-8").rstrip("\r\n")

    def rotate(self, old: str, new: str) -> bool:
        """Replace the token `old`, with which `new` was got; durable when this returns.

        Returns False if the file has a third token: that one is newer.  Raises OSError and ValueError.
        """
        with self._locked():
            # The file may have the new token already, from an attempt whose last sync failed.
            if self.read() not in {old, new}:
                return False
            self._put(new)
            return True

    def write(self, token: str) -> None:
        """Put a token in the place of any other, durably.  Raises OSError."""
        with self._locked():
            self._put(token)

    def _locked(self) -> AbstractContextManager[int]:
        fd = self._disk.lock(f"{self._path}.lock", wait=True)
        if fd is None:
            raise AssertionError("lock(wait=True) returned no lock")
        return opened(self._disk, fd)

    def _put(self, token: str) -> None:
        # Crash here: the file has the old token, or the new one.
        self._disk.close(put_in_place(self._disk, self._path, f"{token}\n".encode()))
