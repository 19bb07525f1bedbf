"""What a disk holds, and what of it outlives power: the lower half of tests.fakes.disk.

Values are never changed in place, so that a copy of a platter is cheap and every instant
of a run can be kept.
"""

import enum
import errno
import itertools
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

SECTOR_BYTES = 512
ROOT = 1


class Renames(enum.Enum):
    """How a rename meets a power cut."""

    WHOLE = "both names change or neither"
    HALVES = "the new name may be there while the old one still is; never neither"


@dataclass(frozen=True, slots=True)
class NameChange:
    """Names that change together: (inode of the folder, name, inode or None)."""

    number: int
    changes: tuple[tuple[int, str, int | None], ...]
    needs: "NameChange | None" = None
    """This one reaches the platter only with or after that one."""

    def pieces(self) -> "list[Change]":
        return [self]

    def touches(self, folder: int) -> bool:
        return any(changed == folder for changed, _, _ in self.changes)


@dataclass(frozen=True, slots=True)
class ContentChange:
    """Bytes at an offset of a file; without bytes, its length is set to the offset."""

    inode: int
    offset: int
    content: bytes | None

    def pieces(self) -> "list[Change]":
        """Return what of it may reach the platter by itself."""
        if self.content is None:
            return [self]
        end = self.offset + len(self.content)
        edges = [*range(self.offset - self.offset % SECTOR_BYTES, end, SECTOR_BYTES), end]
        found: list[Change] = []
        for edge, following in itertools.pairwise(edges):
            start = max(edge, self.offset)
            part = self.content[start - self.offset : following - self.offset]
            found.append(replace(self, offset=start, content=part))
        return found

    def applied_to(self, content: bytes) -> bytes:
        if self.content is None:
            return content[: self.offset].ljust(self.offset, b"\0")
        start = content[: self.offset].ljust(self.offset, b"\0")
        return start + self.content + content[self.offset + len(self.content) :]


@dataclass(frozen=True, slots=True)
class Growth:
    """A file's new size, without the content that made it grow."""

    inode: int
    size: int

    def pieces(self) -> "list[Change]":
        return [self]


Change = NameChange | ContentChange | Growth
Names = dict[str, int]
DurableNames = dict[str, tuple[int | None, int]]
"""Name to inode and the number of the change that set it; None: removed."""


