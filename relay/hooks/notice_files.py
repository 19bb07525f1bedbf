"""The notices that wait, on disk: a file for each, beside the spool.  Synchronous; one caller at a time.

Guarantees: once `write` returned, the notice is read by the next start; a file is there whole or not at
all.  `write` leaves new mail its headroom.  Files whose names are not ours stay as they are.
Does not: sync a removal.  After a loss of power a notice that was told may be told again.
"""

import contextlib
import re
from typing import NamedTuple

from relay.hooks.notice import Notice, read_notice
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.replacing import replace_file
from relay.spool.root.headroom import leave_headroom

LARGEST_BYTES = 256 * 1024
"""Far above a notice of MOST_RECIPIENTS, each with a reply that JSON escapes."""
_NAME = re.compile(r"(?P<id>notice_[0-9]{20}_[0-9a-f]{8})\.(?P<key>[0-9a-f]{12})\Z")


class KeptNotice(NamedTuple):
    notice: Notice
    key: str
    """Of its hook."""


class NoticeFiles:
    def __init__(self, folder: str, disk: Disk) -> None:
        self._folder = folder
        self._disk = disk

    def read(self) -> tuple[list[KeptNotice], list[str]]:
        """Return what waits, the oldest first, and what cannot be read of it.  Raises OSError.

        Removes drafts, and our files that hold no notice: nobody could be told of them.
        """
        if self._disk.inode(self._folder) is None:
            return [], []
        kept, unread = [], []
        for name in sorted(self._disk.names(self._folder)):
            if _NAME.match(name.removesuffix(".new")) and name.endswith(".new"):
                self._disk.unlink(self._path(name))
            elif found := _NAME.match(name):
                try:
                    notice = self._read(name)
                    if notice.notice_id != found["id"]:
                        raise ValueError("another notice's name")
                except (OSError, ValueError) as error:
                    unread.append(f"{name}: {error}")
                    with contextlib.suppress(OSError):
                        self._disk.unlink(self._path(name))
                else:
                    kept.append(KeptNotice(notice, found["key"]))
        return kept, unread

    def write(self, kept: KeptNotice) -> None:
        """Keep a notice.  Raises OSError, also where new mail needs the room that is left."""
        self._disk.make_directory(self._folder)
        content = kept.notice.content
        leave_headroom(self._disk.free(self._folder), 2 * len(content))
        # Crash here: nobody is told; the log alone has it.
        replace_file(self._disk, self._path(_name(kept)), content)

    def remove(self, kept: KeptNotice) -> None:
        """Let a notice go; fine if it is not there.  Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            # Crash here, or a loss of power soon after: it is told again, with the same id.
            self._disk.unlink(self._path(_name(kept)))

    def _read(self, name: str) -> Notice:
        with opened(self._disk, self._disk.open_read(self._path(name))) as fd:
            if self._disk.size(fd) > LARGEST_BYTES:
                raise ValueError("too large for a notice")
            return read_notice(self._disk.pread(fd, LARGEST_BYTES, 0))

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"


def _name(kept: KeptNotice) -> str:
    return f"{kept.notice.notice_id}.{kept.key}"
