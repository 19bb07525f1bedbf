"""The owner's side of the maildir: one file for each message; the folder is its state (table in `layout`).

Guarantees: a settlement writes notes, status bytes, report, told and end, in this order.  A crash between two
steps leaves the earlier ones, and the next start continues from there.  If a crash left a report without the
mark in its message, the start marks the message before it claims either.
Assumes: one thread at a time calls; rename is atomic, also across loss of power.
Does not: sync an end.  A message that loss of power brings back has no recipient left and owes no report.  On
btrfs it may come back under the name from before it was held, although the hold was synced.
"""

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from relay.clock import Clock
from relay.mail.dsn import Note
from relay.mail.envelope import Envelope, QueueId, is_notice
from relay.spool.base import BaseSpool, Failure, Group
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.os_errors import error_of
from relay.spool.errors import kernel_errors
from relay.spool.identity import is_queue_id, warning_id
from relay.spool.interface import Absent, Corrupt, Message, Settlement
from relay.spool.maildir.intake import MaildirIntake
from relay.spool.maildir.layout import FORMAT, MaildirLayout, prepare
from relay.spool.maildir.marks import Marks, told_in_two_steps
from relay.spool.message import notes, reading
from relay.spool.message.draft import remove_abandoned
from relay.spool.message.reading import Stretch
from relay.spool.root.quarantine import OnCorrupt

LARGEST_NOTES_BYTES = 64 * 1024 * 1024
"""Ten times what 10,000 refused recipients need; notes beyond this are not read."""
_PLAUSIBLE_DEFERRAL_NS = 1_000_000_000
"""A file modified less than this after its arrival was never postponed."""


