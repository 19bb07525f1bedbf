"""Looks at a whole maildir spool and says what is not as it should be; changes nothing.

Guarantees: takes no lock, writes nothing, follows no link, never blocks on a FIFO, so it may run
beside a sender and its listeners.  Every content is compared with its checksum.  What moves to the
next folder meanwhile is looked for again before it is called missing or double; any other finding
may have passed already.  Raises OSError where a folder cannot be read.
Does not: repair.  A start does that, as each finding says.
"""

import os
import stat
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from relay.mail.envelope import QueueId
from relay.spool.disk.durable import Disk, opened
from relay.spool.disk.os_errors import is_not_now
from relay.spool.finding import STOPS_THE_START, Finding, Inspection, unreadable
from relay.spool.identity import is_queue_id
from relay.spool.inspecting import ASIDE, LOOK, RootInspector, kind_of
from relay.spool.interface import Corrupt, Status, Unreadable
from relay.spool.maildir import crash_remains
from relay.spool.maildir.into_queue import Found, LookedAt, look
from relay.spool.maildir.layout import FORMAT, Layout
from relay.spool.maildir.ledger_file import LedgerFile
from relay.spool.message import files
from relay.spool.message.arriving import is_draft
from relay.spool.message.message_file import Opened
from relay.spool.message.notes import parse
from relay.spool.root import foreign
from relay.spool.root.foreign import NOT_OUR_NAME
from relay.spool.root.quarantine import subject_name

_FOLDERS = ("tmp", "new", "cur", "hold", "corrupt", "bounce")
_FILES = ("lock", "ledger", "trigger", "format", "reserve", "boots", "control.sock")
_NEW_ASIDE = "moved to corrupt/ when the relay next meets it, never sent, never deleted"
_SEND_OR_REMOVE = "while no relay runs, move it to new/ to have it sent, or remove it"
_NEW_ACCOUNT = "stop the relay, remove the file `ledger`, start: a new account begins"


