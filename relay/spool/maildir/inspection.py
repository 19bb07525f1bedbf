"""Looks at a whole maildir spool and says what is not as it should be; changes nothing.

Guarantees: takes no lock, writes nothing, follows no link, never blocks on a FIFO, so
it may run beside a sender and its listeners.  Every content is read and compared with its
checksum.  Beside a sender, what moves from one folder to the next while we look is looked
for again before it is called missing or double; what else is seen may have passed already.
Raises OSError where a folder cannot be read.
Does not: repair.  Starting is recovering, and what that does is what each finding says.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from relay.mail.envelope import QueueId
from relay.spool.durable import Disk, opened, why_of_others
from relay.spool.finding import STOPS_THE_START, Finding, unreadable
from relay.spool.interface import Corrupt, Status
from relay.spool.maildir import crash_remains, files, quarantine
from relay.spool.maildir.headroom import is_reserve
from relay.spool.maildir.layout import FORMAT, Layout, is_queue_id
from relay.spool.maildir.ledger_inspection import ledger_findings, notes_findings

_FOLDERS = ("tmp", "new", "cur", "hold", "corrupt", "bounce")
_FILES = ("lock", "ledger", "trigger", "format", "reserve", "boots", "control.sock")
_REWRITES: dict[str, Callable[[Disk, int], bool]] = {
    "ledger.new": crash_remains.is_draft_of_the_ledger,
    "boots.new": crash_remains.is_draft_of_the_boots,
}
_KEPT: dict[str, Callable[[Disk, int], bool]] = {"reserve": is_reserve, "boots": crash_remains.is_boots}
_REPORTS = ("reports", "reports.lock", "reports.new")
"""The history of the reports, of which `relay.throttle.history_check` tells."""
_ASIDE = "moved to corrupt/ when the relay starts, never sent, never deleted"
_NEW_ASIDE = "moved to corrupt/ when the relay next meets it, never sent, never deleted"
_LOOK = "look at it, and move it out of the spool if it is nobody's mail"


@dataclass(slots=True)
class Inspection:
    """What was seen of one spool."""

    root: str
    holder: str | None = None
    """The process that holds the spool's lock, as far as this host can tell; None: nobody."""
    findings: list[Finding] = field(default_factory=list)
    messages: int = 0
    """Whole ones: accepted, queued and held."""
    arriving: int = 0
    """Drafts whose writers live."""


