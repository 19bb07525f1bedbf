"""What a power cut may leave of what was not synced: the models of a disk.

What each one keeps, by `Platter.sync_*` when something is synced and by `survivors` at a cut:

| Model        | fsync of a file     | fdatasync   | fsync of a folder   | a cut keeps of the rest     |
| ------------ | ------------------- | ----------- | ------------------- | --------------------------- |
| ORDERED      | its content, and    | its content | its names, and all  | the oldest names, with the  |
|              | all names that were |             | names that were     | content of before, with all |
|              | changed before its  |             | changed before its  | content, or with none       |
|              | own last change     |             | own last change     |                             |
| FOLDER_LOGS  | its content, names  | the same    | its names           | of each folder and of each  |
|              |                     |             |                     | file the oldest changes     |
| ANY_SUBSET   | its content         | its content | its names           | any                         |

In all of them a write may keep any (ORDERED, FOLDER_LOGS: the first) of its sectors of 512
bytes, and a file its new size without the content.  Modification times are lost.

Sources.  ORDERED: the journal of ext4 (data=ordered, delayed allocation) and the log of
xfs commit changes of names in order, and a sync commits everything up to the change it is
for; content is written back in its own time.  That fdatasync commits no names was
measured on ext4.  FOLDER_LOGS: the tree log of btrfs holds just what was synced, so that
changes in two folders come in another order than they were made; measured.  ANY_SUBSET promises
what POSIX does: nothing before the sync of that very file or folder.
"""

import itertools
import math
import random
from collections.abc import Iterator, Sequence

from tests.fakes.platter import Change, Model, NameChange

Survivors = Iterator[Sequence[Change]]


def survivors(model: Model, pending: Sequence[Change], rng: random.Random, most: int) -> Survivors:
    """Yield what a cut may keep: everything that the model allows if that is at most `most`, else drawn.

    ORDERED is always whole: it is short.
    """
    match model:
        case Model.ORDERED:
            return ordered(pending)
        case Model.FOLDER_LOGS:
            return folder_logs(pending, rng, most)
        case Model.ANY_SUBSET:
            return subsets(pending, rng, most)


def prefixes(pending: Sequence[Change]) -> Survivors:
    """Yield the oldest so many changes, the last of them torn or not."""
    for count, following in enumerate(pending):
        yield pending[:count]
        if len(pieces := following.pieces()) > 1:
            yield [*pending[:count], *pieces[: len(pieces) // 2]]
    yield pending


def ordered(pending: Sequence[Change]) -> Survivors:
    """Yield every number of the oldest names, with the content of before, with all, and with none."""
    yield from prefixes(pending)
    content = [change for change in pending if not isinstance(change, NameChange)]
    if content:
        names: list[Change] = [change for change in pending if isinstance(change, NameChange)]
        for count in range(len(names) + 1):
            yield names[:count]
            yield [*names[:count], *content]


def folder_logs(pending: Sequence[Change], rng: random.Random, most: int) -> Survivors:
    """Yield, of each folder and of each file, every number of the oldest changes."""
    logs: dict[tuple[bool, int], list[Change]] = {}
    for change in pending:
        # A rename is in the log of the folder that it brings a name into.
        is_name = isinstance(change, NameChange)
        of = change.changes[0][0] if isinstance(change, NameChange) else change.inode
        logs.setdefault((is_name, of), []).extend(change.pieces())
    if math.prod(len(log) + 1 for log in logs.values()) <= most:
        starts = [[log[:count] for count in range(len(log) + 1)] for log in logs.values()]
        for kept in itertools.product(*starts):
            yield list(itertools.chain(*kept))
        return
    yield ()
    yield pending
    for _ in range(most - 2):
        counts = [rng.choice((0, len(log), rng.randint(0, len(log)))) for log in logs.values()]
        yield [change for log, count in zip(logs.values(), counts, strict=True) for change in log[:count]]


def subsets(pending: Sequence[Change], rng: random.Random, most: int) -> Survivors:
    """Yield every subset if they are at most `most`, else that many drawn by `rng`."""
    pieces = [piece for change in pending for piece in change.pieces()]
    if len(pieces) < 30 and 1 << len(pieces) <= most:
        for bits in itertools.product((False, True), repeat=len(pieces)):
            yield list(itertools.compress(pieces, bits))
    else:
        yield from itertools.islice(_drawn(pieces, rng), most)


def _drawn(pieces: Sequence[Change], rng: random.Random) -> Survivors:
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
