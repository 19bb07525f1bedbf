"""A refresh token on disk: replaced whole, durable before it is used, and never in the place of a newer one.

Guarantees: what `rotate` or `write` returned for is durable; at any instant a crash leaves
the token that was there or the new one, whole, in a file of mode 0600; a token that somebody else put there
meanwhile (`relay login`, another relay) stays.
Assumes: whoever writes it takes the lock beside it, PATH.lock, as both ends of this do.
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
        """Return the token, or None where there is no file.  Raises OSError and ValueError."""
        if self._disk.inode(self._path) is None:
            return None
        with opened(self._disk, self._disk.open_read(self._path)) as fd:
            return self._disk.pread(fd, LARGEST_BYTES, 0).decode("utf-8").rstrip("\r\n")

    def rotate(self, old: str, new: str) -> bool:
        """Put a new token in the place of the one that it came for; durable when this returns.

        Returns False where another one is there by now: that one is newer.  Raises OSError and ValueError.
        """
        with self._locked():
            # What is there may be the new one, of an attempt whose last sync failed.
            if self.read() not in {old, new}:
                return False
            self._put(new)
            return True

    def write(self, token: str) -> None:
        """Put a token there, whatever there was.  Raises OSError."""
        with self._locked():
            self._put(token)

    def _locked(self) -> AbstractContextManager[int]:
        fd = self._disk.lock(f"{self._path}.lock", wait=True)
        if fd is None:
            raise AssertionError("a lock that was waited for")
        return opened(self._disk, fd)

    def _put(self, token: str) -> None:
        # Crash in here: the old one is in force, or the new one.
        self._disk.close(put_in_place(self._disk, self._path, f"{token}\n".encode()))
