"""The interface `Disk` and the real disk: the only module that calls fsync, link, rename and flock.

Guarantees: `write_all` and `write_at` return once every byte is written.  A file's content and size survive
loss of power once `sync` returned, the names in a folder once `sync_directory` returned.
Assumes: one local file system that honours fsync (`doubt_about` knows some that do not).

Rules, measured on ext4, xfs and btrfs with real crash images:
- A name is durable only after `sync_directory` of its folder; `sync_content` (fdatasync) never makes it so.
- A failed sync marks the pages clean though the disk has the old bytes, so a second sync that "succeeds"
  proves nothing.  Nothing here retries.  The caller that gets the error abandons the file (inbound) or stops
  trusting its memory (state).
- A lock is flock, because a POSIX lock is lost as soon as any descriptor of the file is closed.  Nobody else
  unlinks a locked file.  After locking a file that others may unlink, the caller checks `leads_to`.

Does not: decide what is written, or when.
"""

import contextlib
import ctypes
import fcntl
import os
import stat
from collections.abc import Sequence
from typing import Protocol

from relay.spool.disk.kernel_syncs import KernelSyncs
from relay.spool.disk.os_errors import error_of, is_lack_of_room

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
ROOM_BYTES = 64 * 1024
"""A file of small groups grows by this much at once: room for some hundreds of groups."""
_PLENTY_BYTES = 64 * ROOM_BYTES
"""With less free, no zeros are added: a full disk empties only while every necessary write finds room."""


class Disk(Protocol):
    """The disk for the spool and the history.  Every method may raise OSError."""

    def open_new(self, path: str) -> int:
        """Create a file for reading and writing; FileExistsError if the name is taken."""

    def open_append(self, path: str) -> int:
        """Open or create a file for reading and for writing at its end."""

    def open_read(self, path: str) -> int:
        """Open a regular file for reading; never follows a link, never blocks on a FIFO."""

    def open_update(self, path: str) -> int:
        """Open an existing regular file for reading and for writing in place."""

    def close(self, fd: int) -> None: ...

    def write_all(self, fd: int, content: bytes) -> None:
        """Write every byte at the file's position; after a short write, continue or raise."""

    def write_at(self, fd: int, content: bytes, offset: int) -> None:
        """Write every byte at an offset."""

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Read up to `size` bytes at an offset; shorter only at the end of the file."""

    def size(self, fd: int) -> int:
        """Return the length of an open file in bytes."""

    def truncate(self, fd: int, size: int) -> None: ...

    def sync(self, fd: int) -> None:
        """Make content, size and times of a file durable (fsync)."""

    def sync_content(self, fd: int) -> None:
        """Make content and size of a file durable (fdatasync); never its name."""

    def sync_each(self, fds: Sequence[int], *, content_only: bool) -> list[OSError | None]:
        """Sync several files as one batch (fsync or fdatasync); return a result for each, never retry."""

    def sync_directory(self, path: str) -> None:
        """Make the names in a folder durable."""

    def sync_all(self, path: str) -> None:
        """Make everything durable that the file system of a folder has in memory (syncfs)."""

    def link(self, source: str, target: str) -> None:
        """Give a file a second name; FileExistsError if that is taken."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file; replace a file that has the new name."""

    def unlink(self, path: str) -> None: ...

    def names(self, path: str) -> list[str]:
        """Return all names in a folder, in no order; on an error raise, and never return only some."""

    def inode(self, path: str) -> int | None:
        """Return the inode number behind a name, or None if there is none."""

    def leads_to(self, path: str, fd: int) -> bool:
        """Return whether a name still leads to an open file, and not to another that replaced it."""

    def modified_at_ns(self, fd: int) -> int:
        """Return when an open file was last written; a hint, since a crash may lose it."""

    def set_modified_at_ns(self, fd: int, at_ns: int) -> None: ...

    def why_others_may_write(self, path: str) -> str | None:
        """Return why another user may change a file, or the names in a folder; None if only ours may."""

    def make_directory(self, path: str) -> None:
        """Create a folder and its parents durably, with mode 0700; no error if it exists."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty folder."""

    def make_fifo(self, path: str) -> None:
        """Create a FIFO; no error if the name is taken."""

    def lock(self, path: str, *, wait: bool, is_shared: bool = False) -> int | None:
        """Return a descriptor that holds the lock until it is closed, or None if the lock is taken.

        Several may hold it as shared at the same time; meanwhile nobody may hold it alone.
        """

    def lock_open(self, fd: int) -> bool:
        """Lock an open file until its descriptor is closed; return whether we got the lock."""

    def free(self, path: str) -> tuple[int, int | None]:
        """Return the free bytes and inodes; None for inodes if the file system does not count them."""


