"""A disk in memory whose power, and whose users, can be cut off at any operation.

What a write left is in `content`, the page cache; what a crash would leave is in
`durable`.  A failed sync marks pages clean without writing them, as kernels do: the
next sync succeeds and proves nothing.  Methods that the throttle has no use for are
RealDisk's and never called.
"""

import errno
import os
from dataclasses import dataclass, field
from random import Random

from relay.spool.disk.durable import RealDisk
from tests.fakes.ours import AllOurs

SECTOR_BYTES = 512


class Killed(BaseException):
    """The caller died at a disk operation."""


@dataclass
class _File:
    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    dirty: list[tuple[int, int]] = field(default_factory=list)

    def write(self, written: bytes, offset: int) -> None:
        assert offset <= len(self.content), "a hole"
        self.content[offset : offset + len(written)] = written
        self.dirty.append((offset, offset + len(written)))

    def truncate(self, size: int) -> None:
        del self.content[size:]
        self.dirty = [(start, min(end, size)) for start, end in self.dirty if start < size]

    def sync(self) -> None:
        for start, end in self.dirty:
            self._persist(start, end)
        del self.durable[len(self.content) :]
        self.dirty = []

    def _persist(self, start: int, end: int) -> None:
        self.durable.extend(bytes(max(0, end - len(self.durable))))
        self.durable[start:end] = self.content[start:end]

    def lose_power(self, random: Random) -> None:
        for start, end in self.dirty:
            for sector in range(start, end, SECTOR_BYTES):
                if random.random() < 0.5:
                    stop = min(end, sector + SECTOR_BYTES)
                    self._persist(sector, random.randint(sector, stop))
        if random.random() < 0.5:
            del self.durable[len(self.content) :]
        self.content, self.dirty = bytearray(self.durable), []


