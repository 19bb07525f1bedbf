"""The log of writes and flushes, and the images of the disk that it makes possible.

A *place* is an offset in the log, always between two records: what happened before it
had been handed to the disk.  What a flush covers is on the disk when the flush ends; of
what was written after the last flush a power cut may leave any part, in any order, torn
at 512 bytes, which is what a disk promises and the loop device said it does.
"""

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.engines.lab.recorder import RECORD

SECTOR_BYTES = 512
_COMPARED_BYTES = 1 << 17


@dataclass(frozen=True, slots=True)
class Write:
    """One write, where it stands in the log."""

    offset: int
    """On the disk."""
    start: int
    """Of its octets, in the log."""
    end: int
    """The place behind it."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """A flush, or the beginning, and the writes after it up to the next one."""

    writes: tuple[Write, ...]
    begin: int
    """The place behind the flush."""
    end: int
    """The place before the next flush, or where the log ends."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One way in which the power may have gone."""

    epoch: int
    place: int
    """What had been handed to the disk by then."""
    pieces: tuple[tuple[Write, int, int], ...]
    """What is left of the writes since the last flush, in order: from which octet to which."""
    label: str


def read_log(path: Path) -> list[Epoch]:
    """Return what a recorder logged, epoch by epoch; a last record that is not whole is left out."""
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
    """Yield ways to cut, epoch by epoch: nothing left since the flush, everything, and parts drawn."""
    for number, epoch in enumerate(epochs):
        yield Cut(number, epoch.end, (), "nothing since the flush")
        if not epoch.writes:
            continue
        yield Cut(number, epoch.end, tuple(_whole(epoch.writes)), "everything since the flush")
        for _ in range(per_epoch - 2):
            yield _drawn(number, epoch, rng)


def _whole(writes: Sequence[Write]) -> Iterator[tuple[Write, int, int]]:
    return ((write, 0, write.end - write.start) for write in writes)


def _drawn(number: int, epoch: Epoch, rng: random.Random) -> Cut:
    """Draw a cut: how far it got, how much of that is left, and what is torn."""
    issued = epoch.writes[: rng.randint(1, len(epoch.writes))]
    kept, torn = rng.choice((0.1, 0.5, 0.9)), rng.choice((0.0, 0.3))
    pieces: list[tuple[Write, int, int]] = []
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
    """What is surely on the disk, moved on epoch by epoch, and copies of it with a cut's pieces."""

    def __init__(self, base: Path, log: Path, epochs: Sequence[Epoch], folder: Path) -> None:
        """Begin with `base`, the disk before the log; files are made in `folder`, sparse."""
        self._epochs = epochs
        self._epoch = 0
        self._log = log.open("rb")
        self._size = base.stat().st_size
        self._durable = (folder / "durable").open("w+b", buffering=0)
        with base.open("rb") as file:
            _make_same(file.fileno(), self._durable.fileno(), self._size)
        self.image = folder / "image"
        """Where `build` puts an image: the same file each time."""
        with self.image.open("ab") as image:
            image.truncate(self._size)

    def build(self, cut: Cut) -> None:
        """Make `image` what this cut leaves.  Cuts come in the order of their epochs."""
        while self._epoch < cut.epoch:
            for write, begin, end in _whole(self._epochs[self._epoch].writes):
                self._put(self._durable.fileno(), write, begin, end)
            self._epoch += 1
        with self.image.open("r+b", buffering=0) as image:
            _make_same(self._durable.fileno(), image.fileno(), self._size)
            for write, begin, end in cut.pieces:
                self._put(image.fileno(), write, begin, end)

    def close(self) -> None:
        self._durable.close()
        self._log.close()

    def _put(self, fd: int, write: Write, begin: int, end: int) -> None:
        octets = os.pread(self._log.fileno(), end - begin, write.start + begin)
        # Zeros on a hole would fill it.
        is_zero = octets.count(0) == len(octets)
        if is_zero and os.pread(fd, len(octets), write.offset + begin) == octets:
            return
        os.pwrite(fd, octets, write.offset + begin)


def _make_same(source: int, target: int, size: int) -> None:
    """Make `target` the same as `source`, whatever it was: most of it is the same already."""
    os.ftruncate(target, size)
    offset = 0
    while (offset := min(_next_content(source, offset, size), _next_content(target, offset, size))) < size:
        offset -= offset % _COMPARED_BYTES
        wanted = os.pread(source, _COMPARED_BYTES, offset)
        if os.pread(target, _COMPARED_BYTES, offset) != wanted:
            os.pwrite(target, wanted, offset)
        offset += _COMPARED_BYTES


def _next_content(fd: int, offset: int, size: int) -> int:
    """Return where the next octets are that are no hole; the end, if there are none."""
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError:  # ENXIO
        return size
