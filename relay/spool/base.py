"""What the engines on a disk share: the lock of the queue, reading, and setting damaged messages aside.

An engine locates a message (`_at`) and adds the facts that it keeps outside the message's bytes (`_known`).
"""

import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from relay.clock import Clock
from relay.mail.envelope import Envelope, QueueId
from relay.spool.disk.durable import Disk
from relay.spool.disk.os_errors import is_lack_of_room, is_not_now
from relay.spool.errors import kernel_errors, of_kernel
from relay.spool.interface import (
    Absent,
    Adopted,
    Corrupt,
    Full,
    Message,
    SetAside,
    Settlement,
    SpoolCounts,
    Status,
    Unavailable,
)
from relay.spool.message import reading
from relay.spool.message.reading import Stretch
from relay.spool.root.lock import take_lock
from relay.spool.root.quarantine import OnCorrupt, Quarantine, describe

PAGE_BYTES = 4 * 1024 * 1024
"""A `claim` ends its page once the page has this much content."""
READ_AGAIN_NS = 60_000_000_000
"""`claim` tries an unreadable message again after this time; a disk takes long to report a lost sector."""
Failure = Full | Absent | Corrupt | Unavailable


class BaseSpool(ABC):
    is_shared = False

    def __init__(self, root: str, form: bytes, disk: Disk, clock: Clock, on_corrupt: OnCorrupt) -> None:
        """Take the lock.  Raises SpoolBusy, OSError, and ValueError for a spool of another format."""
        self._root = root
        self._disk = disk
        self._clock = clock
        self._lock_fd = take_lock(root, disk, form)
        self._aside = Quarantine(disk, root, on_corrupt)
        self._ahead: deque[str] = deque()
        """Names of the messages to claim next.  An engine decides what a name is: a path, or a queue id."""
        self._on_corrupt = on_corrupt
        self._unread: dict[str, str] = {}
        """Names of the messages that could not be read or set aside, and why.  They are left in place."""
        self._reads_again_at_ns = 0

    @abstractmethod
    def settle(self, settlements: Sequence[Settlement]) -> list[Failure | None]: ...

    @abstractmethod
    def _claimed(self, name: str) -> Message | None:
        """Claim the message of a name; return None if there is none, or not yet.  Raises OSError."""

    @abstractmethod
    def _at(self, queue_id: QueueId) -> contextlib.AbstractContextManager[Stretch]:
        """Return a context that gives the open message.  Raises Absent, Corrupt, OSError."""

    @abstractmethod
    def _known(self, message: Message, at: Stretch) -> Message:
        """Return the message with the facts that the engine keeps elsewhere.  Raises Corrupt, OSError."""

    @abstractmethod
    def _set_aside(self, queue_id: QueueId, why: str) -> None:
        """Take a damaged message out of the queue, and keep it for an operator.  Raises OSError."""

    @abstractmethod
    def _take(self, messages: Sequence[tuple[QueueId, Envelope, Iterable[bytes]]]) -> None:
        """Queue messages durably; skip those that are queued already.  Raises Full, Unavailable, OSError."""

    @abstractmethod
    def _unclaimed(self) -> int:
        """Return about how many messages `claim` has yet to return.  Raises OSError."""

    def read(self, queue_ids: Sequence[QueueId]) -> list[Message | Absent | Corrupt | Unavailable]:
        return [self._read(queue_id) for queue_id in queue_ids]

    def content(self, queue_id: QueueId) -> Iterator[bytes]:
        try:
            with self._at(queue_id) as at:
                yield from reading.stream(self._disk, at)
        except Corrupt as fault:
            raise self._damaged(queue_id, fault) from fault
        except OSError as error:
            raise Unavailable(str(error.strerror)) from error

    def adopt(self, adopted: Sequence[Adopted]) -> None:
        with kernel_errors("adopted messages"):
            self._take([(each.message.queue_id, each.message.envelope, each.content) for each in adopted])
        # Crash here: the messages are queued without statuses and facts; the caller adopts them again.
        for failure in self.settle([adopting_settlement(each.message) for each in adopted]):
            if failure is not None:
                raise failure

    def look(self) -> SpoolCounts:
        with kernel_errors("look"):
            free_bytes, free_inodes = self._disk.free(self._root)
            corrupt = self._aside.count() + len(self._unread)
            return SpoolCounts(free_bytes, free_inodes, corrupt, self._unclaimed())

    def set_aside(self, most: int) -> list[SetAside]:
        left = [
            SetAside(describe(name), 0, 0, "", 0, f"left in place: {why}")
            for name, why in [*self._unread.items()][:most]
        ]
        with kernel_errors("corrupt"):
            return left + self._aside.list(most - len(left))

    def close(self) -> None:
        self._disk.close(self._lock_fd)

    def _page(self, most: int) -> list[Message]:
        """Claim the next page.  Raises OSError only if no message is claimed before the error."""
        page: list[Message] = []
        size_bytes = 0
        while self._ahead and len(page) < most and size_bytes < PAGE_BYTES:
            name = self._ahead[0]
            try:
                message = self._claimed(name)
                self._unread.pop(name, None)
            except OSError as error:
                if not (is_not_now(error) or is_lack_of_room(error)):
                    if page:
                        break  # return these now: no later call claims them again
                    raise
                message, why = None, f"cannot be read now: {error.strerror}"
                if name not in self._unread:
                    self._on_corrupt(describe(name), why)
                self._unread[name] = why
                self._reads_again_at_ns = self._clock.boottime_ns() + READ_AGAIN_NS
            self._ahead.popleft()
            if message is not None:
                page.append(message)
                size_bytes += len(message.head)
        return page

    def _due_again(self) -> list[str]:
        """Return the names that could not be read, once it is time to try again."""
        is_time = self._clock.boottime_ns() >= self._reads_again_at_ns
        return sorted(self._unread) if is_time else []

    def _read(self, queue_id: QueueId) -> Message | Absent | Corrupt | Unavailable:
        try:
            with self._at(queue_id) as at:
                return self._known(reading.read(self._disk, at, queue_id), at)
        except Absent as absent:
            return absent
        except Corrupt as fault:
            return self._damaged(queue_id, fault)
        except OSError as error:
            return Unavailable(str(error.strerror))

    def _damaged(self, queue_id: QueueId, fault: Corrupt) -> Corrupt | Unavailable:
        """Set a damaged message aside; return the answer about it."""
        try:
            self._set_aside(queue_id, str(fault))
        except OSError as error:
            return Unavailable(f"{fault}; cannot be set aside: {error.strerror}")
        return fault