class MemoryDisk(AllOurs, RealDisk):
    """One folder, many users.  No lock ever blocks, since tests take turns."""

    def __init__(self) -> None:
        self.names_now: dict[str, int] = {}
        self.names_durable: dict[str, int] = {}
        self._renamings: list[dict[str, int]] = []
        self._files: dict[int, _File] = {}
        self._open: dict[int, int] = {}
        self.locks: dict[int, str] = {}
        self._next = 100
        self.failures: dict[str, int] = {}
        self._dies_in: int | None = None
        self._dying_random = Random(0)
        self.free_bytes = 1 << 40
        self.operations: list[str] = []
        """Every operation that changed something or made it durable; `note` is a write into a lock."""

    # What a test does to it.

    def fail(self, operation: str, error: int = errno.EIO) -> None:
        """Let the next call of an operation raise, once."""
        self.failures[operation] = error

    def kill_at(self, operations: int, random: Random) -> None:
        """Let the caller die at its n-th operation from now that changes something."""
        self._dies_in, self._dying_random = operations, random

    def revive(self) -> None:
        """Let the last death have been an interruption only: what the caller has open stays open."""
        self._dies_in = None

    def bury(self) -> None:
        """Close what the caller had open, as a kernel does for the dead.  What it wrote stays."""
        self._dies_in = None
        self._open.clear()
        self.locks.clear()

    def cut_power(self, random: Random) -> None:
        """All users die, and with them whatever was not durable, or a part of it."""
        self.bury()
        self.failures.clear()
        for names in self._renamings[: random.randint(0, len(self._renamings))]:
            self.names_durable = names
        self.names_now, self._renamings = dict(self.names_durable), []
        for file in self._files.values():
            file.lose_power(random)

    def read(self, path: str) -> bytes | None:
        """Return what a file holds, or None."""
        inode = self.names_now.get(path)
        return None if inode is None else bytes(self._files[inode].content)

    def put(self, path: str, content: bytes) -> None:
        """Make a file be there, durably."""
        self._next += 1
        self._files[self._next] = _File(bytearray(content), bytearray(content))
        self.names_now[path] = self.names_durable[path] = self._next

    # The port.

    def make_directory(self, path: str) -> None:
        del path

    def lock(self, path: str, *, wait: bool, is_shared: bool = False) -> int | None:
        assert wait
        assert not is_shared
        assert path not in self.locks.values(), "a lock that was not released"
        if path not in self.names_now:
            self._next += 1
            self._files[self._next] = _File()
            self._rename({**self.names_now, path: self._next})
        fd = self._descriptor(self.names_now[path])
        self.locks[fd] = path
        return fd

    def close(self, fd: int) -> None:
        if self._dies_in is None or self._dies_in > 0:
            assert fd in self._open or fd in self.locks, "closed twice"
        self._open.pop(fd, None)
        self.locks.pop(fd, None)

    def inode(self, path: str) -> int | None:
        return self.names_now.get(path)

    def leads_to(self, path: str, fd: int) -> bool:
        return self.names_now.get(path) == self._open.get(fd)

    def length(self, path: str) -> int | None:
        content = self.read(path)
        return None if content is None else len(content)

    def open_update(self, path: str) -> int:
        self._fail("open_update")
        if path not in self.names_now:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._descriptor(self.names_now[path])

    def open_new(self, path: str) -> int:
        self._act("open_new")
        if path in self.names_now:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._next += 1
        self._files[self._next] = _File()
        self._rename({**self.names_now, path: self._next})
        return self._descriptor(self._next)

    def open_read(self, path: str) -> int:
        return self.open_update(path)

    def free(self, path: str) -> tuple[int, int | None]:
        del path
        return self.free_bytes, None

    def size(self, fd: int) -> int:
        return len(self._file(fd).content)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self._fail("pread")
        return bytes(self._file(fd).content[offset : offset + size])

    def write_all(self, fd: int, content: bytes) -> None:
        self.write_at(fd, content, self.size(fd))

    def write_at(self, fd: int, content: bytes, offset: int) -> None:
        file = self._file(fd)
        try:
            self._act("note" if fd in self.locks else "write")
        except (Killed, OSError):
            # In what is said rather than in the room behind it.
            said = content.rstrip(b"\0")
            file.write(said[: self._dying_random.randint(0, len(said))], offset)
            raise
        file.write(content, offset)

    def truncate(self, fd: int, size: int) -> None:
        self._act("truncate")
        self._file(fd).truncate(size)

    def sync(self, fd: int) -> None:
        try:
            self._act("sync")
        except OSError:
            self._file(fd).dirty = []
            raise
        self._file(fd).sync()

    def sync_content(self, fd: int) -> None:
        self.sync(fd)

    def sync_directory(self, path: str) -> None:
        if not any(name.rpartition("/")[0] == path for name in (*self.names_now, *self.names_durable)):
            return  # above the one folder that there is
        self._act("sync_directory")
        self.names_durable, self._renamings = dict(self.names_now), []

    def rename(self, source: str, target: str) -> None:
        self._act("rename")
        names = dict(self.names_now)
        names[target] = names.pop(source)
        self._rename(names)

    def unlink(self, path: str) -> None:
        self._act("unlink")
        if path not in self.names_now:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._rename({name: inode for name, inode in self.names_now.items() if name != path})

    def _rename(self, names: dict[str, int]) -> None:
        self.names_now = names
        self._renamings.append(dict(names))

    def _descriptor(self, inode: int) -> int:
        self._next += 1
        self._open[self._next] = inode
        return self._next

    def _file(self, fd: int) -> _File:
        return self._files[self._open[fd]]

    def _fail(self, operation: str) -> None:
        if (error := self.failures.pop(operation, None)) is not None:
            raise OSError(error, os.strerror(error))

    def _act(self, operation: str) -> None:
        if self._dies_in is not None:
            self._dies_in = max(0, self._dies_in - 1)
            if self._dies_in == 0:
                raise Killed
        self._fail(operation)
        self.operations.append(operation)
