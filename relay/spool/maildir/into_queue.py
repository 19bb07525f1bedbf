"""From new/, cur/ and hold/ into the queue: what a file there is, and what becomes of it.

| found                                                | becomes                                      |
| ---------------------------------------------------- | -------------------------------------------- |
| a name that we do not give; a damaged file; a copy   | moved to corrupt/                            |
| gone; still arriving                                 | nothing: its listener tells of it            |
| a second name, which a crash kept beside another     | dropped                                      |
| what the disk or its owner does not give us now      | left, told of once, read again by and by     |
| all done, and counted out in the ledger              | removed                                      |
| whole, in its home or not                            | queued, in its home                          |

The start (`recovery`), the sender at work (`NewMail`, `Unread`) and fsck (`inspection`, which
only looks) decide by this table.  Of two files of one id a held one goes before a queued one, and
that before any other: what an operator stopped stays stopped.

Guarantees: a message is taken once.  Raises OSError only for a lack of our own or a disk that fails.
Assumes: the holder of the spool's lock, but for `look`.  Does not: count.
"""

import enum
from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass

from relay.mail.envelope import QueueId
from relay.queue.sorting import Sorter
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.os_errors import is_our_own_lack
from relay.spool.faults import is_about_the_file
from relay.spool.identity import is_queue_id
from relay.spool.interface import Corrupt, Status
from relay.spool.maildir import status_bytes
from relay.spool.maildir.layout import Layout, is_published
from relay.spool.message import files
from relay.spool.message.message_file import Opened
from relay.spool.root.foreign import NOT_OUR_NAME
from relay.spool.root.quarantine import Quarantine

FAILURES_AN_HOUR = 8
"""How often `Unread` asks a disk that fails between two calls of `look_again`, which come hourly."""


class Found(enum.Enum):
    FOREIGN = enum.auto()
    DAMAGED = enum.auto()
    COPY = enum.auto()
    GONE = enum.auto()
    ARRIVING = enum.auto()
    SECOND_NAME = enum.auto()
    UNREADABLE = enum.auto()
    COUNTED_OUT = enum.auto()
    MISPLACED = enum.auto()
    AT_HOME = enum.auto()


class Becomes(enum.Enum):
    NOTHING = enum.auto()
    SET_ASIDE = enum.auto()
    DROPPED = enum.auto()
    LEFT = enum.auto()
    REMOVED = enum.auto()
    QUEUED = enum.auto()


BECOMES = {
    Found.FOREIGN: Becomes.SET_ASIDE,
    Found.DAMAGED: Becomes.SET_ASIDE,
    Found.COPY: Becomes.SET_ASIDE,
    Found.GONE: Becomes.NOTHING,
    Found.ARRIVING: Becomes.NOTHING,
    Found.SECOND_NAME: Becomes.DROPPED,
    Found.UNREADABLE: Becomes.LEFT,
    Found.COUNTED_OUT: Becomes.REMOVED,
    Found.MISPLACED: Becomes.QUEUED,
    Found.AT_HOME: Becomes.QUEUED,
}


@dataclass(frozen=True, slots=True)
class LookedAt:
    found: Found
    why: str = ""
    message: Opened | None = None
    other: str = ""
    """Where the file is that goes before it."""

    @property
    def becomes(self) -> Becomes:
        return BECOMES[self.found]

    @property
    def queued(self) -> Opened | None:
        return None if self.found is Found.COUNTED_OUT else self.message


def look(
    disk: Disk,
    layout: Layout,
    path: str,
    read: Callable[[QueueId], Opened],
    counted_out: Container[QueueId] = (),
) -> LookedAt:
    """Judge a file and change nothing; `read` is called once its name and place allow a message."""
    name = path.rpartition("/")[2]
    if not is_queue_id(name):
        return LookedAt(Found.FOREIGN, NOT_OUR_NAME)
    queue_id = QueueId(name)
    held, home = layout.held(queue_id), layout.queued(queue_id)
    # The places that go before this one.
    before = () if path == held else (held,) if path == home else (held, home)
    try:
        for place in before:
            if (other := disk.inode(place)) is not None and (inode := disk.inode(path)) is not None:
                return _of_two(place, is_one=inode == other)
        message = read(queue_id)
    except FileNotFoundError:
        return LookedAt(Found.GONE)
    except files.StillArriving:
        return LookedAt(Found.ARRIVING)
    except Corrupt as fault:
        return LookedAt(Found.DAMAGED, str(fault))
    except OSError as error:
        return _unreadable(error)
    if Status.TODO not in message.statuses and queue_id in counted_out:
        # A crash came between its `out` in the ledger and its removal.
        return LookedAt(Found.COUNTED_OUT, message=message)
    return LookedAt(Found.AT_HOME if path in (held, home) else Found.MISPLACED, message=message)


def _of_two(place: str, *, is_one: bool) -> LookedAt:
    if is_one:
        return LookedAt(Found.SECOND_NAME, other=place)
    return LookedAt(Found.COPY, "a message of this id is queued already", other=place)


def _unreadable(error: OSError) -> LookedAt:
    if not is_about_the_file(error):
        raise error
    return LookedAt(Found.UNREADABLE, str(error.strerror))


