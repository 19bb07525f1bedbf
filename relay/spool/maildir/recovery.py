"""Starting is recovering: what a maildir holds after any crash, made whole again.

Guarantees: whatever files a crash left, nothing acknowledged is dropped and nothing is sent twice
that was durably marked.  Running it twice, or being killed in the middle, changes nothing of this.
What it returns is durable: a killed sender leaves names and status bytes that every process sees and
the disk does not have.  No queue content stops it.  Raises OSError when the disk cannot be read: an
unreadable folder is never taken for an empty one.
Assumes: the caller ends the messages with nothing left to do, as soon as there is room for that.
"""

import contextlib
from collections.abc import Callable

from relay.mail.envelope import QueueId
from relay.queue.sorting import Sorter
from relay.spool import foreign, quarantine
from relay.spool.durable import Disk, opened, why_a_strangers
from relay.spool.identity import is_queue_id, subject_of
from relay.spool.interface import Entry, Recovery
from relay.spool.ledger import Fates, fates_of
from relay.spool.maildir import crash_remains, files
from relay.spool.maildir.into_queue import Taker
from relay.spool.maildir.layout import NOT_OUR_NAME, Layout
from relay.spool.maildir.ledger_file import LedgerFile
from relay.spool.maildir.message_file import Opened
from relay.spool.os_errors import is_our_own_lack

_MARKED_AT_ONCE = 64


def recover(
    disk: Disk,
    layout: Layout,
    ledger: LedgerFile,
    aside: quarantine.Quarantine,
    sorter: Sorter | None = None,
    *,
    on_step: Callable[[], None] = lambda: None,
) -> tuple[dict[QueueId, Fates], Recovery]:
    """Return how far each queued message got, and what was found; `on_step` is called for each file."""
    aside.stuck.clear()
    abandoned = remove_abandoned_drafts(disk, layout, aside, on_step)
    quarantine.clear_the_way(disk, layout.root, aside, crash_remains.NEEDED)
    _clear_the_notes(disk, layout, aside)
    walk = _Walk(disk, layout, ledger, aside, sorter, on_step=on_step)
    ledger.read()
    # Who held or released a message may have been killed before that was durable, and now it is seen.
    disk.sync_directory(layout.folder("hold"))
    # Held first: where a crash kept both names, what an operator stopped stays stopped.
    walk.look_into(layout.folder("hold"))
    for folder in layout.queued_folders():
        walk.look_into(folder)
    walk.look_into(layout.folder("new"))
    walk.write_marks_again()
    accepted = {QueueId(name) for name in disk.names(layout.folder("new"))} - walk.ended - aside.stuck.keys()
    in_corrupt = {quarantine.subject_name(name) for name in aside.recount()}
    set_aside = in_corrupt | aside.stuck.keys()
    # Seen in corrupt/ by the last start and gone since: somebody decided about it, by hand.
    removed = ledger.forget(ledger.aside - set(walk.fates) - accepted - set_aside)
    elsewhere = {queue_id for queue_id in ledger.open if queue_id not in walk.fates} - accepted
    missing = sum(ledger.open[queue_id] for queue_id in elsewhere - set_aside)
    # Not what is stuck: nobody decides about it, and if it is gone the next time it is missed.
    ledger.aside = elsewhere & in_corrupt
    ledger.reopen(walk.fates)
    if ledger.closed:
        # A message that was counted out must not come back when the new ledger has forgotten it.
        _sync_all(disk, layout, {layout.queued_folder(queue_id) for queue_id in ledger.closed}, on_step)
    _begin_ledger(ledger, walk, aside)
    for path in walk.remains:
        # Only now: what was read of the old ledger need not have been durable.
        disk.unlink(path)
        on_step()
    _remove_orphaned_notes(disk, layout, aside, {*walk.fates, *accepted, *set_aside}, on_step)
    entries = tuple(sorted(walk.entries, key=lambda entry: entry.queue_id))
    recovery = Recovery(
        entries,
        aside.count,
        abandoned,
        missing,
        sum(ledger.open[queue_id] for queue_id in elsewhere & set_aside),
        accepted=walk.taken + len(accepted - set(walk.fates)),
        resumed=sum(0 < entry.recipients_left < walk.counts[entry.queue_id] for entry in entries),
        set_aside=aside.moved,
        removed_recipients=removed,
        damaged_lines=ledger.damaged_lines,
    )
    return walk.fates, recovery


def _begin_ledger(ledger: LedgerFile, walk: "_Walk", aside: quarantine.Quarantine) -> None:
    """Write a short ledger and count in what is queued; on a full disk go on with the long one."""
    try:
        # Rewriting brings the file into being; entering then needs it.
        reported = {q for q in ledger.closed if subject_of(q) in walk.fates}
        ledger.rewrite(still_there=walk.ended | reported | _unread(ledger, aside))
    except OSError as error:
        if not is_our_own_lack(error):
            raise
        ledger.go_on()
    try:
        ledger.enter(list(walk.counts.items()))
    except OSError as error:
        # Who ends a message counts it in again.
        if not is_our_own_lack(error):
            raise
    ledger.share_ids(walk.counts)


def forget_removals(disk: Disk, layout: Layout, ledger: LedgerFile, aside: quarantine.Quarantine) -> None:
    """Rewrite the ledger while the queue is in use.  Raises OSError."""
    _sync_all(disk, layout, set(layout.queued_folders()))
    ledger.rewrite(still_there=_unread(ledger, aside))