class MaildirSpool(BaseSpool):
    def __init__(
        self, root: str, disk: Disk, clock: Clock, on_corrupt: OnCorrupt = lambda _n, _w: None
    ) -> None:
        """Become the owner of the queue.  Raises as `prepare` does, and SpoolBusy."""
        prepare(root, disk)
        super().__init__(root, FORMAT, disk, clock, on_corrupt)
        self._layout = MaildirLayout(root)
        self._reports = MaildirIntake(root, disk, clock, headroom=False)
        self._held: set[QueueId] = set()
        self._noted: set[QueueId] = set()
        """Messages that have a file of notes."""
        self._untold: set[QueueId] = set()
        """Reports whose messages are not marked as told yet; `claim` skips them until then."""
        self._notices: frozenset[QueueId] = frozenset()
        """Reports and warnings that the start found."""
        self._is_started = False

    def claim(self, most: int) -> list[Message]:
        with kernel_errors("claim"):
            if not self._is_started:
                self._start()
            elif not self._ahead:
                self._ahead.extend(self._next())
            return self._page(most)

    def settle(self, settlements: Sequence[Settlement]) -> list[Failure | None]:
        group = Group(settlements)
        self._note(group)
        with contextlib.ExitStack() as files:
            marks = self._mark(group, settlements, files)
            # Crash here: all recipients marked; the next start publishes the report and ends the message.
            self._publish(group, marks)
            # Crash here: the next start finds the report, and marks its message before it claims either.
            self._tell(group, marks)
        self._postpone(group)
        self._hold(group)
        self._end(group, marks)
        return group.results

    def tidy(self) -> int:
        with kernel_errors("tidy"):
            return remove_abandoned(self._disk, self._layout.drafts)

    def _start(self) -> None:
        """List all messages, oldest first.  If an id has two files, the held one wins."""
        there: dict[str, str] = {}
        for folder in (self._layout.hold, *self._layout.queued_folders(), self._layout.new):
            for name in self._disk.names(folder):
                if is_queue_id(name):
                    self._find(there, name, f"{folder}/{name}")
        self._held = {QueueId(name) for name, path in there.items() if path.startswith(self._layout.hold)}
        self._notices = frozenset({QueueId(name) for name in there if is_notice(QueueId(name))})
        for name in self._disk.names(self._layout.notes):
            if name in there:
                self._noted.add(QueueId(name))
            elif is_queue_id(name):
                # A crash interrupted the end of the message.
                with contextlib.suppress(OSError):
                    self._disk.unlink(f"{self._layout.notes}/{name}")
        self.tidy()
        self._ahead = deque(there[name] for name in sorted(there))
        self._is_started = True

    def _find(self, there: dict[str, str], name: str, path: str) -> None:
        """Keep one path of an id: btrfs logs folders apart, so a crash may leave both names of a rename."""
        first = there.setdefault(name, path)
        if first == path:
            return
        if self._disk.inode(first) == self._disk.inode(path):
            self._disk.unlink(path)
        else:
            self._aside.move(path, "another message with this id is queued already")

    def _next(self) -> list[str]:
        """Return new messages of listeners, and from time to time those that could not be read."""
        paths = sorted(self._accepted())
        if not self._unread:
            self._notices = frozenset()
        return [path for path in paths if path not in self._unread] + self._due_again()

    def _accepted(self) -> list[str]:
        return [f"{self._layout.new}/{name}" for name in self._disk.names(self._layout.new)]

    def _claimed(self, name: str) -> Message | None:
        """Claim the message at a path, and move it to its home."""
        path, queue_id = name, QueueId(name.rpartition("/")[2])
        is_new = path.startswith(f"{self._layout.new}/")
        if not is_queue_id(queue_id) or queue_id in self._untold:
            return None
        try:
            with opened(self._disk, self._disk.open_update(path)) as fd:
                # The listener holds this lock until the message is durable; then it pulls the trigger.
                if is_new and not self._disk.lock_open(fd):
                    return None
                at = Stretch(fd, self._disk.size(fd))
                message = self._marked_as_told(fd, reading.read(self._disk, at, queue_id))
                message = self._known(message, at)
            if is_new:
                if self._disk.inode(self._layout.queued(queue_id)) is not None:
                    raise Corrupt("another message with this id is queued already")
                # Crash here, or after the rename: the next start finds the message in new/ or in cur/.
                self._disk.rename(path, self._layout.queued(queue_id))
            return message
        except FileNotFoundError:
            return None
        except Corrupt as fault:
            self._aside.move(path, str(fault))
        return None

    def _marked_as_told(self, fd: int, message: Message) -> Message:
        """Mark a message as told or warned if the report or warning exists: a crash prevented its mark."""
        if not self._notices or is_notice(message.queue_id):
            return message
        owed = message.owed_report
        told = owed.indices if owed is not None and owed.report_id in self._notices else ()
        is_warned = not message.is_warned and warning_id(message.queue_id) in self._notices
        if not told and not is_warned:
            return message
        hint_ns = self._disk.modified_at_ns(fd)
        marks = Marks(self._disk, fd, message.envelope)
        for some in told_in_two_steps(told, ends=not marks.has_left):
            marks.tell(some)
            self._disk.sync_content(fd)
        if is_warned:
            marks.warn()
            self._disk.sync_content(fd)
        self._disk.set_modified_at_ns(fd, hint_ns)
        is_warned = is_warned or message.is_warned
        return message._replace(told=message.told.union(told), is_warned=is_warned)

    def _with_hint(self, fd: int, message: Message) -> Message:
        at_ns = self._disk.modified_at_ns(fd)
        is_hint = at_ns > message.envelope.arrival_at_ns + _PLAUSIBLE_DEFERRAL_NS
        return message._replace(next_attempt_at_ns=at_ns) if is_hint else message

    @contextlib.contextmanager
    def _at(self, queue_id: QueueId) -> Iterator[Stretch]:
        try:
            with opened(self._disk, self._disk.open_read(self._home(queue_id))) as fd:
                yield Stretch(fd, self._disk.size(fd))
        except FileNotFoundError:
            raise Absent(queue_id) from None

    def _known(self, message: Message, at: Stretch) -> Message:
        queue_id, message = message.queue_id, self._with_hint(at.fd, message)
        if queue_id in self._noted and message.owed_report is not None:
            message = message.with_notes(self._notes_of(queue_id))
        return message._replace(is_held=True) if queue_id in self._held else message

    def _notes_of(self, queue_id: QueueId) -> tuple[Note, ...]:
        for _ in range(2):
            with (
                contextlib.suppress(OSError),
                opened(self._disk, self._disk.open_read(f"{self._layout.notes}/{queue_id}")) as fd,
            ):
                return notes.latest(self._disk.pread(fd, LARGEST_NOTES_BYTES, 0))
        # A report without reasons is better than none.
        return ()

    def _set_aside(self, queue_id: QueueId, why: str) -> None:
        self._aside.move(self._home(queue_id), why)

    def _unclaimed(self) -> int:
        return len(self._ahead) or len({*self._unread, *self._accepted()})

    def _home(self, queue_id: QueueId) -> str:
        return self._layout.home(queue_id, is_held=queue_id in self._held)

    def _note(self, group: Group) -> None:
        noted = group.unfailed(lambda each: each.notes)
        fds: list[int] = []
        written: dict[int, int] = {}
        for index, each in noted:
            try:
                fds.append(self._disk.open_append(f"{self._layout.notes}/{each.queue_id}"))
                self._noted.add(each.queue_id)
                self._disk.write_all(fds[-1], notes.encode(each.notes))
                written[index] = fds[-1]
            except OSError as error:
                group.fail(index, error)
        self._sync(group, written)
        for fd in fds:
            self._disk.close(fd)
        if noted and (failed := error_of(self._disk.sync_directory, self._layout.notes)) is not None:
            for index, _ in noted:
                group.fail(index, failed)

    def _mark(
        self, group: Group, settlements: Sequence[Settlement], files: contextlib.ExitStack
    ) -> dict[int, tuple[int, Marks]]:
        """Write and sync status bytes; return the open files of the messages that the next steps use."""
        there: dict[int, tuple[int, Marks]] = {}
        marked: dict[int, int] = {}
        for index, marks in group.marks():
            each = settlements[index]
            if not (marks or each.told or each.is_warned or each.ends):
                continue
            path = self._home(each.queue_id)
            try:
                fd = files.enter_context(opened(self._disk, self._disk.open_update(path)))
                lines = Marks(self._disk, fd, each.envelope)
                lines.mark(marks)
            except FileNotFoundError:
                # A repeated end finds no file, and succeeds.
                if not each.ends:
                    group.fail(index, Absent(each.queue_id))
                continue
            except Corrupt as fault:
                group.fail(index, self._damaged(each.queue_id, fault))
                continue
            except OSError as error:
                group.fail(index, error)
                continue
            there[index] = fd, lines
            marked |= {index: fd} if marks else {}
        # Crash here: some marks are durable; each other recipient is sent to again.
        self._sync(group, marked)
        return there

    def _publish(self, group: Group, marks: dict[int, tuple[int, Marks]]) -> None:
        asked = group.unfailed(lambda each: each.report)
        # The report of a repeated settlement may be relayed already, and gone.
        asked = [(i, each) for i, each in asked if i in marks and not marks[i][1].are_told(each.told)]
        if not asked:
            return
        reports = [
            (each.report.queue_id, each.report.envelope, [each.report.content])
            for _, each in asked
            if each.report is not None
        ]
        # Also a report that fails: the disk may refuse to remove it again.
        self._untold.update(queue_id for queue_id, _, _ in reports)
        for (index, _), failure in zip(asked, self._reports.publish(reports), strict=True):
            if failure is not None:
                group.fail(index, failure)

    def _tell(self, group: Group, marks: dict[int, tuple[int, Marks]]) -> None:
        asked = group.unfailed(lambda each: each.told or each.is_warned)
        asked = [(index, each) for index, each in asked if index in marks]
        for is_last in (False, True):
            written: dict[int, int] = {}
            for index, each in asked:
                told = told_in_two_steps(each.told, ends=each.ends)[is_last]
                warns = each.is_warned and not is_last
                if group.results[index] is not None or not (told or warns):
                    continue
                fd, lines = marks[index]
                try:
                    hint_ns = self._disk.modified_at_ns(fd)
                    lines.tell(told)
                    if warns:
                        lines.warn()
                    self._disk.set_modified_at_ns(fd, hint_ns)
                    written[index] = fd
                except OSError as error:
                    group.fail(index, error)
            self._sync(group, written)
        for index, each in asked:
            if group.results[index] is None and each.report is not None:
                self._untold.discard(each.report.queue_id)

    def _take(self, messages: Sequence[tuple[QueueId, Envelope, Iterable[bytes]]]) -> None:
        for failure in filter(None, self._reports.publish(messages)):
            raise failure
        for queue_id, _, _ in messages:
            with contextlib.suppress(FileNotFoundError):  # queued before
                # Crash here: the next start finds the message in new/ or in cur/.
                self._disk.rename(f"{self._layout.new}/{queue_id}", self._layout.queued(queue_id))

    def _postpone(self, group: Group) -> None:
        for _, each in group.unfailed(lambda each: each.next_attempt_at_ns is not None):
            path = self._home(each.queue_id)
            with contextlib.suppress(OSError), opened(self._disk, self._disk.open_update(path)) as fd:
                self._disk.set_modified_at_ns(fd, each.next_attempt_at_ns or 0)

    def _hold(self, group: Group) -> None:
        asked = group.unfailed(lambda each: each.is_held is not None)
        touched: set[str] = set()
        for index, each in asked:
            source = self._layout.home(each.queue_id, is_held=not each.is_held)
            target = self._layout.home(each.queue_id, is_held=bool(each.is_held))
            try:
                if self._disk.inode(target) is None:
                    self._disk.rename(source, target)
            except FileNotFoundError:
                group.fail(index, Absent(each.queue_id))
                continue
            except OSError as error:
                group.fail(index, error)
                continue
            (self._held.add if each.is_held else self._held.discard)(each.queue_id)
            touched |= {path.rpartition("/")[0] for path in (source, target)}
        # Crash here: some messages are held, some are not; no caller has an answer yet.
        for folder in sorted(touched):
            if (failed := error_of(self._disk.sync_directory, folder)) is not None:
                for index, _ in asked:
                    group.fail(index, failed)

    def _end(self, group: Group, marks: dict[int, tuple[int, Marks]]) -> None:
        for index, each in group.unfailed(lambda each: each.ends):
            if index in marks and marks[index][1].has_left:
                raise AssertionError(f"{each.queue_id} cannot be removed: it has recipients left to do")
            try:
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(self._home(each.queue_id))
            except OSError as error:
                group.fail(index, error)
                continue
            if each.queue_id in self._noted:
                # The next start removes notes that stay.
                with contextlib.suppress(OSError):
                    self._disk.unlink(f"{self._layout.notes}/{each.queue_id}")
            self._held.discard(each.queue_id)
            self._noted.discard(each.queue_id)

    def _sync(self, group: Group, fds: dict[int, int]) -> None:
        results = self._disk.sync_each(list(fds.values()), content_only=True)
        for index, error in zip(fds, results, strict=True):
            if error is not None:
                group.fail(index, error)