class RealDisk:
    def __init__(self) -> None:
        self._kernel = KernelSyncs()

    def open_new(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)

    def open_append(self, path: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(path, flags, FILE_MODE)

    def open_read(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)

    def open_update(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)

    def close(self, fd: int) -> None:
        os.close(fd)

    def write_all(self, fd: int, content: bytes) -> None:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]

    def write_at(self, fd: int, content: bytes, offset: int) -> None:
        view = memoryview(content)
        while view:
            written = os.pwrite(fd, view, offset)
            view, offset = view[written:], offset + written

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        chunks = []
        while size > 0 and (chunk := os.pread(fd, size, offset)):
            chunks.append(chunk)
            size, offset = size - len(chunk), offset + len(chunk)
        return b"".join(chunks) if len(chunks) != 1 else chunks[0]

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        os.fsync(fd)

    def sync_content(self, fd: int) -> None:
        os.fdatasync(fd)

    def sync_each(self, fds: Sequence[int], *, content_only: bool) -> list[OSError | None]:
        results = self._kernel.sync(fds, content_only=content_only) if len(fds) > 1 else []
        sync = os.fdatasync if content_only else os.fsync
        return results + [error_of(sync, fd) for fd in fds[len(results) :]]

    def sync_directory(self, path: str) -> None:
        with opened(self, os.open(path, _DIRECTORY)) as fd:
            os.fsync(fd)

    def sync_all(self, path: str) -> None:
        with opened(self, os.open(path, _DIRECTORY)) as fd:
            if ctypes.CDLL(None, use_errno=True).syncfs(fd):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), path)

    def link(self, source: str, target: str) -> None:
        os.link(source, target, follow_symlinks=False)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def names(self, path: str) -> list[str]:
        return os.listdir(path)

    def inode(self, path: str) -> int | None:
        try:
            return os.stat(path, follow_symlinks=False).st_ino
        except FileNotFoundError:
            return None

    def leads_to(self, path: str, fd: int) -> bool:
        # The kernel gives the inode number to no other file while this one is open.
        try:
            return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def modified_at_ns(self, fd: int) -> int:
        return os.fstat(fd).st_mtime_ns

    def set_modified_at_ns(self, fd: int, at_ns: int) -> None:
        os.utime(fd, ns=(at_ns, at_ns))

    def why_others_may_write(self, path: str) -> str | None:
        found = os.stat(path)
        if os.geteuid() not in (0, found.st_uid):
            return f"belongs to user {found.st_uid}, not to the user of this process"
        mode = stat.S_IMODE(found.st_mode)
        is_open = mode & 0o022
        return f"has mode {mode:04o}: remove write permission for group and others" if is_open else None

    def make_directory(self, path: str) -> None:
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path.rstrip("/")) or "."
        self.make_directory(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, DIRECTORY_MODE)
        # Crash before this: the folder may be gone; it was still empty.
        self.sync_directory(parent)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def make_fifo(self, path: str) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, FILE_MODE)

    def lock(self, path: str, *, wait: bool, is_shared: bool = False) -> int | None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
        try:
            fcntl.flock(fd, kind | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        return fd

    def lock_open(self, fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def free(self, path: str) -> tuple[int, int | None]:
        counts = os.statvfs(path)
        # btrfs reports 0 inodes in total, which does not mean that none is left.
        return counts.f_bavail * counts.f_frsize, counts.f_favail if counts.f_files else None


class opened:  # noqa: N801 - reads as `contextlib.closing` does
    """Close a file at the end.  A class: each message opens some, and a generator costs twice as much."""

    __slots__ = ("_disk", "_fd")

    def __init__(self, disk: Disk, fd: int) -> None:
        self._disk, self._fd = disk, fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *raised: object) -> None:
        self._disk.close(self._fd)


def write_with_room(
    disk: Disk, fd: int, content: bytes, offset: int, *, folder: str, room_bytes: int = ROOM_BYTES
) -> None:
    """Write at an offset; if the file grows by that, add zeros as room for the next writes.

    The sync of a file that did not grow is one flush of the disk.  If the file grew, the sync also commits
    the file system's journal: on ext4, on a disk whose flush takes 5 ms, a decision took 40 ms, and takes 18.
    If the file system of `folder` has little free space, only the content is written.  Raises OSError; any
    part of the content may be written then.
    """
    end = offset + len(content)
    if end <= disk.size(fd) or not _has_plenty(disk, folder):
        disk.write_at(fd, content, offset)
        return
    try:
        disk.write_at(fd, content + bytes(room_bytes), offset)
    except OSError as error:
        if not is_lack_of_room(error):
            raise
        # A quota may refuse the zeros.
        disk.write_at(fd, content, offset)
        disk.truncate(fd, end)


def _has_plenty(disk: Disk, folder: str) -> bool:
    try:
        return disk.free(folder)[0] >= _PLENTY_BYTES
    except OSError:
        return False


_UNFIT_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "tmpfs", "ramfs", "fuse.sshfs"})


def doubt_about(path: str) -> str | None:
    """Return why a folder may lose what is stored in it, or None.

    A file system in memory is not durable; a network file system promises neither locks nor durable names.
    """
    best, kind = "", ""
    real = os.path.realpath(path)
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            _, mount_point, file_system, *_ = line.split(" ")
            point = mount_point.replace("\\040", " ")
            is_above = point in ("/", real) or real.startswith(point + "/")
            if is_above and len(point) >= len(best):
                best, kind = point, file_system
    if kind not in _UNFIT_FILE_SYSTEMS:
        return None
    return f"{best} is a {kind} file system, which is not durable or has no reliable locks"
