"""Kinds of disk faults by name, and the judge of what they leave behind.

A fault counts if a call really failed in the run. An image that equals a judged image with the same trace is
not judged again, because `live_on` is a function of both.
"""

import dataclasses
import errno
import functools
from collections.abc import Callable, Iterator

from tests.engines.spool.engine import OnModel
from tests.engines.spool.oracle import live_on
from tests.engines.spool.world import Violation, World
from tests.fakes.disk import READS, Fault, ModelDisk
from tests.figures import FIGURES

OPENS = frozenset({"open", "open_new", "sync_directory", "names"})
"""Calls that need a file descriptor."""
Kind = Callable[[int], Fault]


def _kinds() -> Iterator[tuple[str, Kind]]:
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    for number in (*full, errno.EIO, errno.EROFS, errno.EACCES, errno.EINTR):
        yield errno.errorcode[number], functools.partial(Fault, error=number)
    yield "EMFILE", lambda nth: Fault(nth, errno.EMFILE, kinds=OPENS)
    yield "half a write, then ENOSPC", lambda nth: Fault(nth, errno.ENOSPC, is_short=True)
    yield "a lying write", lambda nth: Fault(nth, errno.EIO, is_lying=True, kinds=frozenset({"write"}))
    yield "EIO while reading", lambda nth: Fault(nth, errno.EIO, kinds=READS)


def _forever(kind: Kind) -> Kind:
    return lambda nth: dataclasses.replace(kind(nth), forever=True)


ONCE: dict[str, Kind] = dict(_kinds())
FAULTS: dict[str, Kind] = ONCE | {f"{name} from then on": _forever(kind) for name, kind in ONCE.items()}
SOME = [
    name
    for name in FAULTS
    if name.removesuffix(" from then on") in ("ENOSPC", "EIO", "EMFILE", "a lying write", "EIO while reading")
]
"""One fault of each sort, for the short run."""
FULL = [name for name in FAULTS if any(word in name for word in ("ENOSPC", "EDQUOT", "EFBIG", "EMFILE"))]
"""Faults that only delay the sender."""


class Judging:
    """Judges the images that faults leave, each distinct image once."""

    def __init__(self, figure: str, engine: OnModel) -> None:
        """`figure` names the counter of these faults."""
        self.engine = engine
        self.faults = 0
        self._figure = figure
        self._seen: set[tuple[object, ...]] = set()

    def check(self, world: World, story: str) -> None:
        """Judge what the next start finds after a kill, or after a cut that kept no or all pending writes."""
        self.faults += 1
        FIGURES[self._figure] += 1
        disk, trace, told = world.sender_disk, world.trace, str(world.trace)
        platter = disk.platter
        images = [disk.after_kill()]
        images += [ModelDisk(platter.after_cut(())), ModelDisk(platter.after_cut(platter.pending))]
        for image in images:
            key = (image.fingerprint(), tuple(map(repr, image.platter.pending)), told)
            if key in self._seen:
                continue
            self._seen.add(key)
            try:
                live_on(image, trace.copy(), engine=self.engine)
            except Exception as error:
                raise Violation(f"{story}: {disk.steps[-4:]}: {error!r}") from error