def adopting_settlement(message: Message) -> Settlement:
    """Return the settlement that gives a newly adopted message its statuses and facts."""
    return Settlement(
        message.queue_id,
        message.envelope,
        {index: status for index, status in enumerate(message.statuses) if status is not Status.TODO},
        message.notes,
        told=sorted(message.told),
        is_warned=message.is_warned,
        next_attempt_at_ns=message.next_attempt_at_ns or message.envelope.arrival_at_ns,
        is_held=message.is_held or None,
    )


class Group:
    """The settlements of one call, and for each of them why it failed, or None."""

    def __init__(self, settlements: Sequence[Settlement]) -> None:
        self._settlements = settlements
        self.results: list[Failure | None] = [None] * len(settlements)

    def unfailed(
        self, asks: Callable[[Settlement], object] = lambda _each: True
    ) -> list[tuple[int, Settlement]]:
        """Return the settlements for which `asks` is true and no step failed, each with its index."""
        pairs = enumerate(self._settlements)
        return [(i, each) for i, each in pairs if self.results[i] is None and asks(each)]

    def fail(self, index: int, failure: Failure | OSError) -> None:
        self.results[index] = of_kernel(failure) if isinstance(failure, OSError) else failure

    def marks(self) -> Iterator[tuple[int, dict[int, Status]]]:
        """Yield the marks to write: of a settlement that is Full or Unavailable, only relayed recipients."""
        for index, each in enumerate(self._settlements):
            failure = self.results[index]
            if failure is None:
                yield index, dict(each.marks)
            elif isinstance(failure, Full | Unavailable):
                yield index, {i: status for i, status in each.marks.items() if status.is_relayed}