class Inspector(RootInspector):
    def __init__(self, root: str, disk: Disk) -> None:
        super().__init__(root, disk, form=FORMAT, files=_FILES)
        self._layout = Layout(root)
        self._brought_home: dict[QueueId, str] = {}
        """Where each message that was read is, which a start will have in its home."""
        self._recipients: dict[QueueId, int] = {}
        self._failed: set[QueueId] = set()
        """Messages with a failed recipient, of which a note should tell."""

    def inspect(self) -> Inspection:
        """Return what there is to say.  Raises OSError; FileNotFoundError where there is no spool."""
        seen, root = self._seen, self._layout.root
        self._look_at_root(Path(root).stat())
        seen.holder = self._holder()
        self._look_at_drafts()
        # In the order in which mail moves on: what moves meanwhile is seen twice rather than never.
        for folder in (
            self._layout.folder("new"),
            *self._layout.queued_folders(),
            self._layout.folder("hold"),
        ):
            self._each(folder)
        self._each_set_aside(self._layout.folder("corrupt"))
        seen.messages = len(self._recipients)
        corrupt = {subject_name(name) for name in self._names(self._layout.folder("corrupt"))}
        here = {*self._recipients, *corrupt}
        seen.findings += _notes_findings(self._disk, self._layout, here, self._failed)
        seen.findings += _ledger_findings(self._disk, self._layout, self._recipients, corrupt)
        return seen

    def _look_at_root(self, root: os.stat_result) -> None:
        layout = self._layout
        for folder in layout.folders():
            self._look_at_folder(folder, root)
        self._look_at_names(_FOLDERS, crash_remains.REWRITES)
        for name in set(self._names(layout.folder("cur"))) - {f[-2:] for f in layout.queued_folders()}:
            path = f"{layout.folder('cur')}/{name}"
            advice = "if it is a message, move it to new/, with a relay running or not"
            self._find(path, "stray", "not in one of the numbered folders", "left, never sent", advice)
        self._look_at_files()

    def _each(self, folder: str) -> None:
        for name in self._names(folder):
            path = f"{folder}/{name}"
            try:
                is_file = stat.S_ISREG((found := os.lstat(path)).st_mode)
            except FileNotFoundError:
                continue  # it moved on
            if not is_file:
                self._tell(path, LookedAt(Found.DAMAGED, f"{kind_of(found)}, no message"))
            else:
                self._tell(path, look(self._disk, self._layout, path, self._reader(path)))

    def _each_set_aside(self, folder: str) -> None:
        becomes = "kept and counted, never sent, never deleted"
        for name in self._names(folder):
            path, queue_id = f"{folder}/{name}", subject_name(name)
            what, advice = "a message that can be read whole", _SEND_OR_REMOVE
            try:
                if not stat.S_ISREG((found := os.lstat(path)).st_mode):
                    raise Corrupt(f"{kind_of(found)}, no message")
                if not is_queue_id(queue_id):
                    raise Corrupt(NOT_OUR_NAME)
                self._reader(path)(queue_id)
            except FileNotFoundError:
                continue
            except Corrupt as fault:
                what, advice = str(fault), "send by hand what is worth it, then remove it"
            except Unreadable as error:
                self._seen.findings.append(unreadable(path, error.strerror))
                continue
            self._find(path, "set_aside", what, becomes, advice)

    def _reader(self, path: str) -> Callable[[QueueId], Opened]:
        def read(queue_id: QueueId) -> Opened:
            if (why := self._why_a_strangers(path, os.lstat(path))) is not None:
                raise Corrupt(why)
            message = files.read(self._disk, path, queue_id, with_content=False, is_shown_only=True)
            files.check(self._disk, path, queue_id)
            return message

        return read

    def _tell(self, path: str, seen: LookedAt) -> None:
        match seen.found:
            case Found.FOREIGN | Found.DAMAGED:
                advice = "see in corrupt/ what it is, and what the log says"
                self._find(path, "corrupt_message", seen.why, _NEW_ASIDE, advice)
            case Found.UNREADABLE:
                self._seen.findings.append(unreadable(path, seen.why))
            case Found.SECOND_NAME:
                what = f"a second name of {seen.other}, left by a crash"
                self._find(path, "second_name", what, "dropped at the next start")
            case Found.COPY:
                advice = "compare the two; a restored backup is in use twice"
                self._find(path, "copy", f"its id is also that of {seen.other}", ASIDE, advice)
        if seen.message is not None:
            self._tell_of_message(path, seen.message)

    def _tell_of_message(self, path: str, message: Opened) -> None:
        queue_id = message.queue_id
        home = self._layout.queued(queue_id)
        other = self._brought_home.setdefault(queue_id, path)
        inode, other_inode = self._disk.inode(path), self._disk.inode(other)
        if other != path and inode is not None and other_inode is not None:
            # The start brings the first one home, and then finds this one.
            self._tell(path, LookedAt(Found.SECOND_NAME if inode == other_inode else Found.COPY, other=other))
            return
        if message.owed_report is not None:
            self._failed.add(queue_id)
        if Status.TODO not in message.statuses:
            what = "no recipient is left; a crash, or a full disk, came before its end"
            becomes = "reported if that is owed, counted and removed at the next start"
            self._find(path, "finished", what, becomes)
        self._recipients.setdefault(queue_id, len(message.statuses))
        if path != home and path.startswith(self._layout.folder("cur")):
            self._find(path, "misplaced", f"belongs into {home}", "moved there at the next start")

    def _look_at_drafts(self) -> None:
        folder = self._layout.folder("tmp")
        for name in self._names(folder):
            path = f"{folder}/{name}"
            try:
                found = os.lstat(path)
                is_ours = is_queue_id(name) and stat.S_ISREG(found.st_mode)
                why = self._why_a_strangers(path, found) if is_ours else None
                if is_ours:
                    with opened(self._disk, self._disk.open_read(path)) as fd:
                        is_ours = why is None and is_draft(self._disk, fd, QueueId(name))
            except FileNotFoundError:
                continue  # published, or given up
            except OSError as error:
                if is_not_now(error):
                    self._seen.findings.append(unreadable(path, error.strerror))
                else:
                    self._find(path, "foreign", f"cannot be read: {error.strerror}", ASIDE, LOOK)
                continue
            if found.st_ino in self._locked:
                self._seen.arriving += 1
            elif is_ours:
                what = "a draft whose listener is gone; its client was told nothing"
                self._find(path, "draft", what, "removed at the next start, or within the hour")
            else:
                self._find(path, "foreign", why or f"{kind_of(found)}, not written by us", ASIDE, LOOK)


