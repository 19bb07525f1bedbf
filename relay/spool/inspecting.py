"""Looks at a spool's root, which is alike for every engine, and says what is not as it should be.

Guarantees: takes no lock, writes nothing, follows no link, never blocks on a FIFO.
Does not: look into the folders of an engine (its `inspection`).
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from relay.spool.disk.durable import Disk, opened, why_of_others
from relay.spool.disk.os_errors import is_not_now
from relay.spool.finding import STOPS_THE_START, Finding, Inspection
from relay.spool.root import foreign
from relay.spool.root.quarantine import describe

REPORTS = ("reports", "reports.lock", "reports.new")
"""The history of the reports, of which `relay.throttle.history_check` tells."""
ASIDE = "moved to corrupt/ when the relay starts, never sent, never deleted"
LOOK = "look at it, and move it out of the spool if it is nobody's mail"


class RootInspector:
    def __init__(self, root: str, disk: Disk, *, form: bytes, files: tuple[str, ...]) -> None:
        """`form` is what the file `format` says, `files` are those of ours in the root."""
        self._root = root
        self._disk = disk
        self._form = form
        self._files = files
        self._locked = locked_inodes()
        self._seen = Inspection(root)
        # Root looks for the relay, which it seldom runs; anybody else can only be its user.
        self._user = os.geteuid() or Path(root).stat().st_uid

    def _find(self, path: str, kind: str, what: str, becomes: str, advice: str = "") -> None:
        self._seen.findings.append(Finding(path, kind, what, becomes, advice))

    def _holder(self) -> str | None:
        path = f"{self._root}/lock"
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

    def _look_at_folder(self, folder: str, root: os.stat_result) -> None:
        try:
            found = os.lstat(folder)
        except FileNotFoundError:
            self._find(folder, "no_folder", "is not there", "made when a relay starts")
            return
        if stat.S_ISLNK(found.st_mode) and folder != self._root:
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
            self._find(folder, "mode", mode_of(found), "fails on it", "chmod u+rwx")
        is_readable = folder != self._root and found.st_mode & 0o055 and root.st_mode & 0o011
        if found.st_mode & 0o022 or is_readable:
            what = f"{mode_of(found)}: others may read mail here, or put files there"
            self._find(folder, "mode", what, "does not look at it", "chmod 700")

    def _look_at_names(self, folders: Sequence[str], of_engine: Mapping[str, foreign.IsOurs]) -> None:
        """Look at what stands in the root besides folders; `of_engine` are rewrites of this engine alone."""
        rewrites = {**of_engine, **foreign.REWRITES}
        for name in self._names(self._root):
            path = f"{self._root}/{name}"
            if name in (*folders, *self._files, *REPORTS):
                continue
            if name in rewrites and not self._is_ours(path, rewrites[name]):
                self._find(path, "foreign", "not written by us", ASIDE, LOOK)
            elif name in rewrites or name.startswith("format."):
                self._find(path, "leftover", "a rewrite that a crash cut off", "replaced by the next one")
            else:
                self._find(path, "stray", "no file of ours", "left where it is, never looked at", LOOK)

    def _look_at_files(self) -> None:
        kinds = {"trigger": stat.S_ISFIFO, "control.sock": stat.S_ISSOCK}
        for name in self._files:
            path = f"{self._root}/{name}"
            try:
                found = os.lstat(path)
            except FileNotFoundError:
                continue  # made at a start
            is_needed = name in ("lock", "format")
            becomes = STOPS_THE_START if is_needed else ASIDE
            advice = "move it away while no relay runs, and start" if is_needed else LOOK
            if not kinds.get(name, stat.S_ISREG)(found.st_mode):
                self._find(path, "foreign", f"{kind_of(found)} in the place of `{name}`", becomes, advice)
            elif (what := self._why_a_strangers(path, found)) is not None:
                if name == "control.sock":
                    becomes = "removed when the relay starts, and made anew"
                elif is_needed and self._user in (0, found.st_uid) and found.st_mode & stat.S_IRUSR:
                    becomes = "used all the same"
                self._find(path, "owner", what, becomes, f"chown it to user {self._user}, chmod 600")
            elif name in foreign.KEPT and not self._is_ours(path, foreign.KEPT[name]):
                self._find(path, "foreign", "not written by us", becomes, advice)
            elif name == "format":
                with opened(self._disk, self._disk.open_read(path)) as fd:
                    said = self._disk.pread(fd, 256, 0)
                if said != self._form:
                    what = f"says {describe(repr(said[:40]))}, which this version does not know"
                    self._find(path, "format", what, STOPS_THE_START, "use the version that wrote it")

    def _is_ours(self, path: str, is_ours: Callable[[Disk, int], bool]) -> bool:
        """Say yes also where the disk does not let us see the file now."""
        try:
            return foreign.why_not_ours(self._disk, path, is_ours, self._disk.open_read) is None
        except OSError as error:
            if not is_not_now(error):
                raise
            return True

    def _why_a_strangers(self, path: str, found: os.stat_result) -> str | None:
        users = {self._user, Path(path).parent.stat().st_uid}
        return why_of_others(found.st_uid, stat.S_IMODE(found.st_mode), users)


def locked_inodes() -> frozenset[int]:
    """Return the inode numbers of all files that somebody on this host holds with flock.

    From proc(5), since trying a lock means holding it for a moment, and a relay that starts
    in that moment would be refused.  A number alone may be that of a file elsewhere, and
    locks in other containers are not listed: good for what people read, not to act upon.
    """
    with Path("/proc/locks").open(encoding="ascii", errors="replace") as locks:
        rows: Iterator[list[str]] = (line.split() for line in locks)
        return frozenset(int(row[5].rpartition(":")[2]) for row in rows if row[1:2] == ["FLOCK"])


def kind_of(found: os.stat_result) -> str:
    kinds = (
        (stat.S_ISREG, "a file"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
    )
    return next((word for is_kind, word in kinds if is_kind(found.st_mode)), "a device")


def mode_of(found: os.stat_result) -> str:
    return f"mode {stat.S_IMODE(found.st_mode):04o}"
