"""The way to corrupt/: for damaged messages, and for what others put where our own files belong.

Guarantees: a move deletes nothing, opens nothing that could block and follows no link.  A file that
cannot be moved, or read, is told of once, counted and listed where it is.
Assumes: the holder of the spool's lock.  Does not: judge messages (`into_queue`) or other files
(`foreign`), or touch `lock` and `format`: on those that are unusable no relay starts.
"""

import contextlib
import errno
from collections.abc import Callable, Collection
from itertools import chain

from relay.mail.envelope import QueueId
from relay.spool.durable import Disk, opened, why_a_strangers
from relay.spool.interface import Corrupt, SetAside
from relay.spool.maildir import files, foreign
from relay.spool.maildir.layout import NOT_OUR_NAME, Layout, is_queue_id

LISTED_BYTES = 64 * 1024
"""Content up to here is checked for a listing; `relay fsck` checks all of it."""
_LEFT = "left where it is, and tried again within the hour"
_LEFT_FOR_LONG = "left where it is, and tried again by the next start"


class Quarantine:
    def __init__(self, disk: Disk, layout: Layout, on_corrupt: Callable[[str, str], None]) -> None:
        self._disk = disk
        self._layout = layout
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
            self._on_corrupt(files.describe(name), fault)
        try:
            files.set_aside(self._disk, self._layout, path, prefix)
        except FileNotFoundError:
            self.forget(path)
            return True  # somebody was quicker
        except OSError as error:
            if not files.is_about_the_file(error):
                raise
            self.leave(path, f"cannot be set aside: {error.strerror}", fault)
            return False
        self.forget(path)
        self.moved += 1
        self.count += 1
        return True

    def move_unusable(self, path: str, error: OSError, prefix: str) -> None:
        """Move it, or leave it if the disk only fails now.  Raises an error about us or the disk itself."""
        if files.is_not_now(error):
            self.tell_once(prefix + path.rpartition("/")[2], f"cannot be read, and is left: {error.strerror}")
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
            self._on_corrupt(files.describe(name), fault)

    def recount(self) -> list[str]:
        """Count anew what is in corrupt/ or was left elsewhere; return the first."""
        for path in list(chain(*self.stuck.values())):
            with contextlib.suppress(OSError):
                if self._disk.inode(path) is None:
                    self.forget(path)
        names = self._disk.names(self._layout.folder("corrupt"))
        self.count = len(names) + sum(map(len, self.stuck.values()))
        return names

    def listed(self, most: int) -> list[SetAside]:
        """Return what was left where it is, then the first files of corrupt/ by name, with why."""
        left = [self._left(path, why) for places in self.stuck.values() for path, why in places.items()][
            :most
        ]
        names = sorted(self._disk.names(self._layout.folder("corrupt")))[: most - len(left)]
        return [*left, *map(self._listed, names)]

    def _left(self, path: str, why: str) -> SetAside:
        try:
            size_bytes = self._disk.length(path) or 0
        except OSError:
            size_bytes = 0
        shown, root = files.describe(path.rpartition("/")[2]), self._layout.root
        is_tried = path.removeprefix(f"{root}/").startswith(("tmp/", "new/", "cur/", "hold/"))
        return SetAside(shown, size_bytes, 0, "", 0, f"{why}; {_LEFT if is_tried else _LEFT_FOR_LONG}")

    def _listed(self, name: str) -> SetAside:
        path = f"{self._layout.folder('corrupt')}/{name}"
        shown, size_bytes, modified_at_ns = files.describe(name), 0, 0
        try:
            with opened(self._disk, self._disk.open_read(path)) as fd:
                size_bytes, modified_at_ns = self._disk.size(fd), self._disk.modified_at_ns(fd)
            message = files.read(self._disk, path, subject_name(name), with_content=False, is_shown_only=True)
            for _ in files.stream(self._disk, path, message.queue_id) if size_bytes <= LISTED_BYTES else ():
                pass
        except (Corrupt, OSError) as fault:
            why = str(fault) if isinstance(fault, Corrupt) else f"cannot be read: {fault.strerror}"
            return SetAside(shown, size_bytes, modified_at_ns, "", 0, why)
        entry = message.entry(is_held=False)
        return SetAside(
            shown,
            size_bytes,
            entry.arrival_at_ns,
            entry.reverse_path,
            entry.recipients_left,
            "can be read, and was set aside for another reason: see the log",
        )


def subject_name(name: str) -> QueueId:
    """Return the id of the message that a file in corrupt/ may be: its name without what was added."""
    return QueueId(name.partition(".")[0])


def make_trigger(disk: Disk, layout: Layout, aside: Quarantine) -> None:
    """Have the FIFO `trigger` where listeners and sender look for it.  Raises OSError."""
    path = layout.file("trigger")
    try:
        disk.make_fifo(path)
        with opened(disk, disk.open_update(path)) as fd:
            fault = why_a_strangers(disk, fd, path)
    except OSError as error:
        if not (isinstance(error, FileExistsError) or files.is_about_the_file(error)):
            raise
        fault = "not a FIFO that we can open"
    if fault is not None:
        aside.move(path, fault)
        disk.make_fifo(path)


def clear_the_way(disk: Disk, layout: Layout, aside: Quarantine) -> None:
    """Move away what keeps our own files from being made, read and written.  Raises OSError."""
    for name, is_ours in foreign.NEEDED.items():
        path = f"{layout.root}/{name}"
        if (fault := foreign.why_not_ours(disk, path, is_ours, disk.open_update)) is not None:
            aside.move(path, fault)
    for name, is_ours in foreign.KEPT.items():
        path = f"{layout.root}/{name}"
        try:
            if (fault := foreign.why_not_ours(disk, path, is_ours, disk.open_update)) is not None:
                aside.move(path, fault)
        except OSError as error:
            # A bad sector in what holds no mail stops no start.
            aside.move_unusable(path, error, "")
    if not (disk.inode(layout.file("control.sock")) is None or _is_socket(disk, layout.file("control.sock"))):
        aside.move(layout.file("control.sock"), "not a socket")
    _clear_the_notes(disk, layout, aside)


def _clear_the_notes(disk: Disk, layout: Layout, aside: Quarantine) -> None:
    for name in disk.names(layout.folder("bounce")):
        path = f"{layout.folder('bounce')}/{name}"
        why: str | None = NOT_OUR_NAME
        if is_queue_id(name):
            try:
                why = foreign.why_not_ours(disk, path, foreign.is_notes, disk.open_update)
            except OSError as error:
                aside.move_unusable(path, error, "bounce-")
                continue
        if why is not None:
            # Its name must not be taken for that of a message that is set aside.
            aside.move(path, why, "bounce-")


def _is_socket(disk: Disk, path: str) -> bool:
    """Tell a socket by how its opening fails (open(2))."""
    try:
        disk.close(disk.open_read(path))
    except OSError as error:
        return error.errno == errno.ENXIO
    return False