def _notes_findings(
    disk: Disk, layout: Layout, here: Collection[str], failed: Collection[QueueId]
) -> Iterator[Finding]:
    """Compare bounce/ with `here`, ids in the spool, and `failed`, those that owe reasons."""
    noted, folder = set(), layout.folder("bounce")
    for name in _names_in(disk, folder):
        path = f"{folder}/{name}"
        aside = "moved to corrupt/ when the relay starts, never deleted"
        if not is_queue_id(name):
            yield Finding(path, "foreign", NOT_OUR_NAME, aside, "see what it is")
            continue
        try:
            why = foreign.why_not_ours(disk, path, crash_remains.is_notes, disk.open_read)
            content = _content_of(disk, path) if why is None else b""
        except FileNotFoundError:
            continue  # its message ended
        except OSError as error:
            if not is_not_now(error):
                raise
            yield unreadable(path, error.strerror, "the report may give no reasons")
            noted.add(name)
            continue
        if why is not None:
            yield Finding(path, "foreign", why, aside, "see what it is")
            continue
        noted.add(name)
        if name not in here and not _is_there(disk, layout, QueueId(name)):
            if foreign.why_not_ours(disk, path, crash_remains.is_notes_only, disk.open_read) is not None:
                yield Finding(path, "foreign", "not only notes", aside, "see what it is")
                continue
            yield Finding(path, "leftover", "notes about a message that is gone", "removed at the next start")
            continue
        yield from _torn_notes(path, content)
    for queue_id in sorted(set(failed) - noted):
        path = layout.notes(queue_id)
        yield Finding(path, "no_notes", "is not there", "the report will say that the reason is not known")


def _ledger_findings(
    disk: Disk, layout: Layout, recipients: Mapping[QueueId, int], corrupt: Collection[str]
) -> Iterator[Finding]:
    path = layout.file("ledger")
    try:
        if disk.length(path) is None or (
            foreign.why_not_ours(disk, path, crash_remains.is_anything, disk.open_read) is not None
        ):
            return  # made at the next start; or told of already
        content = _content_of(disk, path)
    except OSError as error:
        if not is_not_now(error):
            raise
        yield unreadable(path, error.strerror, STOPS_THE_START)
        return
    ledger, lines = _ledger(disk, layout, content), content.split(b"\n")
    bad = [number for number, line in enumerate(lines, start=1) if line and not _is_whole(line)]
    if bad and bad[0] >= len(lines):
        yield Finding(
            path, "torn_line", "its last line is torn, by a crash", "skipped: it was counted for nobody"
        )
    elif bad:
        what = f"{len(bad)} damaged lines, the first is line {bad[0]}"
        yield Finding(path, "damaged_ledger", what, "skipped: figures are wrong, no message is", _NEW_ACCOUNT)
    for queue_id, count in sorted(ledger.open.items()):
        if queue_id in recipients or queue_id in corrupt:
            continue
        if queue_id in ledger.aside:
            what = f"{queue_id}, {count} recipients, was removed from corrupt/"
            yield Finding(path, "removed", what, "counted as deleted at the next start")
        elif not _is_there(disk, layout, queue_id) and not _has_ended(disk, layout, queue_id):
            what = f"{queue_id}, {count} recipients, is in the account and in no folder"
            advice = f"ask who removed it; restore it into new/, or else {_NEW_ACCOUNT}"
            yield Finding(path, "missing", what, "counted as missing at each start", advice)


def _torn_notes(path: str, content: bytes) -> Iterator[Finding]:
    lines = content.split(b"\n")
    bad = [number for number, line in enumerate(lines, start=1) if line and parse(line) is None]
    if bad and bad[-1] < len(lines):
        what = f"line {bad[0]} is no note, or one that a crash tore"
        yield Finding(path, "torn_note", what, "skipped: a reply is not shown, or a report gives no reason")


def _names_in(disk: Disk, folder: str) -> list[str]:
    return [] if disk.inode(folder) is None else sorted(disk.names(folder))


def _is_there(disk: Disk, layout: Layout, queue_id: QueueId) -> bool:
    """Look again: the message may have moved while we looked."""
    places = (layout.accepted, layout.queued, layout.held)
    return any(disk.inode(place(queue_id)) is not None for place in places)


def _has_ended(disk: Disk, layout: Layout, queue_id: QueueId) -> bool:
    return queue_id not in _ledger(disk, layout, _content_of(disk, layout.file("ledger"))).open


def _ledger(disk: Disk, layout: Layout, content: bytes) -> LedgerFile:
    ledger = LedgerFile(layout, disk)
    ledger.learn(content)
    return ledger


def _content_of(disk: Disk, path: str) -> bytes:
    with opened(disk, disk.open_read(path)) as fd:
        return disk.pread(fd, disk.size(fd), 0)


def _is_whole(line: bytes) -> bool:
    text, _, check = line.rpartition(b" ")
    return check == b"%08x" % zlib.crc32(text)
