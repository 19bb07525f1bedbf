"""Moves damaged messages to corrupt/.

Guarantees: a move deletes nothing and replaces nothing.
Assumes: the caller owns the queue.  Does not: decide what is damaged (the engine does).
"""

from collections.abc import Callable

from relay.mail.envelope import QueueId
from relay.mail.text import clean
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.replacing import put_in_place
from relay.spool.identity import is_queue_id
from relay.spool.interface import Corrupt, SetAside
from relay.spool.message import reading
from relay.spool.message.reading import Stretch

OnCorrupt = Callable[[str, str], None]
"""Called with the name and the fault of each message that is set aside or left in place."""


class Quarantine:
    def __init__(self, disk: Disk, root: str, on_corrupt: OnCorrupt) -> None:
        self._disk = disk
        self._folder = corrupt_folder(root)
        self._on_corrupt = on_corrupt

    def move(self, path: str, why: str) -> None:
        """Move a file to corrupt/.  Raises OSError."""
        # Crash here: the next start finds the file damaged again.
        self._disk.rename(path, self._free_path(path.rpartition("/")[2]))
        self._on_corrupt(describe(path), why)
        self._disk.sync_directory(self._folder)

    def keep(self, name: str, content: bytes, why: str) -> None:
        """Copy the damaged part of a file that stays to corrupt/.  Raises OSError."""
        with opened(self._disk, put_in_place(self._disk, self._free_path(name), content)):
            self._on_corrupt(describe(name), why)

    def count(self) -> int:
        """Return how many entries corrupt/ has.  Raises OSError."""
        return len(self._disk.names(self._folder))

    def list(self, most: int) -> list[SetAside]:
        """Return the first `most` entries.  Raises OSError if the folder cannot be read."""
        return [self._listed(name) for name in sorted(self._disk.names(self._folder))[:most]]

    def _listed(self, name: str) -> SetAside:
        size_bytes = modified_at_ns = 0
        try:
            with opened(self._disk, self._disk.open_read(f"{self._folder}/{name}")) as fd:
                size_bytes, modified_at_ns = self._disk.size(fd), self._disk.modified_at_ns(fd)
                queue_id = name.partition(".")[0]
                if not is_queue_id(queue_id):
                    raise Corrupt("no message")
                message = reading.read(self._disk, Stretch(fd, size_bytes), QueueId(queue_id))
        except (Corrupt, OSError) as fault:
            why = str(fault) if isinstance(fault, Corrupt) else f"cannot be read: {fault.strerror}"
            return SetAside(describe(name), size_bytes, modified_at_ns, "", 0, why)
        arrival_at_ns, reverse_path = message.envelope.arrival_at_ns, message.envelope.reverse_path
        why = "is readable; see the log for the reason it was set aside"
        return SetAside(describe(name), size_bytes, arrival_at_ns, reverse_path, len(message.left), why)

    def _free_path(self, name: str) -> str:
        path, number = f"{self._folder}/{name}", 0
        while self._disk.inode(path) is not None:
            number += 1
            path = f"{self._folder}/{name}.{number}"
        return path


def corrupt_folder(root: str) -> str:
    return f"{root}/corrupt"


def describe(path: str) -> str:
    return clean(path.rpartition("/")[2])[:80]
