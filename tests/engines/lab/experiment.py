"""Plays recorded on one file system, and the images that their power cuts would have left, judged."""

import random
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from relay.spool.disk.durable import RealDisk
from relay.spool.engines import ENGINES
from tests.engines.lab import kernel
from tests.engines.lab.blocks import Cut, Epoch, Platter, cuts, read_log
from tests.engines.lab.filesystems import FileSystem
from tests.engines.lab.judge import is_as_handed_over, judge
from tests.engines.lab.observations import Observations, Scribe
from tests.engines.lab.recorded_disk import recorded_disk
from tests.engines.lab.workload import letters, work
from tests.engines.spool.world import Violation

CUTS_PER_EPOCH = 8
LEAST_IMAGES = 20
"""So many are judged in any case, when time was up before the first."""


@dataclass
class Figures:
    """What an experiment came to."""

    images: int = 0
    flushes: int = 0
    writes: int = 0
    letters: int = 0
    accepted: int = 0
    plays: int = 0
    judging_s: float = 0
    seen: Counter[str] = field(default_factory=Counter)
    unmountable: list[str] = field(default_factory=list)
    """Images that the file system itself refuses: sectors of one of its own blocks, torn apart."""
    violations: list[str] = field(default_factory=list)


class Laboratory:
    """Plays, cuts and judges on one file system, in a folder of its own (best on a tmpfs)."""

    def __init__(
        self, file_system: FileSystem, seed: int, folder: Path, engine: str, careless: str | None = None
    ) -> None:
        self.figures = Figures()
        self._file_system = file_system
        self._rng = random.Random(f"{seed}/{file_system.name}")
        self._folder = folder
        self._engine = engine
        self._careless = careless
        self._base = folder / "base"
        self._log = folder / "log"
        self._mount = folder / "mount"
        for path in (self._mount, folder / "relay"):
            path.mkdir()
        self._before = Observations()
        file_system.make_on(self._base)

    def play(
        self, count: int, most: int, *, until_s: float | None = None, until_violation: bool = False
    ) -> None:
        """Have the relay work on the disk, and judge so many images; the disk is then one that a cut left.

        Fewer where time is up, but for the first LEAST_IMAGES, and where one violation is enough.
        """
        scribe, epochs = self._record(count)
        began_s = time.monotonic()
        platter = Platter(self._base, self._log, epochs, self._folder)
        with closing(platter), closing(kernel.Loop(platter.image)) as loop:
            for cut in self._draw(scribe, epochs, most):
                is_late = until_s is not None and time.monotonic() > until_s
                if is_late and self.figures.images >= LEAST_IMAGES:
                    break
                platter.build(cut)
                loop.forget()
                self._judge(platter.image, loop.device, cut, scribe.known(cut.place))
                if until_violation and self.figures.violations:
                    break
        self.figures.judging_s += time.monotonic() - began_s
        cut = self._rng.choice(list(cuts(epochs, self._rng, CUTS_PER_EPOCH)))
        with closing(Platter(self._base, self._log, epochs, self._folder)) as platter:
            platter.build(cut)
        platter.image.rename(self._base)
        self._before = scribe.known(cut.place)

    def _record(self, count: int) -> tuple[Scribe, list[Epoch]]:
        """Have the relay work; return what was observed and what was written."""
        recorded, figures = self._folder / "blocks", self.figures
        recorded.write_bytes(b"")
        scribe = Scribe(recorded, self._before)
        with closing(scribe), recorded_disk(self._base, self._folder / "fuse", recorded) as loop:
            with kernel.mounted(loop.device, self._mount, self._file_system.name, self._file_system.options):
                plan = letters(self._rng, figures.letters, count)
                work(
                    self._folder / "relay",
                    self._mount,
                    scribe,
                    plan,
                    engine=self._engine,
                    careless=self._careless,
                )
                end = scribe.place()
            loop.forget()
        # What unmounting writes is not part of the story.
        self._log.write_bytes(recorded.read_bytes()[:end])
        observed, epochs = scribe.known(end), read_log(self._log)
        figures.violations += scribe.faults + _otherwise(observed)
        figures.plays += 1
        figures.flushes += len(epochs) - 1
        figures.writes += sum(len(epoch.writes) for epoch in epochs)
        figures.letters += count
        figures.accepted = len(observed.accepted)
        return scribe, epochs

    def _draw(self, scribe: Scribe, epochs: Sequence[Epoch], most: int) -> list[Cut]:
        """Draw cuts: half where a promise had just been made and is all that a flush keeps."""
        owed = scribe.obligations()
        groups: tuple[list[Cut], list[Cut], list[Cut]] = ([], [], [])
        for cut in cuts(epochs, self._rng, CUTS_PER_EPOCH):
            epoch = epochs[cut.epoch]
            is_owed = bisect_left(owed, epoch.begin) < bisect_right(owed, epoch.end)
            is_early = not owed or cut.place < owed[0]
            groups[2 if is_early else 0 if is_owed and not cut.pieces else 1].append(cut)
        drawn: list[Cut] = []
        for share, group in zip((0.5, 0.95, 1.0), groups, strict=True):
            drawn += self._rng.sample(group, min(len(group), round(most * share) - len(drawn)))
        # The platter goes forward only.
        return sorted(drawn, key=lambda cut: cut.epoch)

    def _judge(self, image: Path, device: str, cut: Cut, observed: Observations) -> None:
        name, options = self._file_system.name, self._file_system.options
        story = f"{name}, play {self.figures.plays}, flush {cut.epoch}, {cut.label}"
        self.figures.images += 1
        try:
            with ExitStack() as stack:
                try:
                    stack.enter_context(kernel.mounted(device, self._mount, name, options))
                except OSError as error:
                    # No promise of ours, nor of a disk that writes its blocks whole.
                    self.figures.unmountable.append(f"{story}: {error}")
                    return
                self.figures.seen += judge(self._mount, observed, RealDisk(), ENGINES[self._engine])
        except (Violation, OSError, ValueError) as violation:
            self.figures.violations.append(f"{story}: {type(violation).__name__}: {violation}")
        if complaint := self._file_system.complaint(image):
            self.figures.violations.append(f"{story}: {complaint}")


def _otherwise(observed: Observations) -> list[str]:
    letters = {recipient: letter for letter in observed.offered.values() for recipient in letter.recipients}
    return [
        f"{recipient} got other content than that of letter {letters[recipient].number}"
        for recipient, contents in observed.taken.items()
        if recipient in letters
        and not all(is_as_handed_over(content, letters[recipient]) for content in contents)
    ]
