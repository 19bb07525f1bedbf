"""A disk in memory whose power can be cut. It implements the `Disk` port of relay.spool.disk.durable.

The model holds apart what processes see and what is on the platter. `sync` moves a file's content to the
platter, `sync_directory` the names of a folder. All other changes are pending: a power cut may keep any of
them (tests.fakes.platter).

After a failed `sync`, the content to be synced never reaches the platter, and the next `sync` succeeds.
Until a crash, processes still read that content. If the pages are dropped (`Fault.drops_pages`), they read
the platter's content at once.

Any state-changing call can fail, once or from then on, or write only half. A write can also lie: it succeeds,
and the next sync of its file fails. Opening and reading fail only if a fault names them.
"""

import errno
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tests.fakes.platter import ContentChange, Platter, disk_error, survivors

READS = frozenset({"open", "read", "names"})
"""Calls that change nothing. They are no step of a run, and fail only if a fault names them."""


class Killed(BaseException):
    """The process that made the call is killed."""


@dataclass(slots=True)
class Fault:
    """A failure to inject: the `nth` state-changing call after `fail` fails. Counts from 1."""

    nth: int
    error: int
    forever: bool = False
    is_short: bool = False
    """Half of a write is written before it fails."""
    is_lying: bool = False
    """The write succeeds but its content is lost; the next sync of the file fails."""
    kinds: frozenset[str] | None = None
    """Only calls of these kinds count."""
    path: str = ""
    """Only calls about a path that contains this count."""
    drops_pages: bool = False
    """After a failed sync, readers see the platter's content instead of the written content."""


_ERRORS = ("ENOSPC", "EDQUOT", "EFBIG", "EIO", "EROFS", "EACCES", "EINTR")
_ONCE = {
    **{name: Fault(1, getattr(errno, name)) for name in _ERRORS},
    # Calls that need a descriptor.
    "EMFILE": Fault(1, errno.EMFILE, kinds=frozenset({"open", "open_new", "sync_directory", "names"})),
    "half a write, then ENOSPC": Fault(1, errno.ENOSPC, is_short=True),
    "a lying write": Fault(1, errno.EIO, is_lying=True, kinds=frozenset({"write"})),
    "EIO while reading": Fault(1, errno.EIO, kinds=READS),
}
FAULTS = _ONCE | {f"{name} from then on": replace(fault, forever=True) for name, fault in _ONCE.items()}
"""Kinds of faults by name; `nth` is to be replaced."""


