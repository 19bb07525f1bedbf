"""Moves damaged messages to corrupt/.

Guarantees: a move deletes nothing and replaces nothing.  A message that cannot be moved, or cannot be read
now, is reported once, counted, and left in place.
Assumes: the caller owns the queue.  Does not: decide what is damaged (the engine does).
"""

import contextlib
from collections.abc import Callable

from relay.mail.envelope import QueueId
from relay.mail.text import clean
from relay.spool.disk.durable import Disk, opened
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
        self._left: dict[str, str] = {}
        """What was left in place: its path, and why."""

    def move(self, path: str, why: str) -> None:
        """Move a file to corrupt/, or leave it in place if the disk refuses that."""
        name = path.rpartition("/")[2]
        try:
            # Crash here: the next start finds the file damaged again.
            self._disk.rename(path, self._free_path(name))
            self._disk.sync_directory(self._folder)
        except OSError as error:
            self.record_left(path, f"{why}; cannot be moved to corrupt/: {error.strerror}")
        else:
            self._on_corrupt(describe(name), why)

    def keep(self, name: str, content: bytes, why: str) -> bool:
        """Copy the damaged part of a file that stays to corrupt/; return whether the copy was made."""
        try:
            self._copy(self._free_path(name), content)
        except OSError as error:
            self.record_left(name, f"{why}; cannot be copied to corrupt/: {error.strerror}")
            return False
        self._on_corrupt(describe(name), why)
        return True

    def record_left(self, path: str, why: str) -> None:
        """Record and report, once, that something is left in place."""
        if path not in self._left:
            self._left[path] = why
            self._on_corrupt(describe(path.rpartition("/")[2]), why)

    def forget_left(self, path: str) -> None:
        """Undo `record_left`: the message could be read."""
        self._left.pop(path, None)

    def has_left(self, path: str) -> bool:
        return path in self._left

    def count(self) -> int:
        """Return how many entries corrupt/ has and how many were left in place, together.  Raises OSError."""
        return len(self._disk.names(self._folder)) + len(self._left)

    def list(self, most: int) -> list[SetAside]:
        """Return `most` entries at most.  Raises OSError if the folder cannot be read."""
        listed = [
            SetAside(describe(path.rpartition("/")[2]), 0, 0, "", 0, f"left in place: {why}")
            for path, why in self._left.items()
        ]
        names = sorted(self._disk.names(self._folder))[: max(0, most - len(listed))]
        return listed[:most] + [self._listed(name) for name in names]

    def _copy(self, path: str, content: bytes) -> None:
        with opened(self._disk, self._disk.open_new(path)) as fd:
            try:
                self._disk.write_all(fd, content)
                self._disk.sync(fd)
            except OSError:
                with contextlib.suppress(OSError):
                    self._disk.unlink(path)
                raise
        self._disk.sync_directory(self._folder)

    def _listed(self, name: str) -> SetAside:
        size_bytes = modified_at_ns = 0
        try:
            with opened(self._disk, self._disk.open_read(f"{self._folder}/{name}")) as fd:
                size_bytes, modified_at_ns, _ = self._disk.status(fd)
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


def describe(name: str) -> str:
    return clean(name)[:80]
