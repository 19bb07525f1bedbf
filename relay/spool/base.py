"""What the engines on a disk share: the lock, reading, quarantine, and that a report is there once.

An engine says where a message lies (`_at`), and adds what it knows apart from the message's bytes (`_known`).
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence

from relay.mail.envelope import QueueId, is_notice
from relay.spool.disk.durable import Disk
from relay.spool.errors import kernel_errors, of_kernel
from relay.spool.identity import warning_id
from relay.spool.interface import (
    Absent,
    Corrupt,
    Full,
    Message,
    SetAside,
    Settlement,
    SpoolLook,
    Status,
    Unavailable,
)
from relay.spool.message import reading
from relay.spool.message.reading import Stretch
from relay.spool.root.lock import take_lock
from relay.spool.root.quarantine import OnCorrupt, Quarantine

PAGE_BYTES = 4 * 1024 * 1024
"""Of content, that comes with one `claim` about."""
Failure = Full | Absent | Corrupt | Unavailable


class BaseSpool(ABC):
    def __init__(self, root: str, disk: Disk, on_corrupt: OnCorrupt) -> None:
        """Raise SpoolBusy and OSError."""
        self._root = root
        self._disk = disk
        self._lock_fd = take_lock(root, disk)
        self._aside = Quarantine(disk, root, on_corrupt)

    @abstractmethod
    def _at(self, queue_id: QueueId) -> contextlib.AbstractContextManager[Stretch]:
        """Return where a message lies.  Raises Absent, Corrupt, OSError."""

    @abstractmethod
    def _known(self, message: Message) -> Message:
        """Return what was read, with what else the engine knows of it.  Raises Corrupt, OSError."""

    @abstractmethod
    def _set_aside(self, queue_id: QueueId, why: str) -> None:
        """Take a damaged message out of the queue, for a human being."""

    @abstractmethod
    def _unclaimed(self) -> int:
        """Return how many messages `claim` has yet to return, about.  Raises OSError."""

    def read(self, queue_ids: Sequence[QueueId]) -> list[Message | Absent | Corrupt | Unavailable]:
        return [self._read(queue_id) for queue_id in queue_ids]

    def content(self, queue_id: QueueId) -> Iterator[bytes]:
        try:
            with self._at(queue_id) as at:
                yield from reading.stream(self._disk, at)
        except Corrupt as fault:
            self._set_aside(queue_id, str(fault))
            raise
        except OSError as error:
            raise Unavailable(str(error.strerror)) from error

    def look(self) -> SpoolLook:
        with kernel_errors("look"):
            free_bytes, free_inodes = self._disk.free(self._root)
            return SpoolLook(free_bytes, free_inodes, self._aside.count(), self._unclaimed())

    def set_aside(self, most: int) -> list[SetAside]:
        with kernel_errors("corrupt"):
            return self._aside.list(most)

    def close(self) -> None:
        self._disk.close(self._lock_fd)

    def _read(self, queue_id: QueueId) -> Message | Absent | Corrupt | Unavailable:
        try:
            with self._at(queue_id) as at:
                return self._known(reading.read(self._disk, at, queue_id))
        except Absent as absent:
            return absent
        except Corrupt as fault:
            self._set_aside(queue_id, str(fault))
            return fault
        except OSError as error:
            return Unavailable(str(error.strerror))


def told_by(message: Message, notices: Collection[QueueId]) -> tuple[Sequence[int], bool]:
    """Return of which recipients, and whether of its delay, a crash left the report or warning, and no mark.

    `notices` are the reports and warnings that are there.
    """
    if not notices or is_notice(message.queue_id):
        return (), False
    owed = message.owed_report
    told = owed.indices if owed is not None and owed.report_id in notices else ()
    return told, not message.is_warned and warning_id(message.queue_id) in notices


class Group:
    """The settlements of one call, and why some of them are not done."""

    def __init__(self, settlements: Sequence[Settlement]) -> None:
        self._settlements = settlements
        self.results: list[Failure | None] = [None] * len(settlements)

    def going(
        self, asks: Callable[[Settlement], object] = lambda _each: True
    ) -> list[tuple[int, Settlement]]:
        """Return those that nothing keeps from going on, and that ask for something."""
        pairs = enumerate(self._settlements)
        return [(i, each) for i, each in pairs if self.results[i] is None and asks(each)]

    def fail(self, index: int, failure: Failure | OSError) -> None:
        self.results[index] = of_kernel(failure) if isinstance(failure, OSError) else failure

    def marks(self) -> Iterator[tuple[int, dict[int, Status]]]:
        """Yield what to mark: of what finds no room only whom the upstream took it for."""
        for index, each in enumerate(self._settlements):
            failure = self.results[index]
            if failure is None:
                yield index, dict(each.marks)
            elif isinstance(failure, Full | Unavailable):
                yield index, {i: status for i, status in each.marks.items() if status.is_relayed}
