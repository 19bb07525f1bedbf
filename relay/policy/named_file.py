"""How a file that an owner names is opened and watched: the policy itself, and every file that it points to.

Guarantees: nothing here blocks on a FIFO or a device, whatever stands under the name; only
a regular file is read, at the end of symbolic links as well; never more than was asked for.
Does not: help against a network file system whose server is gone; there every call waits.
"""

import enum
import errno
import fcntl
import os
import signal
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from relay.policy.document import Unfit

LONGEST_PEM_BYTES = 8 << 20
"""Of a certificate, a key, or all authorities of a system; those of Debian have 220 KiB."""
_PIECE_BYTES = 1 << 16
_KNOWS_ALL_WRITERS = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "bcachefs", "zfs", "tmpfs", "ramfs", "overlay"}
)
"""File systems on which a lease tells the truth.  NFS and CIFS refuse a lease whenever their server grants
none; on FUSE, 9p and virtiofs a program on the other side writes unseen."""


T = TypeVar("T")
Marks = tuple[tuple[int, ...] | None, ...]
"""What changes when a file does, for each; None for one that is not there."""


class FileChange(enum.Enum):
    """What became of watched files since the last look."""

    NOTHING = enum.auto()
    REREAD = enum.auto()
    """Read by request, and as before."""
    CHANGED = enum.auto()
    """What they say now is in force."""
    REFUSED = enum.auto()
    """They changed, or were asked for, and cannot be used: what was in force stays."""


class WatchedFiles(Generic[T]):
    """What some files say together, read anew when they have changed.

    Guarantees: files that are not whole or not fit for use change nothing: the last good ones stay in force,
    and they are read again until they are good.  A change counts once the files stayed as they are from one
    look to the next and no program has one open for writing, or at once by request.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], T]) -> None:
        """Read them for the first time: what `read` raises is passed on; later it may raise Unfit."""
        self.paths = tuple(paths)
        self.error = ""
        """Why they cannot be used as they are now."""
        self._read = read
        self._decided = self._seen = _marks(self.paths)
        """Of what was read and loaded or refused; as of the last look."""
        self.in_force = read()

    def look(self, *, is_asked: bool = False) -> FileChange:
        marks = _marks(self.paths)
        is_settled, self._seen = marks == self._seen, marks
        is_new = marks != self._decided
        if not is_asked and not (is_settled and (is_new or self.error) and not _is_any_written(self.paths)):
            return FileChange.NOTHING
        self._decided = marks
        try:
            files = self._read()
        except Unfit as error:
            self.error = str(error)
            return FileChange.REFUSED if is_new or is_asked else FileChange.NOTHING
        is_changed = bool(self.error) or files != self.in_force
        if not is_changed and not is_asked:
            return FileChange.NOTHING
        self.error, self.in_force = "", files
        return FileChange.CHANGED if is_changed else FileChange.REREAD


def _marks(paths: Sequence[Path]) -> Marks:
    return tuple(map(_mark, paths))


def _mark(path: Path) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - as the open that follows: at the end of symbolic links
    except (OSError, ValueError):
        return None
    return (
        status.st_dev,
        status.st_ino,
        status.st_mode,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def _is_any_written(paths: Sequence[Path]) -> bool:
    """Return False for a file that cannot be opened: reading it tells why."""
    return any(map(_is_written, paths))


def _is_written(path: Path) -> bool:
    try:
        descriptor = open_regular(path)
    except OSError:
        return False
    try:
        return writing(descriptor) is Writing.OPEN
    finally:
        os.close(descriptor)


class Writing(enum.Enum):
    """Whether a program has a file open for writing."""

    OPEN = "open"
    CLOSED = "closed"
    UNKNOWN = "unknown"
    """The file belongs to another user, or its file system does not know."""


def open_regular(path: Path, *, most_bytes: int | None = None) -> int:
    """Return a descriptor of a regular file, of at most so many bytes.  Raises OSError."""
    try:
        # O_NONBLOCK: a FIFO without a writer must not stop us before fstat tells it apart.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except ValueError:
        raise OSError(errno.EINVAL, "not a path") from None
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and (most_bytes is None or status.st_size <= most_bytes):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    raise OSError(errno.EFBIG, f"it is larger than {most_bytes} bytes")


def read_descriptor(descriptor: int, most_bytes: int) -> bytes:
    """Return what an open file holds; where that is more than allowed, one byte more.  Raises OSError."""
    pieces, left = [], most_bytes + 1
    while left > 0 and (piece := os.read(descriptor, min(left, _PIECE_BYTES))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return what a regular file holds; where that is more than allowed, one byte more.  Raises OSError."""
    descriptor = open_regular(path)
    try:
        return read_descriptor(descriptor, most_bytes)
    finally:
        os.close(descriptor)


def path_of(descriptor: int) -> str:
    """Return a name of an open file, for a library that reads by name: it leads to this file and no other."""
    return f"/proc/self/fd/{descriptor}"


def writing(descriptor: int) -> Writing:
    """Ask for a read lease.

    The kernel grants a read lease on a file only to its owner, and only while no program writes
    it.  A program that opens it for writing at this very moment waits until the lease is given back,
    in the next line, and we get a signal: SIGURG, which is ignored, instead of SIGIO, which kills.
    """
    try:
        if _file_system_of(descriptor) not in _KNOWS_ALL_WRITERS:
            return Writing.UNKNOWN
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return Writing.OPEN if error.errno == errno.EAGAIN else Writing.UNKNOWN
    return Writing.CLOSED


def _file_system_of(descriptor: int) -> str:
    """Return the kind of file system that an open file is on, nothing where it is not mounted here."""
    with Path(f"/proc/self/fdinfo/{descriptor}").open(encoding="ascii") as about:
        mount = next((line.split()[1] for line in about if line.startswith("mnt_id:")), "")
    with Path("/proc/self/mountinfo").open(encoding="utf-8", errors="replace") as mounts:
        ours = (line for line in mounts if line.startswith(f"{mount} "))
        # proc(5): any number of optional fields, a hyphen, then the kind.
        return next((line.partition(" - ")[2].split(" ")[0] for line in ours), "")
