"""A start of a spool, read to its end at once: for tests that ask what is there, not when it is known."""

import errno
from collections.abc import Callable, Generator
from dataclasses import dataclass, fields

from relay.queue.sorting import Sorter
from relay.spool.interface import Entry, Recovery, Spool

Reading = Generator[list[Entry], None, Recovery]


@dataclass(frozen=True, slots=True)
class Recovered(Recovery):
    entries: tuple[Entry, ...]
    """Everything queued, by id."""


def recover(
    spool: Spool, sorter: Sorter | None = None, on_step: Callable[[], None] = lambda: None
) -> Recovered:
    """Read all there is."""
    return read_on(spool.recover(sorter, on_step))


def read_on(walk: Reading) -> Recovered:
    """Read the rest; of what is returned only the entries are of the rest alone."""
    entries: list[Entry] = []
    found: Recovery | None = None
    while found is None:
        try:
            entries += (batch := next(walk))
            if not batch:
                # A sender asks again later; here nobody heals the disk.
                raise OSError(errno.EMFILE, "something is lacking: it would be asked for for ever")
        except StopIteration as end:
            found = end.value
    counts = {field.name: getattr(found, field.name) for field in fields(found)}
    return Recovered(**counts, entries=tuple(sorted(entries, key=lambda entry: entry.queue_id)))
