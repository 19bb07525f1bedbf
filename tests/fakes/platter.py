"""The content of a disk and its durable part: the lower half of tests.fakes.disk.

A change of a name or of content is pending until a sync makes it durable. A power cut may keep any part of
the pending changes, in any order. A name's older change that arrives after a newer one is ignored.

The model promises only what POSIX does: a sync of a file keeps its content, and a sync of a folder its
names. A rename or a link is there or not. A write may keep any of its sectors of 512 bytes, and a file its
new size without the content. Modification times are lost. Real disks lose less. In measured crash images,
ext4 and xfs keep names in order, and an fsync of a file keeps all names that were changed before it. btrfs
has a log for each folder and each file.

Values are never changed in place: so a copy of a platter is cheap, and every instant of a run can be kept.
"""

import errno
import itertools
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

SECTOR_BYTES = 512
ROOT = 1


@dataclass(frozen=True, slots=True)
class NameChange:
    """Names that change together: (inode of the folder, name, inode or None if removed)."""

    number: int
    changes: tuple[tuple[int, str, int | None], ...]

    def touches(self, folder: int) -> bool:
        return any(changed == folder for changed, _, _ in self.changes)


@dataclass(frozen=True, slots=True)
class ContentChange:
    """Bytes at an offset of a file. Without bytes, the file is truncated or extended to the offset."""

    inode: int
    offset: int
    content: bytes | None

    def applied_to(self, content: bytes) -> bytes:
        if self.content is None:
            return content[: self.offset].ljust(self.offset, b"\0")
        start = content[: self.offset].ljust(self.offset, b"\0")
        return start + self.content + content[self.offset + len(self.content) :]


@dataclass(frozen=True, slots=True)
class Growth:
    """A file's new size without the content that made the file grow."""

    inode: int
    size: int


Change = NameChange | ContentChange | Growth
Names = dict[str, int]
DurableNames = dict[str, tuple[int | None, int]]
"""Name to inode (None: removed) and the number of the change that set it."""