class ModelDisk:
    """One process's view of a platter. Paths are absolute."""

    def __init__(self, platter: Platter | None = None) -> None:
        self.platter = platter or Platter()
        self.steps: list[str] = []
        """Every state-changing call, for error messages."""
        self.before: Callable[[str], None] | None = None
        """Called before each state-changing call; a test may let another process act here."""
        self.after: Callable[[], None] | None = None
        """Called after each state-changing call, failed ones too."""
        self.fault: Fault | None = None
        self.has_failed = False
        self._counted = 0
        self._lied_to: set[str] = set()
        self._next_fd = 3
        self._fds: dict[int, tuple[int, str, bool]] = {}
        self._positions: dict[int, int] = {}

    def another(self) -> "ModelDisk":
        return ModelDisk(self.platter)

    @property
    def now_ns(self) -> int:
        """Return the time that files are stamped with; here it stands still."""
        return 0

    def die(self) -> None:
        """Release the descriptors and locks of a dead process."""
        for fd in list(self._fds):
            self.close(fd)

    def after_kill(self) -> "ModelDisk":
        return ModelDisk(self.platter.copy())

    def cuts(self, rng: random.Random, most: int) -> "Iterator[ModelDisk]":
        """Yield what a power cut now may leave: all images, or `most` drawn by `rng`."""
        for image in self.platter.after_cuts(survivors(self.platter.pending, rng, most)):
            yield ModelDisk(image)

    @property
    def open_paths(self) -> list[str]:
        return [path for _, path, _ in self._fds.values()]

    def at(self, nth: int, act: Callable[[], object]) -> None:
        """Before the nth state-changing call from now on, and before no other, call `act`."""
        calls = itertools.count(1)

        def before(_step: str) -> None:
            if next(calls) == nth:
                self.before = None
                act()

        self.before = before

    def kill_at(self, nth: int) -> None:
        """Raise Killed in the nth state-changing call from now on, and in each one behind it."""
        calls = itertools.count(1)

        def before(_step: str) -> None:
            if next(calls) >= nth:
                raise Killed

        self.before = before

    def fail(self, fault: Fault) -> None:
        self.fault, self._counted = fault, 0

    def heal(self) -> None:
        self.fault = None

    def plant(self, path: str, content: bytes) -> None:
        """Put a file in place durably."""
        folder, name = self._place(path)
        inode = self.platter.number()
        self.platter.contents[inode] = self.platter.durable_contents[inode] = content
        self.platter.change_names((folder, name, inode))
        self.platter.sync_names(folder)

    def peek(self, path: str) -> bytes:
        return self.platter.contents[self._inode(path)]

    def poke(self, path: str, content: bytes) -> None:
        inode = self._inode(path)
        self.platter.contents[inode] = self.platter.durable_contents[inode] = content

    def open_new(self, path: str) -> int:
        self._begin("open_new", path)
        folder, name = self._place(path)
        if name in self.platter.names[folder]:
            raise disk_error(errno.EEXIST, path)
        return self._end(self._open(self._create(folder, name), path))

    def open_append(self, path: str) -> int:
        folder, name = self._place(path)
        inode = self.platter.names[folder].get(name)
        self._begin("open_new" if inode is None else "open", path)
        if inode is None:
            return self._end(self._open(self._create(folder, name), path, appends=True))
        return self._open(self._writable(inode, path), path, appends=True)

    def open_read(self, path: str) -> int:
        self._begin("open", path)
        return self._open(self._inode(path), path)

    def open_update(self, path: str) -> int:
        self._begin("open", path)
        return self._open(self._writable(self._inode(path), path), path)

    def close(self, fd: int) -> None:
        inode, _, _ = self._entry(fd)
        del self._fds[fd], self._positions[fd]
        if self.platter.locks.get(inode) == (self, fd):
            del self.platter.locks[inode]
        self.platter.shared.get(inode, set()).discard((self, fd))

    def write_all(self, fd: int, content: bytes) -> None:
        inode, path, appends = self._entry(fd)
        written, fault = self._begin_write(path, content)
        offset = len(self.platter.contents[inode]) if appends else self._positions[fd]
        self.platter.change_content(ContentChange(inode, offset, written), self.now_ns)
        self._positions[fd] = offset + len(written)
        self._end_write(fault)

    def write_at(self, fd: int, content: bytes, offset: int) -> None:
        inode, path, _ = self._entry(fd)
        written, fault = self._begin_write(path, content)
        self.platter.change_content(ContentChange(inode, offset, written), self.now_ns)
        self._end_write(fault)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        inode, path, _ = self._entry(fd)
        if inode in self.platter.names:
            raise disk_error(errno.EISDIR, path)
        if inode in self.platter.fifos:
            raise disk_error(errno.ESPIPE, path)
        self._begin("read", path)
        return self.platter.contents[inode][offset : offset + size]

    def size(self, fd: int) -> int:
        return len(self.platter.contents.get(self._entry(fd)[0], b""))

    def truncate(self, fd: int, size: int) -> None:
        inode, path, _ = self._entry(fd)
        self._begin("truncate", path)
        self.platter.change_content(ContentChange(inode, size, None), self.now_ns)
        self._end()

    def sync(self, fd: int) -> None:
        self._sync("sync", fd)

    def sync_content(self, fd: int) -> None:
        self._sync("sync_content", fd)

    def sync_each(self, fds: Sequence[int], *, content_only: bool) -> list[OSError | None]:
        results: list[OSError | None] = []
        for fd in fds:
            try:
                self._sync("sync_content" if content_only else "sync", fd)
                results.append(None)
            except OSError as error:
                results.append(error)
        return results

    def sync_directory(self, path: str) -> None:
        self._begin("sync_directory", path)
        inode = self._inode(path)
        if inode not in self.platter.names:
            raise disk_error(errno.ENOTDIR, path)
        self.platter.sync_names(inode)
        self._end()

    def sync_all(self, path: str) -> None:
        self._begin("sync_all", path)
        self.platter.sync_all()
        self._end()

    def link(self, source: str, target: str) -> None:
        self._begin("link", source, target)
        inode = self._inode(source)
        folder, name = self._place(target)
        if name in self.platter.names[folder]:
            raise disk_error(errno.EEXIST, target)
        self.platter.change_names((folder, name, inode))
        self._end()

    def rename(self, source: str, target: str) -> None:
        self._begin("rename", source, target)
        inode = self._inode(source)
        (old_folder, old), (folder, name) = self._place(source), self._place(target)
        there = self.platter.names[folder].get(name)
        if there in self.platter.names and inode not in self.platter.names:
            raise disk_error(errno.EISDIR, target)
        if there != inode:
            self.platter.change_names((folder, name, inode), (old_folder, old, None))
        self._end()

    def unlink(self, path: str) -> None:
        self._begin("unlink", path)
        if self._inode(path) in self.platter.names:
            raise disk_error(errno.EISDIR, path)
        self.platter.change_names((*self._place(path), None))
        self._end()

    def names(self, path: str) -> list[str]:
        self._begin("names", path)
        inode = self._inode(path)
        if inode not in self.platter.names:
            raise disk_error(errno.ENOTDIR, path)
        return list(self.platter.names[inode])

    def inode(self, path: str) -> int | None:
        folder, name = self._place(path)
        return self.platter.names[folder].get(name)

    def leads_to(self, path: str, fd: int) -> bool:
        try:
            return self.inode(path) == self._entry(fd)[0]
        except FileNotFoundError:
            return False

    def length(self, path: str) -> int | None:
        inode = self.inode(path)
        return None if inode is None else len(self.platter.contents.get(inode, b""))

    def modified_at_ns(self, fd: int) -> int:
        return self.platter.modified_at_ns.get(self._entry(fd)[0], 0)

    def why_others_may_write(self, path: str) -> str | None:  # noqa: ARG002 - every file is
        return None

    def set_modified_at_ns(self, fd: int, at_ns: int) -> None:
        inode, path, _ = self._entry(fd)
        self._begin("set_modified", path)
        self.platter.modified_at_ns[inode] = at_ns
        self._end()

    def make_directory(self, path: str) -> None:
        if not path:
            return
        parent = path.rpartition("/")[0]
        self.make_directory(parent)
        folder, name = self._place(path)
        if (inode := self.platter.names[folder].get(name)) in self.platter.names:
            return
        if inode is not None:
            raise disk_error(errno.EEXIST, path)
        self._begin("make_directory", path)
        self.platter.change_names((folder, name, self.platter.add_folder()))
        self._end()
        self.sync_directory(parent or "/")

    def remove_directory(self, path: str) -> None:
        self._begin("remove_directory", path)
        if self.platter.names[self.platter.folder(path)]:
            raise disk_error(errno.ENOTEMPTY, path)
        self.platter.change_names((*self._place(path), None))
        self._end()

    def make_fifo(self, path: str) -> None:
        folder, name = self._place(path)
        if name not in self.platter.names[folder]:
            self._begin("make_fifo", path)
            inode = self.platter.number()
            self.platter.fifos.add(inode)
            self.platter.change_names((folder, name, inode))
            self._end()

    def lock(self, path: str, *, wait: bool, is_shared: bool = False) -> int | None:
        fd = self.open_append(path)
        if is_shared and self._entry(fd)[0] not in self.platter.locks:
            self.platter.shared.setdefault(self._entry(fd)[0], set()).add((self, fd))
            return fd
        if not is_shared and not self.platter.shared.get(self._entry(fd)[0]) and self.lock_open(fd):
            return fd
        self.close(fd)
        if wait:
            raise disk_error(errno.EDEADLK, path)
        return None

    def lock_open(self, fd: int) -> bool:
        inode = self._entry(fd)[0]
        return self.platter.locks.setdefault(inode, (self, fd)) == (self, fd)

    def free(self, path: str) -> tuple[int, int | None]:
        self._inode(path)
        return 1 << 40, 1_000_000

    def _begin(self, kind: str, *paths: str) -> None:
        if self.platter.is_safe and self.fault is None and self.before is None:
            return  # no one uses the steps
        fault = self._next_fault(kind, *paths)
        if fault is not None:
            raise self._failed(fault)

    def _next_fault(self, kind: str, *paths: str) -> Fault | None:
        if kind not in READS:
            self.steps.append(" ".join((kind, *paths)))
            if self.before is not None:
                self.before(self.steps[-1])
        fault = self.fault
        if fault is None or (kind in READS if fault.kinds is None else kind not in fault.kinds):
            return None
        if not any(fault.path in path for path in paths):
            return None
        self._counted += 1
        is_due = self._counted == fault.nth or (fault.forever and self._counted > fault.nth)
        self.has_failed = self.has_failed or is_due
        return fault if is_due else None

    def _failed(self, fault: Fault) -> OSError:
        self.steps.append(f"  {errno.errorcode[fault.error]}")
        if self.after is not None:
            self.after()
        return disk_error(fault.error, "injected")

    def _end(self, result: int = 0) -> int:
        if self.after is not None:
            self.after()
        return result

    def _begin_write(self, path: str, content: bytes) -> tuple[bytes, Fault | None]:
        fault = self._next_fault("write", path, str(len(content)))
        if fault is not None and fault.is_lying:
            self._lied_to.add(path)
            return content, None
        if fault is not None and not (fault.is_short and len(content) > 1):
            raise self._failed(fault)
        return content if fault is None else content[: len(content) // 2], fault

    def _end_write(self, fault: Fault | None) -> None:
        if fault is not None:
            raise self._failed(fault)
        self._end()

    def _sync(self, kind: str, fd: int) -> None:
        inode, path, _ = self._entry(fd)
        fault = self._next_fault(kind, path)
        if path in self._lied_to:
            self._lied_to.discard(path)
            fault = fault or Fault(0, errno.EIO)
        if fault is not None:
            self.platter.lose_content(inode, drops_pages=fault.drops_pages)
            raise self._failed(fault)
        self.platter.sync_file(inode)
        self._end()

    def _open(self, inode: int, path: str, *, appends: bool = False) -> int:
        fd, self._next_fd = self._next_fd, self._next_fd + 1
        self._fds[fd] = (inode, path, appends)
        self._positions[fd] = 0
        return fd

    def _entry(self, fd: int) -> tuple[int, str, bool]:
        if fd not in self._fds:
            raise disk_error(errno.EBADF, str(fd))
        return self._fds[fd]

    def _create(self, folder: int, name: str) -> int:
        inode = self.platter.number()
        self.platter.contents[inode] = b""
        self.platter.modified_at_ns[inode] = self.now_ns
        self.platter.change_names((folder, name, inode))
        return inode

    def _writable(self, inode: int, path: str) -> int:
        if inode in self.platter.names:
            raise disk_error(errno.EISDIR, path)
        return inode

    def _place(self, path: str) -> tuple[int, str]:
        parent, _, name = path.rpartition("/")
        return self.platter.folder(parent), name

    def _inode(self, path: str) -> int:
        folder, name = self._place(path)
        inode = self.platter.names[folder].get(name) if name else folder
        if inode is None:
            raise disk_error(errno.ENOENT, path)
        return inode