def _unread(ledger: LedgerFile, aside: quarantine.Quarantine) -> set[QueueId]:
    """Return what was counted out and cannot be read now: it may be there, and must not count twice."""
    return ledger.closed & aside.stuck.keys()


def remove_abandoned_drafts(
    disk: Disk, layout: Layout, aside: quarantine.Quarantine, on_step: Callable[[], None] = lambda: None
) -> int:
    """Remove drafts whose writer is dead; return how many.  Also run now and then.

    A writer is dead when its lock is free.  No clock and no time of a file counts, so no step of a clock
    removes a message that is just arriving, or keeps what a dead listener left.
    What is no draft of ours goes to corrupt/.
    """
    # One that was published has this name too, the sign that its other name may not be durable yet.
    disk.sync_directory(layout.folder("new"))
    removed = 0
    for name in disk.names(layout.folder("tmp")):
        on_step()
        path = f"{layout.folder('tmp')}/{name}"
        if not is_queue_id(name):
            aside.move(path, NOT_OUR_NAME, "tmp-")
            continue
        try:
            fd = disk.open_update(path)
        except FileNotFoundError:
            continue  # its writer was quicker
        except OSError as error:
            aside.move_unusable(path, error, "tmp-")
            continue
        with opened(disk, fd):
            if not disk.lock_open(fd):
                continue
            try:
                why = why_a_strangers(disk, fd, path)
                if why is None and not crash_remains.is_draft(disk, fd, QueueId(name)):
                    why = "not written by us"
            except OSError as error:
                aside.move_unusable(path, error, "tmp-")
                continue
            if why is not None:
                aside.move(path, why, "tmp-")
                continue
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(path)
                removed += 1
    return removed


def _clear_the_notes(disk: Disk, layout: Layout, aside: quarantine.Quarantine) -> None:
    for name in disk.names(layout.folder("bounce")):
        path = f"{layout.folder('bounce')}/{name}"
        why: str | None = NOT_OUR_NAME
        if is_queue_id(name):
            try:
                why = foreign.why_not_ours(disk, path, crash_remains.is_notes, disk.open_update)
            except OSError as error:
                aside.move_unusable(path, error, "bounce-")
                continue
        if why is not None:
            # Its name must not be taken for that of a message that is set aside.
            aside.move(path, why, "bounce-")


class _Walk:
    def __init__(
        self,
        disk: Disk,
        layout: Layout,
        ledger: LedgerFile,
        aside: quarantine.Quarantine,
        sorter: Sorter | None,
        *,
        on_step: Callable[[], None],
    ) -> None:
        self._sorter = sorter
        self._on_step = on_step
        self._disk = disk
        self._layout = layout
        self._ledger = ledger
        self.remains: list[str] = []
        """Messages that were counted out, and not yet removed when a crash came."""
        self._taker = Taker(disk, layout, aside, aside.move, self.remains.append)
        self.entries: list[Entry] = []
        self.fates: dict[QueueId, Fates] = {}
        self.counts: dict[QueueId, int] = {}
        """How many recipients each message has."""
        self.taken = 0
        """How many were in new/."""
        self._homes: set[str] = set()
        self._marked: list[tuple[str, Opened]] = []

    @property
    def ended(self) -> set[QueueId]:
        return {QueueId(path.rpartition("/")[2]) for path in self.remains}

    def look_into(self, folder: str) -> None:
        for name in self._disk.names(folder):
            self._on_step()
            path = f"{folder}/{name}"
            # What was brought here from another folder just now was seen there.
            if path not in self._homes:
                seen = self._taker.take(path, self._ledger.closed, sorter=self._sorter)
                if seen.queued is not None:
                    self._enter(seen.queued, path)

    def write_marks_again(self) -> None:
        files.write_marks_again(self._disk, self._marked)
        self._marked.clear()

    def _enter(self, message: Opened, path: str) -> None:
        queue_id = message.queue_id
        is_held = path == self._layout.held(queue_id)
        home = path if is_held else self._layout.queued(queue_id)
        self.taken += self._layout.is_new(path)
        self._homes.add(home)
        entry = message.entry(is_held=is_held)
        self.entries.append(entry)
        self.fates[queue_id] = fates_of(message.statuses)
        self.counts[queue_id] = len(message.statuses)
        if entry.recipients_left < len(message.statuses):
            self._marked.append((home, message))
            if len(self._marked) == _MARKED_AT_ONCE:
                self.write_marks_again()


def _sync_all(
    disk: Disk, layout: Layout, queued_folders: set[str], on_step: Callable[[], None] = lambda: None
) -> None:
    for folder in (layout.folder("new"), layout.folder("hold"), *sorted(queued_folders)):
        disk.sync_directory(folder)
        on_step()


def _remove_orphaned_notes(
    disk: Disk, layout: Layout, aside: quarantine.Quarantine, known: set[str], on_step: Callable[[], None]
) -> None:
    """Remove notes whose message is gone, not those of a corrupt one; others' files go to corrupt/."""
    for name in disk.names(layout.folder("bounce")):
        on_step()
        # What is no file of ours was moved away, or could not be.
        if not is_queue_id(name) or name in known:
            continue
        path = layout.notes(QueueId(name))
        with contextlib.suppress(OSError):
            if (why := foreign.why_not_ours(disk, path, crash_remains.is_notes_only, disk.open_read)) is None:
                disk.unlink(path)
            else:
                aside.move(path, f"among notes: {why}", "bounce-")
