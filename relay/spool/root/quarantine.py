"""The way to corrupt/: for damaged messages, and for what others put where our own files belong.

Guarantees: a move deletes nothing, opens nothing that could block and follows no link.  A file that
cannot be moved, or read, is told of once, counted and listed where it is.
Assumes: the holder of the spool's lock.  Does not: judge messages (the engine) or other files
(`foreign`), or touch `lock` and `format`: on those that are unusable no relay starts.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Collection, Mapping
from itertools import chain

from relay.mail.envelope import QueueId
from relay.mail.text import clean
from relay.spool.disk.durable import Disk, opened, why_a_strangers
from relay.spool.disk.os_errors import is_not_now
from relay.spool.faults import is_about_the_file
from relay.spool.interface import SetAside
from relay.spool.root import foreign

LONGEST_NAME_BYTES = 250
_LEFT = "left where it is, and tried again within the hour"
_LEFT_FOR_LONG = "left where it is, and tried again by the next start"


class Quarantine:
    def __init__(self, disk: Disk, root: str, on_corrupt: Callable[[str, str], None]) -> None:
        self._disk = disk
        self._root = root
        self._on_corrupt = on_corrupt
        self._told: set[str] = set()
        self.moved = 0
        self.count = 0
        """How many are there, those included that cannot be moved."""
        self.stuck: dict[QueueId, dict[str, str]] = {}
        """Names of those that cannot be read now, or not be moved, and of each path why."""

    def move(self, path: str, fault: str, prefix: str = "") -> bool:
        """Move a file that is none of ours; where that cannot be, tell so, leave it, and return False.

        `prefix` goes before its name in corrupt/.  Raises OSError where the disk fails.
        """
        name = path.rpartition("/")[2]
        if not self.stuck.get(QueueId(name), {}).get(path, "").startswith(fault):
            self._on_corrupt(describe(name), fault)
        try:
            set_aside(self._disk, self._root, path, prefix)
        except FileNotFoundError:
            self.forget(path)
            return True  # somebody was quicker
        except OSError as error:
            if not is_about_the_file(error):
                raise
            self.leave(path, f"cannot be set aside: {error.strerror}", fault)
            return False
        self.forget(path)
        self.moved += 1
        self.count += 1
        return True

    def keep(self, name: str, content: bytes, fault: str) -> None:
        """Write what is damaged into a file of its own, and tell of it.  Raises OSError."""
        folder = corrupt_folder(self._root)
        path, number = f"{folder}/{name}", 0
        while (length := self._disk.length(path)) is not None:
            if length == len(content) and self._is_kept(path, content):
                return  # by a start that did not get to remember it
            number += 1
            path = f"{folder}/{name}.{number}"
        self._on_corrupt(describe(name), fault)
        with opened(self._disk, self._disk.open_new(path)) as fd:
            try:
                self._disk.write_all(fd, content)
                # Crash here: a part of it; what it was taken from is still there.
                self._disk.sync(fd)
            except OSError:
                # Each start would leave another part.
                with contextlib.suppress(OSError):
                    self._disk.unlink(path)
                raise
        self._disk.sync_directory(folder)
        self.moved += 1
        self.count += 1

    def _is_kept(self, path: str, content: bytes) -> bool:
        """Return whether a file has this content, durably from then on.  Raises OSError."""
        try:
            with opened(self._disk, self._disk.open_update(path)) as fd:
                # A cut leaves a file as long as it was to be, without what was written.
                if self._disk.pread(fd, len(content), 0) != content:
                    return False
                # Whoever wrote it may have been killed before it was durable; so it is written again.
                self._disk.write_at(fd, content, 0)
                self._disk.sync(fd)
        except OSError as error:
            # A bad sector under it would keep what it was taken from for ever: another file is written.
            if not (is_about_the_file(error) or is_not_now(error)):
                raise
            return False
        self._disk.sync_directory(path.rpartition("/")[0])
        return True

    def move_unusable(self, path: str, error: OSError, prefix: str) -> None:
        """Move it, or leave it if the disk only fails now.  Raises an error about us or the disk itself."""
        if is_not_now(error):
            self.tell_unread(prefix + path.rpartition("/")[2], error)
        else:
            self.move(path, foreign.why_unusable(error), prefix)

    def leave(self, path: str, why: str, fault: str = "") -> None:
        """Tell of a file that stays where it is, and list it; `fault` is what is known to be wrong with it.

        A file that is left again goes behind the others.
        """
        name = QueueId(path.rpartition("/")[2])
        self.tell_once(name, why)
        places = self.stuck.pop(name, {})
        self.count += path not in places
        self.stuck[name] = {**places, path: f"{fault}; {why}" if fault else why}

    def forget(self, path: str) -> None:
        name = QueueId(path.rpartition("/")[2])
        places = self.stuck.get(name, {})
        if places.pop(path, None) is not None:
            self.count -= 1
            if not places:
                del self.stuck[name]
                self._told.discard(name)

    def left_in(self, folders: Collection[str]) -> list[str]:
        """Return the paths of what was left in some folders, least recently met first."""
        among = set(folders)
        return [path for path in chain(*self.stuck.values()) if path.rpartition("/")[0] in among]

    def tell_once(self, name: str, fault: str) -> None:
        if name not in self._told:
            self._told.add(name)
            self._on_corrupt(describe(name), fault)

    def tell_unread(self, name: str, error: OSError) -> None:
        self.tell_once(name, f"cannot be read, and is left: {error.strerror}")

    def recount(self) -> list[str]:
        """Count anew what is in corrupt/ or was left elsewhere; return the first."""
        for path in list(chain(*self.stuck.values())):
            with contextlib.suppress(OSError):
                if self._disk.inode(path) is None:
                    self.forget(path)
        names = self._disk.names(corrupt_folder(self._root))
        self.count = len(names) + sum(map(len, self.stuck.values()))
        return names

    def left(self, most: int, tried_again: Collection[str]) -> list[SetAside]:
        """Return what was left where it is, the first `most`; files in `tried_again` are read each hour."""
        left = [(path, why) for places in self.stuck.values() for path, why in places.items()]
        return [self._left(path, why, tried_again) for path, why in left[:most]]

    def paths(self, most: int) -> list[str]:
        """Return the first files of corrupt/ by name."""
        folder = corrupt_folder(self._root)
        return [f"{folder}/{name}" for name in sorted(self._disk.names(folder))[:most]]

    def _left(self, path: str, why: str, tried_again: Collection[str]) -> SetAside:
        try:
            size_bytes = self._disk.length(path) or 0
        except OSError:
            size_bytes = 0
        shown = describe(path.rpartition("/")[2])
        is_tried = path.removeprefix(f"{self._root}/").partition("/")[0] in tried_again
        return SetAside(shown, size_bytes, 0, "", 0, f"{why}; {_LEFT if is_tried else _LEFT_FOR_LONG}")


def corrupt_folder(root: str) -> str:
    return f"{root}/corrupt"


def set_aside(disk: Disk, root: str, path: str, prefix: str = "") -> None:
    """Move a file to corrupt/, never over another; `prefix` goes before its name.  Raises OSError."""
    folder = corrupt_folder(root)
    # With what is added it may not be longer than 255 octets (NAME_MAX).
    name = os.fsdecode(os.fsencode(prefix + path.rpartition("/")[2])[:LONGEST_NAME_BYTES])
    target, number = f"{folder}/{name}", 0
    while disk.inode(target) is not None:
        number += 1
        target = f"{folder}/{name}.{number}"
    # Crash here: it is found corrupt again at the next start.
    disk.rename(path, target)


def describe(name: str) -> str:
    return clean(name)[:80]


def subject_name(name: str) -> QueueId:
    """Return the id of the message that a file in corrupt/ may be: its name without what was added."""
    return QueueId(name.partition(".")[0])


def make_trigger(disk: Disk, root: str, aside: Quarantine) -> None:
    """Have the FIFO `trigger` where listeners and sender look for it.  Raises OSError."""
    path = f"{root}/trigger"
    try:
        disk.make_fifo(path)
        with opened(disk, disk.open_update(path)) as fd:
            fault = why_a_strangers(disk, fd, path)
    except OSError as error:
        if not (isinstance(error, FileExistsError) or is_about_the_file(error)):
            raise
        fault = "not a FIFO that we can open"
    if fault is not None:
        aside.move(path, fault)
        disk.make_fifo(path)


def clear_the_way(disk: Disk, root: str, aside: Quarantine, needed: Mapping[str, foreign.IsOurs]) -> None:
    """Move away what keeps our own files from being made, read and written.  Raises OSError.

    `needed` are those of the engine without which there is no start.
    """
    for name, is_ours in {**needed, **foreign.REWRITES}.items():
        path = f"{root}/{name}"
        if (fault := foreign.why_not_ours(disk, path, is_ours, disk.open_update)) is not None:
            aside.move(path, fault)
    for name, is_ours in foreign.KEPT.items():
        path = f"{root}/{name}"
        try:
            if (fault := foreign.why_not_ours(disk, path, is_ours, disk.open_update)) is not None:
                aside.move(path, fault)
        except OSError as error:
            # A bad sector in what holds no mail stops no start.
            aside.move_unusable(path, error, "")
    control = f"{root}/control.sock"
    if not (disk.inode(control) is None or _is_socket(disk, control)):
        aside.move(control, "not a socket")


def _is_socket(disk: Disk, path: str) -> bool:
    """Tell a socket by how its opening fails (open(2))."""
    try:
        disk.close(disk.open_read(path))
    except OSError as error:
        return error.errno == errno.ENXIO
    return False
