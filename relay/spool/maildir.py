"""The maildir engine: one file a message, its folder is its state (table in `layout`).

For the one sender that holds the spool's lock, from one thread at a time.

Guarantees: a status byte, a note, a report, a hold is durable when its method returns,
and happens in the order notes, status bytes, report, ledger, removal, so that a crash
between any two leaves the earlier ones, from which `recover` goes on.  Assumes that
rename is one operation also across loss of power, which POSIX file systems with a log
keep.  Does not: decide what becomes of a message, or build reports.
"""

import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TypeVar

from relay.clock import Clock
from relay.envelope import Envelope, QueueId
from relay.spool import files, notes, record
from relay.spool.durable import Disk, opened
from relay.spool.faults import faults
from relay.spool.fresh import Fresh
from relay.spool.intake import MaildirDraft, MaildirIntake, prepare
from relay.spool.interface import (
    Absent,
    Corrupt,
    Entry,
    Message,
    Note,
    Recovery,
    SpoolFault,
    SpoolFull,
    Status,
    Totals,
)
from relay.spool.layout import Layout, is_queue_id
from relay.spool.ledger import Ledger, fates_of
from relay.spool.lock import take_lock
from relay.spool.recovery import forget_removals, recover, remove_abandoned_drafts

_Called = TypeVar("_Called")

_REMEMBERED = 256
"""Messages whose offsets are kept in memory, so that a mark costs the same for 10,000 recipients."""


