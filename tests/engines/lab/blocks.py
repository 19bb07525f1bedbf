"""The log of writes and flushes, and the disk images that it makes possible.

A *place* is an offset in the log, between two records; all writes before it had been handed to the disk.
A flush makes all writes before it durable. Of the later writes a power cut may leave any part, in any order,
torn at 512 bytes. A disk promises no more, and the loop device announces that sector size.
"""

import os
import random
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.engines.lab.recorder import RECORD

SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class Write:
    """One write, and its position in the log."""

    offset: int
    """Offset on the disk."""
    start: int
    """Offset of its octets in the log."""
    end: int
    """The place behind the write."""


Piece = tuple[Write, int, int]
"""A part of a write: begin and end in it."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """A flush, or the start of the log, and the writes up to the next flush."""

    writes: tuple[Write, ...]
    begin: int
    """The place behind the flush."""
    end: int
    """The place before the next flush, or the end of the log."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One outcome of a power cut."""

    epoch: int
    place: int
    """The writes before this place had been handed to the disk."""
    pieces: tuple[Piece, ...]
    """The surviving pieces of the writes since the last flush, in order."""
    label: str


def read_log(path: Path) -> list[Epoch]:
    """Return the epochs of a recorder's log. An incomplete last record is left out."""
    epochs: list[Epoch] = []
    writes: list[Write] = []
    begin = place = 0
    with path.open("rb") as file:
        length = os.fstat(file.fileno()).st_size
        while place + RECORD.size <= length:
            offset, size = RECORD.unpack(os.pread(file.fileno(), RECORD.size, place))
            end = place + RECORD.size + size
            if end > length:
                break
            if size:
                writes.append(Write(offset, place + RECORD.size, end))
            else:
                epochs.append(Epoch(tuple(writes), begin, place))
                writes, begin = [], end
            place = end
    epochs.append(Epoch(tuple(writes), begin, place))
    return epochs


def cuts(epochs: Sequence[Epoch], rng: random.Random, per_epoch: int) -> Iterator[Cut]:
    """Yield cuts, epoch by epoch: nothing after the flush survives, everything does, or drawn parts do."""
    for number, epoch in enumerate(epochs):
        yield Cut(number, epoch.end, (), "nothing since the flush")
        if not epoch.writes:
            continue
        yield Cut(number, epoch.end, tuple(_whole(epoch.writes)), "everything since the flush")
        for _ in range(per_epoch - 2):
            yield _drawn(number, epoch, rng)


def _whole(writes: Sequence[Write]) -> Iterator[Piece]:
    return ((write, 0, write.end - write.start) for write in writes)


def _drawn(number: int, epoch: Epoch, rng: random.Random) -> Cut:
    """Draw a cut: how many writes were issued, which of them survive, and which are torn."""
    issued = epoch.writes[: rng.randint(1, len(epoch.writes))]
    kept, torn = rng.choice((0.1, 0.5, 0.9)), rng.choice((0.0, 0.3))
    pieces: list[Piece] = []
    for write, begin, end in _whole(issued):
        if rng.random() > kept:
            continue
        if rng.random() < torn:
            sectors = (end - begin + SECTOR_BYTES - 1) // SECTOR_BYTES
            first, last = sorted(rng.choices(range(sectors + 1), k=2))
            begin, end = first * SECTOR_BYTES, min(end, last * SECTOR_BYTES)  # noqa: PLW2901 - a part of it
        if begin < end:
            pieces.append((write, begin, end))
    label = f"{len(pieces)} pieces of {len(issued)} writes since the flush"
    return Cut(number, issued[-1].end, tuple(pieces), label)


class Platter:
    """The durable content of the disk, advanced epoch by epoch, and images of it with a cut's pieces."""

    def __init__(self, base: Path, log: Path, epochs: Sequence[Epoch], folder: Path) -> None:
        """Start with `base`, the disk before the log. The sparse files of the platter go to `folder`."""
        self._epochs, self._epoch = epochs, 0
        self._log, self._durable = log, folder / "durable"
        self.image = folder / "image"
        """The file that `build` overwrites with each image."""
        for path in (self._durable, self.image):
            _copy(base, path)

    def build(self, cut: Cut) -> None:
        """Write the image that this cut leaves. Calls must come in the order of the epochs."""
        for epoch in self._epochs[self._epoch : cut.epoch]:
            self._apply(self._durable, _whole(epoch.writes))
        self._epoch = cut.epoch
        _copy(self._durable, self.image)
        self._apply(self.image, cut.pieces)

    def _apply(self, path: Path, pieces: Iterable[Piece]) -> None:
        with self._log.open("rb") as log, path.open("r+b", buffering=0) as file:
            for write, begin, end in pieces:
                octets = os.pread(log.fileno(), end - begin, write.start + begin)
                os.pwrite(file.fileno(), octets, write.offset + begin)


def _copy(source: Path, target: Path) -> None:
    """Copy a sparse file into another one, whose inode stays: a loop device may be over it."""
    subprocess.run(["cp", "--sparse=always", str(source), str(target)], check=True)