class Inspector:
    """One look at one spool."""

    def __init__(self, root: str, disk: Disk) -> None:
        self._layout = Layout(root)
        self._disk = disk
        self._locked = locked_inodes()
        self._seen = Inspection(root)
        self._places: dict[QueueId, str] = {}
        """Where each message that was read is."""
        self._recipients: dict[QueueId, int] = {}
        # Root looks for the relay, which it seldom runs; anybody else can only be its user.
        self._user = os.geteuid() or Path(root).stat().st_uid
        self._failed: set[QueueId] = set()
        """Messages with recipients of which a note should tell."""

    def inspect(self) -> Inspection:
        """Return what there is to say.  Raises OSError; FileNotFoundError where there is no spool."""
        seen, root = self._seen, self._layout.root
        self._look_at_root(Path(root).stat())
        seen.holder = self._holder()
        self._look_at_drafts()
        # In the order in which mail moves on: what moves meanwhile is seen twice rather than never.
        tops = self._layout.folder("hold"), self._layout.folder("corrupt")
        for folder in (self._layout.folder("new"), *self._layout.queued_folders(), *tops):
            self._each(folder)
        seen.messages = len(self._recipients)
        corrupt = {quarantine.subject_name(name) for name in self._names(self._layout.folder("corrupt"))}
        here = {*self._recipients, *corrupt}
        seen.findings += notes_findings(self._disk, self._layout, here, self._failed)
        seen.findings += ledger_findings(self._disk, self._layout, self._recipients, corrupt)
        return seen

    def _find(self, path: str, kind: str, what: str, becomes: str, advice: str = "") -> None:
        self._seen.findings.append(Finding(path, kind, what, becomes, advice))

    def _holder(self) -> str | None:
        path = self._layout.file("lock")
        with contextlib.suppress(OSError):
            if os.lstat(path).st_ino in self._locked:
                with opened(self._disk, self._disk.open_read(path)) as fd:
                    text = self._disk.pread(fd, 32, 0).decode("ascii", "replace").strip()
                return text if text.isdecimal() else "unknown"
        return None

    def _names(self, folder: str) -> list[str]:
        try:
            return sorted(self._disk.names(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []  # told of already

    def _look_at_root(self, root: os.stat_result) -> None:
        layout = self._layout
        for folder in layout.folders():
            self._look_at_folder(folder, root)
        for name in self._names(layout.root):
            path = f"{layout.root}/{name}"
            if name in (*_FOLDERS, *_FILES, *_REPORTS):
                continue
            if name in _REWRITES and not self._is_ours(path, _REWRITES[name]):
                self._find(path, "foreign", "not written by us", _ASIDE, _LOOK)
            elif name in _REWRITES or name.startswith("format."):
                self._find(path, "leftover", "a rewrite that a crash cut off", "replaced by the next one")
            else:
                self._find(path, "stray", "no file of ours", "left where it is, never looked at", _LOOK)
        for name in set(self._names(layout.folder("cur"))) - {f[-2:] for f in layout.queued_folders()}:
            path = f"{layout.folder('cur')}/{name}"
            advice = "if it is a message, move it to new/, with a relay running or not"
            self._find(path, "stray", "not in one of the numbered folders", "left, never sent", advice)
        self._look_at_files()

    def _look_at_folder(self, folder: str, root: os.stat_result) -> None:
        try:
            found = os.lstat(folder)
        except FileNotFoundError:
            self._find(folder, "no_folder", "is not there", "made when a relay starts")
            return
        if stat.S_ISLNK(found.st_mode) and folder != self._layout.root:
            self._find(folder, "link", "a symbolic link", "followed: keep it on the same file system")
            return
        found = Path(folder).stat()
        if not stat.S_ISDIR(found.st_mode):
            self._find(folder, "no_folder", "not a folder", STOPS_THE_START, "move it away, and start")
            return
        if found.st_uid != root.st_uid:
            what = f"belongs to user {found.st_uid}, the spool to {root.st_uid}"
            self._find(folder, "owner", what, "fails on it", f"chown it to user {root.st_uid}")
        elif stat.S_IMODE(found.st_mode) & 0o700 != 0o700:
            self._find(folder, "mode", _mode(found), "fails on it", "chmod u+rwx")
        is_readable = folder != self._layout.root and found.st_mode & 0o055 and root.st_mode & 0o011
        if found.st_mode & 0o022 or is_readable:
            what = f"{_mode(found)}: others may read mail here, or put files there"
            self._find(folder, "mode", what, "does not look at it", "chmod 700")

    def _look_at_files(self) -> None:
        kinds = {"trigger": stat.S_ISFIFO, "control.sock": stat.S_ISSOCK}
        for name in _FILES:
            path = f"{self._layout.root}/{name}"
            try:
                found = os.lstat(path)
            except FileNotFoundError:
                continue  # made at a start
            is_needed = name in ("lock", "format")
            becomes = STOPS_THE_START if is_needed else _ASIDE
            advice = "move it away while no relay runs, and start" if is_needed else _LOOK
            if not kinds.get(name, stat.S_ISREG)(found.st_mode):
                self._find(path, "foreign", f"{_kind(found)} in the place of `{name}`", becomes, advice)
            elif (what := self._why_a_strangers(path, found)) is not None:
                if name == "control.sock":
                    becomes = "removed when the relay starts, and made anew"
                elif is_needed and self._user in (0, found.st_uid) and found.st_mode & stat.S_IRUSR:
                    becomes = "used all the same"
                self._find(path, "owner", what, becomes, f"chown it to user {self._user}, chmod 600")
            elif name in _KEPT and not self._is_ours(path, _KEPT[name]):
                self._find(path, "foreign", "not written by us", becomes, advice)
            elif name == "format":
                with opened(self._disk, self._disk.open_read(path)) as fd:
                    said = self._disk.pread(fd, 256, 0)
                if said != FORMAT:
                    what = f"says {files.describe(repr(said[:40]))}, which this version does not know"
                    self._find(path, "format", what, STOPS_THE_START, "use the version that wrote it")

    def _is_ours(self, path: str, is_ours: Callable[[Disk, int], bool]) -> bool:
        """Return whether we may have written a file, also where the disk does not let us see that now."""
        try:
            return quarantine.why_not_ours(self._disk, path, is_ours, self._disk.open_read) is None
        except OSError as error:
            if not files.is_not_now(error):
                raise
            return True

    def _each(self, folder: str) -> None:
        """Look at each file in a folder of messages."""
        is_corner = folder == self._layout.folder("corrupt")
        for name in self._names(folder):
            path = f"{folder}/{name}"
            try:
                fault = self._fault_of(path, quarantine.subject_name(name) if is_corner else name)
            except FileNotFoundError:
                continue  # it moved on
            except files.Unreadable as error:
                self._seen.findings.append(unreadable(path, error.strerror))
                continue
            if is_corner:
                self._tell_set_aside(path, fault)
            elif fault is not None:
                advice = "see in corrupt/ what it is, and what the log says"
                self._find(path, "corrupt_message", fault, _NEW_ASIDE, advice)
            else:
                self._tell_place(path, QueueId(name))

    def _fault_of(self, path: str, name: str) -> str | None:
        """Return what is wrong with a file that ought to be a message; reads all of it."""
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            return f"{_kind(found)}, no message"
        if not is_queue_id(name):
            return "not a name that we give"
        if (why := self._why_a_strangers(path, found)) is not None:
            return why
        try:
            message = files.read(self._disk, path, QueueId(name), with_content=False, is_shown_only=True)
            for _ in files.stream(self._disk, path, message.queue_id):
                pass
        except Corrupt as fault:
            return str(fault)
        if not path.startswith(self._layout.folder("corrupt")):
            self._look_into(path, message)
        return None

    def _why_a_strangers(self, path: str, found: os.stat_result) -> str | None:
        """Return what keeps the relay's user from taking a file for its own."""
        users = {self._user, Path(path).parent.stat().st_uid}
        return why_of_others(found.st_uid, stat.S_IMODE(found.st_mode), users)

    def _look_into(self, path: str, message: files.Opened) -> None:
        if any(status.is_failure for status in message.statuses) and message.envelope.reverse_path:
            self._failed.add(message.queue_id)
        if Status.TODO not in message.statuses:
            what = "no recipient is left; a crash, or a full disk, came before its end"
            self._find(
                path, "finished", what, "reported if that is owed, counted and removed at the next start"
            )
        self._recipients.setdefault(message.queue_id, len(message.statuses))

    def _tell_set_aside(self, path: str, fault: str | None) -> None:
        becomes = "kept and counted, never sent, never deleted"
        if fault is None:
            advice = "while no relay runs, move it to new/ to have it sent, or remove it"
            self._find(path, "set_aside", "a message that can be read whole", becomes, advice)
        else:
            advice = "send by hand what is worth it, then remove it"
            self._find(path, "set_aside", fault, becomes, advice)

    def _tell_place(self, path: str, queue_id: QueueId) -> None:
        other = self._places.setdefault(queue_id, path)
        inode, other_inode = self._disk.inode(path), self._disk.inode(other)
        if other == path or inode is None or other_inode is None:
            pass
        elif inode == other_inode:
            what = f"a second name of {other}, left by a crash"
            self._find(path, "second_name", what, "dropped at the next start")
        else:
            advice = "compare the two; a restored backup is in use twice"
            self._find(path, "copy", f"its id is also that of {other}", _ASIDE, advice)
        home = self._layout.queued(queue_id)
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
                        is_ours = why is None and crash_remains.is_draft(self._disk, fd, QueueId(name))
            except FileNotFoundError:
                continue  # published, or given up
            except OSError as error:
                if files.is_not_now(error):
                    self._seen.findings.append(unreadable(path, error.strerror))
                else:
                    self._find(path, "foreign", f"cannot be read: {error.strerror}", _ASIDE, _LOOK)
                continue
            if found.st_ino in self._locked:
                self._seen.arriving += 1
            elif is_ours:
                what = "a draft whose listener is gone; its client was told nothing"
                self._find(path, "draft", what, "removed at the next start, or within the hour")
            else:
                self._find(path, "foreign", why or f"{_kind(found)}, not written by us", _ASIDE, _LOOK)


def locked_inodes() -> frozenset[int]:
    """Return the inode numbers of all files that somebody on this host holds with flock.

    From proc(5), since trying a lock means holding it for a moment, and a relay that starts
    in that moment would be refused.  A number alone may be that of a file elsewhere, and
    locks in other containers are not listed: good for what people read, not to act upon.
    """
    with Path("/proc/locks").open(encoding="ascii", errors="replace") as locks:
        rows: Iterator[list[str]] = (line.split() for line in locks)
        return frozenset(int(row[5].rpartition(":")[2]) for row in rows if row[1:2] == ["FLOCK"])


def _kind(found: os.stat_result) -> str:
    """Return what a thing in a folder is."""
    kinds = (
        (stat.S_ISREG, "a file"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
    )
    return next((word for is_kind, word in kinds if is_kind(found.st_mode)), "a device")


def _mode(found: os.stat_result) -> str:
    return f"mode {stat.S_IMODE(found.st_mode):04o}"