class MaildirSpool:
    """The sender's side of a maildir."""

    def __init__(
        self,
        root: str,
        disk: Disk,
        clock: Clock,
        on_corrupt: Callable[[str, str], None] = lambda _n, _w: None,
    ) -> None:
        """Take the spool.  Raises SpoolBusy, OSError, and ValueError for one of another format.

        `on_corrupt` is told the name and the fault of each file that is set aside.
        """
        prepare(root, disk)
        self._layout = Layout(root)
        self._disk = disk
        self._lock_fd = take_lock(self._layout, disk)
        self._on_corrupt = on_corrupt
        self._intake = MaildirIntake(root, disk, clock)
        self._ledger = Ledger(self._layout, disk)
        self._held: set[QueueId] = set()
        self._pending: deque[str] = deque()
        self._fresh = Fresh()
        self._noted: set[str] = set()
        self._remembered: OrderedDict[QueueId, files.Opened] = OrderedDict()
        self._progress: dict[QueueId, tuple[int, int, int, int]] = {}
        self._corrupt = 0
        self._queued_recipients = 0

    def recover(self) -> Recovery:
        """Read everything there is, finish what can be finished, set aside what is damaged.

        Raises OSError; the start must not go on then.
        """
        found, recovery = recover(self._disk, self._layout, self._ledger, self._on_corrupt)
        self._held = {entry.queue_id for entry in recovery.entries if entry.is_held}
        self._progress = {queue_id: fates for queue_id, fates in found.items() if any(fates)}
        self._corrupt = recovery.corrupt
        self._pending.clear()
        self._remembered.clear()
        self._fresh = Fresh()
        self._noted = set(self._disk.names(self._layout.folder("bounce")))
        left = sum(entry.recipients_left for entry in recovery.entries)
        self._queued_recipients = left + recovery.corrupt_recipients
        return recovery

    def take(self, most: int) -> list[Entry]:
        """Take up to `most` newly accepted messages into the queue, oldest first.

        Fewer when we lack descriptors or memory: the rest is still there the next time.
        """
        with faults("new"):
            if len(self._pending) < most:
                # Not only when none is left: what came since the last look was announced once.
                self._pending = deque(sorted(self._disk.names(self._layout.folder("new"))))
            taken = self._take_some(most)
        # What is taken is in the queue, whether or not there is room to count it: `finish` counts again.
        with contextlib.suppress(SpoolFull), faults("ledger"):
            self._ledger.enter([(message.queue_id, len(message.statuses)) for message in taken])
        for message in taken:
            self._fresh.keep(message)
            self._progress[message.queue_id] = fates_of(message.statuses)
            self._queued_recipients += message.statuses.count(Status.TODO)
        return [message.entry(is_held=False) for message in taken]

    def load(self, queue_id: QueueId) -> Message:
        """Read a message.  Raises Absent; Corrupt after setting it aside; OSError for a lack of our own."""
        opened_file = self._fresh.pop(queue_id) or self._read(queue_id, with_content=True)
        message = opened_file.message(is_held=queue_id in self._held)
        opened_file.content = None
        self._remember(opened_file)
        return message

    def content(self, queue_id: QueueId) -> Generator[bytes, None, None]:
        """Stream the content; raises Corrupt *before* the last chunk if the checksum is wrong."""
        path = self._path(queue_id)
        try:
            yield from files.stream(self._disk, path, queue_id)
        except FileNotFoundError as error:
            raise Absent(queue_id) from error
        except Corrupt as fault:
            self._set_aside(path, str(fault))
            raise

    def note(self, noted: Mapping[QueueId, Sequence[Note]]) -> None:
        """Make notes durable."""
        self._noted.update(noted)
        with faults("bounce"):
            notes.append(self._disk, self._layout, self._not_ended(noted))

    def notes(self, queue_id: QueueId) -> list[Note]:
        """Return the notes about a message; some may be missing after damage."""
        with faults("bounce"):
            return notes.read(self._disk, self._layout, queue_id)

    def mark(self, marks: Mapping[QueueId, Mapping[int, Status]]) -> None:
        """Set status bytes durably, each verified to be TODO and of that recipient.

        Raises Absent or Corrupt about one message after those of all others were set.
        """
        fds: list[int] = []
        lost: Absent | Corrupt | None = None
        try:
            with faults("status bytes"):
                for queue_id, of_message in self._not_ended(marks).items():
                    self._fresh.pop(queue_id)
                    try:
                        known = self._known(queue_id)
                    except (Absent, Corrupt) as absence:
                        lost = absence
                        continue
                    fds.append(self._disk.open_update(self._path(queue_id)))
                    self._write_statuses(fds[-1], known, of_message)
                # Crash here: some marks are durable, some are not; each that is not repeats its recipient.
                for error in self._disk.sync_each(fds, content_only=True):
                    if error is not None:
                        raise error
        finally:
            for fd in fds:
                self._disk.close(fd)
        if lost is not None:
            raise lost

    def mark_warned(self, queue_id: QueueId) -> None:
        """Remember durably that the sender was told of the delay."""
        self._fresh.pop(queue_id)
        with (
            faults("status bytes"),
            opened(self._disk, self._disk.open_update(self._path(queue_id))) as fd,
        ):
            record.decode_header(self._disk.pread(fd, record.HEADER_BYTES, 0))
            self._disk.write_at(fd, record.WARNED_BYTE, record.WARNED_OFFSET)
            self._disk.sync_content(fd)

    def postpone(self, queue_id: QueueId, next_attempt_at_ns: int) -> None:
        """Keep the next attempt as a hint; not durable, never raises SpoolFault."""
        self._fresh.pop(queue_id)
        with (
            contextlib.suppress(OSError),
            opened(self._disk, self._disk.open_update(self._path(queue_id))) as fd,
        ):
            self._disk.set_modified_at_ns(fd, next_attempt_at_ns)

    def publish_report(self, queue_id: QueueId, envelope: Envelope, content: bytes) -> bool:
        """Queue a report durably under its derived id; return False if it is there already.

        Raises OSError when there is no room for it; the message it is about must stay then.
        """
        if queue_id in self._ledger.closed:
            # Relayed already, while there was no room to end the message that it is about.
            return False
        for place in (self._layout.accepted, self._layout.queued, self._layout.held):
            if self._disk.inode(place(queue_id)) is not None:
                # Who put it there may have been killed before its name was durable.
                self._disk.sync_directory(place(queue_id).rpartition("/")[0])
                return False
        with contextlib.suppress(FileNotFoundError):
            # Only the sender writes reports, so this is what an earlier attempt left.
            self._disk.unlink(self._layout.draft(queue_id))
        draft = MaildirDraft(queue_id)
        draft.append(content)
        (error,) = self._intake.accept([(draft, envelope)])
        if error is not None:
            raise error
        return True

    def finish(self, queue_ids: Sequence[QueueId]) -> None:
        """Remove messages with nothing left to do, counting them in the ledger first."""
        known = {}
        for queue_id in queue_ids:
            # Absent: this is the second call, after there was no room in the first.
            with contextlib.suppress(Absent, Corrupt):
                known[queue_id] = self._known(queue_id)
        for queue_id, message in known.items():
            if Status.TODO in message.statuses:
                raise AssertionError(f"{queue_id} is to be removed with recipients to do")
        with faults("ledger"):
            self._ledger.enter([(queue_id, len(message.statuses)) for queue_id, message in known.items()])
            self._ledger.leave({queue_id: message.statuses for queue_id, message in known.items()})
        with faults("removal"):
            for queue_id in known:
                # Crash here: counted and all done; the next start removes it, and counts it no more.
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(self._path(queue_id))
            reported = [q for q, message in known.items() if any(s.is_failure for s in message.statuses)]
            for folder in {self._path(queue_id).rpartition("/")[0] for queue_id in reported}:
                # Its report may be relayed from now on: the message must not come back and report again.
                self._disk.sync_directory(folder)
            for queue_id in [queue_id for queue_id in known if queue_id in self._noted]:
                # Also of one that was relayed in the end: its note may be of an attempt before a crash.
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(self._layout.notes(queue_id))
        for queue_id in queue_ids:
            self._held.discard(queue_id)
            self._remembered.pop(queue_id, None)
            self._fresh.pop(queue_id)
            self._progress.pop(queue_id, None)
            self._noted.discard(queue_id)
        if self._ledger.is_long:
            # Where there is no room for a short ledger, the long one goes on.
            with contextlib.suppress(SpoolFull), faults("ledger"):
                forget_removals(self._disk, self._layout, self._ledger)

    def hold(self, queue_id: QueueId) -> None:
        """Set a message aside, durably."""
        self._move(queue_id, self._layout.queued(queue_id), self._layout.held(queue_id))
        self._held.add(queue_id)

    def release(self, queue_id: QueueId) -> None:
        """Bring a held message back, durably."""
        self._move(queue_id, self._layout.held(queue_id), self._layout.queued(queue_id))
        self._held.discard(queue_id)

    def clean_up(self) -> int:
        """Remove drafts of dead listeners; return how many."""
        with faults("clean-up"):
            return remove_abandoned_drafts(self._disk, self._layout)

    def totals(self) -> Totals:
        """Return what ever came in and went, messages still queued included as far as they got."""
        ended = self._ledger.totals
        under_way = [sum(fates) for fates in zip(*self._progress.values(), strict=True)] or [0, 0, 0, 0]
        return Totals(
            ended.accepted,
            ended.relayed + under_way[0],
            ended.bounced + under_way[1],
            ended.expired + under_way[2],
            ended.deleted + under_way[3],
            self._queued_recipients,
        )

    def corrupt_count(self) -> int:
        """Return how many files are set aside as corrupt."""
        return self._corrupt

    def free(self) -> tuple[int, int | None]:
        """Return free bytes and free inodes where messages are stored."""
        return self._intake.free()

    def close(self) -> None:
        """Let go of the spool."""
        self._ledger.close()
        self._disk.close(self._lock_fd)

    def _not_ended(self, called_for: Mapping[QueueId, _Called]) -> dict[QueueId, _Called]:
        """Leave out what was counted out: it is the second call, after `finish` met a full disk."""
        return {q: called for q, called in called_for.items() if q not in self._ledger.closed}

    def _take_some(self, most: int) -> list[files.Opened]:
        taken: list[files.Opened] = []
        while self._pending and len(taken) < most:
            name = self._pending.popleft()
            path = f"{self._layout.folder('new')}/{name}"
            try:
                taken.append(self._take(path, name))
            except (FileNotFoundError, files.StillArriving):
                continue  # its listener met an error and took it back, or is about to pull the trigger
            except Corrupt as fault:
                self._set_aside(path, str(fault))
            except OSError as error:
                if files.is_our_own_lack(error):
                    break
                if not files.is_about_the_file(error):
                    raise
                self._on_corrupt(files.describe(name), f"cannot be taken: {error.strerror}")
        return taken

    def _take(self, path: str, name: str) -> files.Opened:
        if not is_queue_id(name):
            raise Corrupt("not a name that we give")
        queue_id = QueueId(name)
        message = files.read(self._disk, path, queue_id, with_content=self._fresh.has_room, is_new=True)
        home = self._layout.queued(queue_id)
        if any(self._disk.inode(place) is not None for place in (home, self._layout.held(queue_id))):
            raise Corrupt("a message of this id is queued already")
        if self._disk.inode(self._layout.draft(queue_id)) is not None:
            # Its listener died between publishing it and making that durable.
            self._disk.sync_directory(self._layout.folder("new"))
        # Crash here, or after the rename: accepted or queued, the next start finds either.
        self._disk.rename(path, home)
        return message

    def _path(self, queue_id: QueueId) -> str:
        return self._layout.held(queue_id) if queue_id in self._held else self._layout.queued(queue_id)

    def _read(self, queue_id: QueueId, *, with_content: bool) -> files.Opened:
        path = self._path(queue_id)
        try:
            return files.read(self._disk, path, queue_id, with_content=with_content)
        except FileNotFoundError as error:
            raise Absent(queue_id) from error
        except Corrupt as fault:
            self._set_aside(path, str(fault))
            raise

    def _known(self, queue_id: QueueId) -> files.Opened:
        return self._remembered.get(queue_id) or self._remember(self._read(queue_id, with_content=False))

    def _remember(self, opened_file: files.Opened) -> files.Opened:
        self._remembered[opened_file.queue_id] = opened_file
        if len(self._remembered) > _REMEMBERED:
            self._remembered.popitem(last=False)
        return opened_file

    def _write_statuses(self, fd: int, known: files.Opened, marks: Mapping[int, Status]) -> None:
        if self._disk.size(fd) != known.header.file_bytes:
            raise SpoolFault(f"{known.queue_id} changed its length under us")
        for index, status in marks.items():
            line = known.envelope.recipients[index].encode() + b"\n"
            found = self._disk.pread(fd, len(line) + 1, known.offsets[index])
            if found not in (Status.TODO.value + line, status.value + line):
                raise SpoolFault(f"{known.queue_id} has another line than recipient {index} to do")
            self._disk.write_at(fd, status.value, known.offsets[index])
            self._queued_recipients -= known.statuses[index] is Status.TODO
            known.statuses[index] = status
        self._progress[known.queue_id] = fates_of(known.statuses)

    def _move(self, queue_id: QueueId, source: str, target: str) -> None:
        with faults("hold"):
            try:
                self._disk.rename(source, target)
            except FileNotFoundError as error:
                raise Absent(queue_id) from error
            # Crash here: held or not held; nobody was told yet.
            self._disk.sync_directory(target.rpartition("/")[0])
            self._disk.sync_directory(source.rpartition("/")[0])

    def _set_aside(self, path: str, fault: str) -> None:
        name = files.describe(path.rpartition("/")[2])
        self._on_corrupt(name, fault)
        try:
            files.set_aside(self._disk, self._layout, path)
        except OSError as error:
            self._on_corrupt(name, f"cannot be set aside: {error.strerror}")
            return
        self._corrupt += 1