@dataclass(slots=True)
class Platter:
    """Everything that survives a process, and the part of it that survives a power cut."""

    names: dict[int, Names] = field(default_factory=lambda: {ROOT: {}})
    contents: dict[int, bytes] = field(default_factory=dict)
    fifos: set[int] = field(default_factory=set)
    modified_at_ns: dict[int, int] = field(default_factory=dict)
    durable_names: dict[int, DurableNames] = field(default_factory=lambda: {ROOT: {}})
    durable_contents: dict[int, bytes] = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)
    locks: dict[int, tuple[object, int]] = field(default_factory=dict)
    """For each inode: the process that holds the exclusive lock, and its descriptor."""
    shared: dict[int, set[tuple[object, int]]] = field(default_factory=dict)
    """For each inode: the holders of a shared lock."""
    last_number: int = ROOT
    is_safe: bool = False
    """The power will not be cut any more, so durable state is no longer tracked."""

    def number(self) -> int:
        """Return a new number for an inode or a change."""
        self.last_number += 1
        return self.last_number

    def copy(self) -> "Platter":
        return Platter(
            dict(self.names),
            dict(self.contents),
            set(self.fifos),
            dict(self.modified_at_ns),
            dict(self.durable_names),
            dict(self.durable_contents),
            list(self.pending),
            {},
            {},
            self.last_number,
        )

    def folder(self, path: str) -> int:
        """Return the inode of a folder. Raises OSError."""
        folder = ROOT
        for name in path.split("/")[1:]:
            inode = self.names[folder].get(name)
            if inode is None or inode not in self.names:
                raise disk_error(errno.ENOENT if inode is None else errno.ENOTDIR, path)
            folder = inode
        return folder

    def add_folder(self) -> int:
        inode = self.number()
        self.names[inode] = {}
        self.durable_names[inode] = {}
        return inode

    def change_names(self, *changes: tuple[int, str, int | None]) -> None:
        """Change names at once for all processes; the platter gets the change at any later time."""
        for folder, name, inode in changes:
            names = dict(self.names[folder])
            if inode is None:
                names.pop(name, None)
            else:
                names[name] = inode
            self.names[folder] = names
        if self.is_safe:
            return
        self.pending.append(NameChange(self.number(), changes))

    def change_content(self, change: ContentChange, now_ns: int) -> None:
        before = self.contents[change.inode]
        self.contents[change.inode] = after = change.applied_to(before)
        self.modified_at_ns[change.inode] = now_ns
        if self.is_safe:
            return
        if len(after) > len(before) and change.content is not None:
            self.pending.append(Growth(change.inode, len(after)))
        self.pending.append(change)

    def sync_file(self, inode: int) -> None:
        if self.pending:
            self._settle_some(lambda change: not isinstance(change, NameChange) and change.inode == inode)

    def lose_content(self, inode: int, *, drops_pages: bool) -> None:
        """Drop a file's pending content; its new size may still reach the platter."""
        self.pending = [change for change in self.pending if not _is_lost_with(change, inode)]
        if drops_pages:
            durable = self.durable_contents.get(inode, b"")
            size = len(self.contents[inode])
            self.contents[inode] = durable[:size].ljust(size, b"\0")

    def sync_names(self, folder: int) -> None:
        if self.pending:
            self._settle_some(lambda change: isinstance(change, NameChange) and change.touches(folder))

    def sync_all(self) -> None:
        self._settle_some(lambda _change: True)

    def after_cut(self, survivors: Sequence[Change]) -> "Platter":
        """Return what the next boot finds if exactly these pending changes reached the platter."""
        (image,) = self.after_cuts([survivors])
        return image

    def after_cuts(self, of_each: Iterable[Sequence[Change]]) -> "Iterator[Platter]":
        dark = self._without_what_is_pending()
        for survivors in of_each:
            image = dark.copy()
            image._settle(survivors)
            for change in survivors:
                if isinstance(change, NameChange):
                    for folder, _, _ in change.changes:
                        image.names[folder] = _shown(image.durable_names[folder])
                else:
                    image.contents[change.inode] = image.durable_contents[change.inode]
            yield image

    def fingerprint(self) -> frozenset[tuple[object, int | bytes]]:
        """Return a value that is equal for platters that look the same to every process."""
        contents = self.contents
        files: dict[int, tuple[object, ...]] = {}
        linked: dict[int, list[tuple[object, ...]]] = {}
        for folder, names in self.names.items():
            for name, inode in names.items():
                if inode in files:
                    linked.setdefault(inode, [files[inode]]).append((folder, name))
                files[inode] = (folder, name)
        for inode, places in linked.items():
            files[inode] = (frozenset(places),)
        return frozenset([(place, contents.get(inode, inode)) for inode, place in files.items()])

    def _without_what_is_pending(self) -> "Platter":
        image = self.copy()
        image.pending, image.modified_at_ns = [], {}
        image.names = {folder: _shown(names) for folder, names in self.durable_names.items()}
        named = {inode for names in image.names.values() for inode in names.values()}
        named |= {inode for change in self._name_changes() for _, _, inode in change.changes if inode}
        image.durable_contents = {
            inode: content for inode, content in self.durable_contents.items() if inode in named
        }
        image.contents = {
            inode: image.durable_contents.get(inode, b"") for inode in self.contents if inode in named
        }
        return image

    def _name_changes(self) -> list[NameChange]:
        return [change for change in self.pending if isinstance(change, NameChange)]

    def _settle_some(self, is_due: Callable[[Change], bool]) -> None:
        due: list[Change] = []
        rest: list[Change] = []
        for change in self.pending:
            (due if is_due(change) else rest).append(change)
        self._settle(due)
        self.pending = rest

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


def survivors(pending: Sequence[Change], rng: random.Random, most: int) -> Iterator[Sequence[Change]]:
    """Yield every set that a cut may keep if there are at most `most`, else `most` sets drawn by `rng`."""
    pieces = [piece for change in pending for piece in _pieces(change)]
    if len(pieces) < 30 and 1 << len(pieces) <= most:
        for bits in itertools.product((False, True), repeat=len(pieces)):
            yield list(itertools.compress(pieces, bits))
    else:
        yield from itertools.islice(_drawn(pieces, rng), most)


def _pieces(change: Change) -> Iterator[Change]:
    """Yield the sectors of a write; any other change is one piece."""
    if not isinstance(change, ContentChange) or change.content is None:
        yield change
        return
    first, end = change.offset, change.offset + len(change.content)
    edges = [*range(first - first % SECTOR_BYTES, end, SECTOR_BYTES), end]
    for edge, following in itertools.pairwise(edges):
        start = max(edge, first)
        yield replace(change, offset=start, content=change.content[start - first : following - first])


def _drawn(pieces: Sequence[Change], rng: random.Random) -> Iterator[Sequence[Change]]:
    """Yield none and all; then random sets, alternating with all but one, one alone, or a prefix."""
    yield []
    yield pieces
    telling: list[Sequence[Change]] = []
    for i, piece in enumerate(pieces):
        telling += [[*pieces[:i], *pieces[i + 1 :]], [piece], pieces[:i]]
    rng.shuffle(telling)
    while True:
        if telling:
            yield telling.pop()
        share = rng.random()
        yield [piece for piece in pieces if rng.random() < share]


def disk_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _shown(names: DurableNames) -> Names:
    return {name: inode for name, (inode, _) in names.items() if inode is not None}


def _is_lost_with(change: Change, inode: int) -> bool:
    return isinstance(change, ContentChange) and change.inode == inode and change.content is not None