@dataclass(slots=True)
class Platter:
    """Everything that outlives a process, and what of it outlives power."""

    renames: Renames = Renames.WHOLE
    names: dict[int, Names] = field(default_factory=lambda: {ROOT: {}})
    contents: dict[int, bytes] = field(default_factory=dict)
    fifos: set[int] = field(default_factory=set)
    symlinks: set[int] = field(default_factory=set)
    modified_at_ns: dict[int, int] = field(default_factory=dict)
    durable_names: dict[int, DurableNames] = field(default_factory=lambda: {ROOT: {}})
    durable_contents: dict[int, bytes] = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)
    locks: dict[int, tuple[object, int]] = field(default_factory=dict)
    """By inode: which process holds the lock, by which descriptor."""
    last_number: int = ROOT
    folders: dict[str, int] = field(default_factory=lambda: {"": ROOT})
    """Inodes of folders by path, as far as they were looked up."""

    def number(self) -> int:
        """Return a number that was never returned before: of an inode or of a change."""
        self.last_number += 1
        return self.last_number

    def copy(self) -> "Platter":
        """Return a platter of the same state, without the processes."""
        return Platter(
            self.renames,
            dict(self.names),
            dict(self.contents),
            set(self.fifos),
            set(self.symlinks),
            dict(self.modified_at_ns),
            dict(self.durable_names),
            dict(self.durable_contents),
            list(self.pending),
            {},
            self.last_number,
        )

    def folder(self, path: str) -> int:
        """Return the inode of a folder.  Raises OSError."""
        if (known := self.folders.get(path)) is not None:
            return known
        parent, _, name = path.rpartition("/")
        inode = self.names[self.folder(parent)].get(name)
        if inode is None:
            raise disk_error(errno.ENOENT, path)
        if inode not in self.names:
            raise disk_error(errno.ENOTDIR, path)
        self.folders[path] = inode
        return inode

    def add_folder(self) -> int:
        """Return the inode of a new, empty folder without a name."""
        inode = self.number()
        self.names[inode] = {}
        self.durable_names[inode] = {}
        return inode

    def change_names(self, *changes: tuple[int, str, int | None]) -> None:
        """Change names for processes, all at once; the platter follows when it likes."""
        for folder, name, inode in changes:
            names = dict(self.names[folder])
            before = names.get(name)
            if inode is None:
                names.pop(name, None)
            else:
                names[name] = inode
            self.names[folder] = names
            if before in self.names or inode in self.names:
                self.folders = {"": ROOT}
        if self.renames is Renames.HALVES and len(changes) == 2:
            added = NameChange(self.number(), changes[:1])
            self.pending += [added, NameChange(self.number(), changes[1:], added)]
        else:
            self.pending.append(NameChange(self.number(), changes))

    def change_content(self, change: ContentChange, now_ns: int) -> None:
        """Change a file's content or length for processes."""
        before = self.contents[change.inode]
        self.contents[change.inode] = after = change.applied_to(before)
        self.modified_at_ns[change.inode] = now_ns
        if len(after) > len(before) and change.content is not None:
            self.pending.append(Growth(change.inode, len(after)))
        self.pending.append(change)

    def sync_content(self, inode: int, *, is_lost: bool) -> None:
        """Let a file's content reach the platter; or never, where the disk failed."""
        of_file: list[Change] = []
        rest: list[Change] = []
        for change in self.pending:
            is_of_file = not isinstance(change, NameChange) and change.inode == inode
            (of_file if is_of_file else rest).append(change)
        if not is_lost:
            self._settle(of_file)
        self.pending = rest

    def sync_names(self, folder: int) -> None:
        """Let the names in a folder reach the platter."""
        numbers: set[int] = set()
        for change in self.pending:
            if isinstance(change, NameChange) and change.touches(folder):
                numbers |= {change.number, change.needs.number if change.needs else change.number}
        of_folder: list[Change] = []
        rest: list[Change] = []
        for change in self.pending:
            is_due = isinstance(change, NameChange) and change.number in numbers
            (of_folder if is_due else rest).append(change)
        self._settle(of_folder)
        self.pending = rest

    def after_cut(self, survivors: Sequence[Change]) -> "Platter":
        """Return what the next boot finds if these of the pending changes had reached the platter."""
        image = self.copy()
        lost = {c.number for c in self.pending if isinstance(c, NameChange)}
        lost -= {c.number for c in survivors if isinstance(c, NameChange)}
        image._settle(
            [
                change
                for change in survivors
                if not (isinstance(change, NameChange) and change.needs and change.needs.number in lost)
            ]
        )
        image.pending = []
        image.modified_at_ns = {}
        image.names = {
            folder: {name: inode for name, (inode, _) in names.items() if inode is not None}
            for folder, names in image.durable_names.items()
        }
        image.contents = {inode: image.durable_contents.get(inode, b"") for inode in image.contents}
        image.durable_contents = dict(image.contents)
        return image

    def _settle(self, changes: Sequence[Change]) -> None:
        for change in changes:
            match change:
                case NameChange():
                    for folder, name, inode in change.changes:
                        names = self.durable_names[folder]
                        if names.get(name, (None, 0))[1] < change.number:
                            self.durable_names[folder] = {**names, name: (inode, change.number)}
                case Growth():
                    content = self.durable_contents.get(change.inode, b"")
                    self.durable_contents[change.inode] = content.ljust(change.size, b"\0")
                case ContentChange():
                    content = self.durable_contents.get(change.inode, b"")
                    self.durable_contents[change.inode] = change.applied_to(content)


def disk_error(number: int, path: str) -> OSError:
    """Return the error that the kernel would raise."""
    return OSError(number, os.strerror(number), path)


def prefixes_of(pending: Sequence[Change]) -> Iterator[Sequence[Change]]:
    """Yield what an ordered log may keep: the oldest so many, the last of them torn or not."""
    for count, following in enumerate(pending):
        yield pending[:count]
        if len(pieces := following.pieces()) > 1:
            yield [*pending[:count], *pieces[: len(pieces) // 2]]
    yield pending


def subsets_of(pending: Sequence[Change], rng: random.Random, most: int) -> Iterator[Sequence[Change]]:
    """Yield every subset if they are at most `most`, else that many drawn by `rng`."""
    pieces = [piece for change in pending for piece in change.pieces()]
    if len(pieces) < 30 and 1 << len(pieces) <= most:
        for bits in itertools.product((False, True), repeat=len(pieces)):
            yield list(itertools.compress(pieces, bits))
    else:
        yield from itertools.islice(_drawn(pieces, rng), most)


def _drawn(pieces: Sequence[Change], rng: random.Random) -> Iterator[Sequence[Change]]:
    """Yield none, all, then all but one and one alone in turn with what chance says."""
    yield []
    yield pieces
    telling = [[*pieces[:i], *pieces[i + 1 :]] for i in range(len(pieces))] + [[piece] for piece in pieces]
    rng.shuffle(telling)
    while True:
        if telling:
            yield telling.pop()
        share = rng.random()
        yield [piece for piece in pieces if rng.random() < share]
