"""The choices of a power cut: it may keep any part of the unsynced changes, in any order.

The model promises only what POSIX does: a sync of a file keeps its content, and a sync of a folder its
names. A rename or a link is there or not. A write may keep any of its sectors of 512 bytes, and a file its
new size without the content. Modification times are lost.

Real disks lose less. In measured crash images, ext4 and xfs keep names in order, and an fsync of a file
keeps all names that were changed before it. btrfs has a log for each folder and each file.
"""

import itertools
import random
from collections.abc import Iterator, Sequence

from tests.fakes.platter import Change

Survivors = Iterator[Sequence[Change]]


def prefixes(pending: Sequence[Change]) -> Survivors:
    """Yield each prefix of the changes, the oldest first, with its last change torn or whole."""
    for count, following in enumerate(pending):
        yield pending[:count]
        if len(pieces := following.pieces()) > 1:
            yield [*pending[:count], *pieces[: len(pieces) // 2]]
    yield pending


def survivors(pending: Sequence[Change], rng: random.Random, most: int) -> Survivors:
    """Yield every set that a cut may keep if there are at most `most`, else `most` sets drawn by `rng`."""
    pieces = [piece for change in pending for piece in change.pieces()]
    if len(pieces) < 30 and 1 << len(pieces) <= most:
        for bits in itertools.product((False, True), repeat=len(pieces)):
            yield list(itertools.compress(pieces, bits))
    else:
        yield from itertools.islice(_drawn(pieces, rng), most)


def _drawn(pieces: Sequence[Change], rng: random.Random) -> Survivors:
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