class Taker:
    def __init__(
        self,
        disk: Disk,
        layout: Layout,
        aside: Quarantine,
        set_aside: Callable[[str, str], object],
        remove: Callable[[str], None],
    ) -> None:
        """`set_aside` is given the path of what is no message, and why; `remove` that of what has ended."""
        self._disk = disk
        self._layout = layout
        self._aside = aside
        self._set_aside = set_aside
        self._remove = remove

    def take(
        self,
        path: str,
        counted_out: Container[QueueId],
        *,
        with_content: bool = False,
        with_marks: bool = False,
        sorter: Sorter | None = None,
    ) -> LookedAt:
        """Do what the table says; a message that is queued is in its home then.

        Recipients whose report a crash left without their marks are marked: another that joined them would
        change the id of their report.
        `with_marks`: its marks are durable too, which a killed sender may have left in memory only.
        """
        is_new = self._layout.is_new(path)

        def read(queue_id: QueueId) -> Opened:
            return files.read(
                self._disk, path, queue_id, with_content=with_content, is_new=is_new, sorter=sorter
            )

        seen = look(self._disk, self._layout, path, read, counted_out)
        try:
            if with_marks and seen.queued is not None:
                status_bytes.write_marks_again(self._disk, [(path, seen.queued)])
            if seen.queued is not None:
                self._mark_what_was_reported(path, seen.queued, counted_out)
            self._carry_out(path, seen, is_new=is_new)
        except FileNotFoundError:
            seen = LookedAt(Found.GONE)
        except OSError as error:
            seen = _unreadable(error)
        if seen.found is Found.UNREADABLE:
            self._aside.leave(path, f"cannot be taken: {seen.why}")
        elif seen.becomes is not Becomes.SET_ASIDE:
            self._aside.forget(path)
        return seen

    def _mark_what_was_reported(self, path: str, message: Opened, counted_out: Container[QueueId]) -> None:
        if Status.TODO not in message.statuses or (owed := message.owed_report) is None:
            return
        own = owed.report_id
        if own in counted_out or is_published(self._disk, self._layout, own):
            if message.reported:
                # Those may be in memory only: a killed sender's, or one's whose sync failed. If a cut took
                # them and left the first, they would be owed to a report of their own.
                status_bytes.write_marks_again(self._disk, [(path, message)])
            with opened(self._disk, self._disk.open_update(path)) as fd:
                # Crash here: the next start finds the report too.
                status_bytes.mark_reported(self._disk, fd, message, owed.indices)

    def _carry_out(self, path: str, seen: LookedAt, *, is_new: bool) -> None:
        match seen.becomes:
            case Becomes.SET_ASIDE:
                self._set_aside(path, seen.why)
            case Becomes.DROPPED:
                self._disk.unlink(path)
            case Becomes.REMOVED:
                # Crash here: it is found counted out by the next start too.
                self._remove(path)
            case Becomes.QUEUED if seen.found is Found.MISPLACED:
                queue_id = QueueId(path.rpartition("/")[2])
                if is_new and self._disk.inode(self._layout.draft(queue_id)) is not None:
                    # Its listener died between publishing it and making that durable.
                    self._disk.sync_directory(self._layout.folder("new"))
                # Crash here, or after the rename: accepted or queued, the next start finds either.
                self._disk.rename(path, self._layout.queued(queue_id))
            case _:
                pass


class NewMail:
    """The messages in new/ of one spool: taken oldest first."""

    def __init__(self, disk: Disk, layout: Layout, taker: Taker) -> None:
        self._disk = disk
        self._folder = layout.folder("new")
        self._taker = taker
        self._pending: deque[str] = deque()

    def take(
        self,
        most: int,
        has_room: Callable[[], bool],
        counted_out: Container[QueueId],
        sorter: Sorter | None = None,
    ) -> list[Opened]:
        """Take with content while it `has_room`; fewer messages where we lack descriptors or memory."""
        if len(self._pending) < most:
            # Not only when none is left: what came since the last look was announced once.
            self._pending = deque(sorted(self._disk.names(self._folder)))
        taken: list[Opened] = []
        while self._pending and len(taken) < most:
            path = f"{self._folder}/{self._pending.popleft()}"
            try:
                seen = self._taker.take(path, counted_out, with_content=has_room(), sorter=sorter)
            except OSError as error:
                if is_our_own_lack(error):
                    break
                raise
            if seen.queued is not None:
                taken.append(seen.queued)
        return taken


class Unread:
    """The messages in cur/ and hold/ that had to be left, read again now and then.

    A failing disk is asked FAILURES_AN_HOUR times, once a call: each answer may take it half a minute.
    """

    def __init__(self, disk: Disk, layout: Layout, aside: Quarantine, taker: Taker) -> None:
        self._disk = disk
        self._layout = layout
        self._aside = aside
        self._taker = taker
        self._due: deque[str] = deque()
        self._failures = 0

    def look_again(self) -> None:
        folders = (*self._layout.queued_folders(), self._layout.folder("hold"))
        self._due = deque(self._aside.left_in(folders))
        self._failures = 0

    def take(
        self, most: int, counted_out: Container[QueueId], sorter: Sorter | None = None
    ) -> list[tuple[Opened, bool]]:
        """Return up to `most` messages that can be read and marked by now, and whether each is held."""
        taken: list[tuple[Opened, bool]] = []
        while self._due and len(taken) < most:
            path = self._due.popleft()
            try:
                # With its content: what is damaged and cannot be moved must not come back each hour.
                seen = self._taker.take(path, counted_out, with_content=True, with_marks=True, sorter=sorter)
            except OSError as error:
                if is_our_own_lack(error):
                    self._due.appendleft(path)
                    break
                self._aside.leave(path, f"cannot be taken: {error.strerror}")
                seen = LookedAt(Found.UNREADABLE)
            if seen.becomes is Becomes.LEFT:
                self._failures += 1
                if self._failures >= FAILURES_AN_HOUR:
                    self._due.clear()
                break
            if seen.queued is not None:
                taken.append((seen.queued, path == self._layout.held(seen.queued.queue_id)))
        return taken
