"""One play recorded on one file system, and the images that its power cuts would have left, judged."""

import random
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from relay.spool.disk.durable import RealDisk
from relay.spool.engines import ENGINES
from tests.engines.lab import kernel
from tests.engines.lab.blocks import Cut, Epoch, Platter, cuts, read_log
from tests.engines.lab.filesystems import FileSystem
from tests.engines.lab.judge import Judgement, is_as_handed_over, judge
from tests.engines.lab.observations import Observations, Scribe
from tests.engines.lab.recorded_disk import recorded_disk
from tests.engines.lab.workload import work
from tests.engines.spool.world import Violation

CUTS_PER_EPOCH = 8
LEAST_IMAGES = 20
"""Of a play; and so many are judged in any case, when time was up before the first."""


@dataclass
class Figures:
    """What an experiment came to."""

    images: int = 0
    flushes: int = 0
    writes: int = 0
    letters: int = 0
    accepted: int = 0
    plays: int = 0
    seen: Judgement = field(default_factory=Judgement)
    unmountable: list[str] = field(default_factory=list)
    """Images that the file system itself refuses: sectors of one of its own blocks, torn apart."""
    violations: list[str] = field(default_factory=list)


class Recording:
    """A disk that is being recorded, with a file system on it, mounted; a context manager's value."""

    def __init__(self, mount: Path, log: Path) -> None:
        self.mount = mount
        self.log = log


@contextmanager
def recording(file_system: FileSystem, base: Path, folder: Path) -> Iterator[Recording]:
    """Record what is written to a disk that begins as `base`, while the context lasts."""
    mount, log = folder / "recorded", folder / "blocks"
    mount.mkdir(exist_ok=True)
    log.write_bytes(b"")
    with recorded_disk(base, folder / "fuse", log) as loop:
        with kernel.mounted(loop.device, mount, file_system.name, file_system.options):
            yield Recording(mount, log)
        loop.forget()


class Laboratory:
    """Plays, cuts and judges on one file system, in a folder of its own (best on a tmpfs)."""

    def __init__(
        self, file_system: FileSystem, seed: int, folder: Path, engine: str, *, careless: str | None = None
    ) -> None:
        self.figures = Figures()
        self._file_system = file_system
        self._rng = random.Random(f"{seed}/{file_system.name}")
        self._folder = folder
        self._engine = engine
        self._careless = careless
        self._disk = RealDisk()
        self._base = folder / "base"
        self._log = folder / "log"
        self._mount = folder / "image-mount"
        self._mount.mkdir()
        self._observed = Observations()
        file_system.make_on(self._base)

    def record(self, letters: int) -> list[Epoch]:
        """Have the relay work on the disk as it is; return what was written."""
        (self._folder / "relay").mkdir(exist_ok=True)
        with recording(self._file_system, self._base, self._folder) as recorded:
            scribe = Scribe(recorded.log, self._observed)
            try:
                work(
                    self._folder / "relay",
                    recorded.mount,
                    scribe,
                    self._rng,
                    count=letters,
                    engine=self._engine,
                    careless=self._careless,
                )
                end = scribe.place()
            finally:
                scribe.close()
            # What unmounting writes is not part of the story.
            self._log.write_bytes(recorded.log.read_bytes()[:end])
        self._check_what_was_taken(scribe)
        epochs = read_log(self._log)
        self.figures.plays += 1
        self.figures.flushes += len(epochs) - 1
        self.figures.writes += sum(len(epoch.writes) for epoch in epochs)
        self.figures.letters += letters
        self.figures.accepted = len(self._observed.accepted)
        return epochs

    def judge_images(
        self,
        epochs: Sequence[Epoch],
        most: int,
        *,
        until_s: float | None = None,
        until_violation: bool = False,
    ) -> None:
        """Build so many images of what was recorded, and judge each; fewer where time is up.

        The first LEAST_IMAGES of the laboratory are judged however late it is.
        """
        drawn = self._draw(epochs, most)
        platter = Platter(self._base, self._log, epochs, self._folder)
        platter.build(drawn[0])
        loop = kernel.Loop(platter.image)
        try:
            for cut in drawn:
                is_late = until_s is not None and time.monotonic() > until_s
                if is_late and self.figures.images >= LEAST_IMAGES:
                    return
                platter.build(cut)
                loop.forget()
                self._judge(platter.image, loop.device, cut)
                if until_violation and self.figures.violations:
                    return
        finally:
            loop.close()
            platter.close()

    def _draw(self, epochs: Sequence[Epoch], most: int) -> list[Cut]:
        """Draw cuts: half where a promise had just been made and is all that a flush keeps."""
        owed = self._observed.obligations()
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

    def go_on_from(self, epochs: Sequence[Epoch]) -> None:
        """Make one cut, drawn, the disk of the next play, and what was known then all that is known."""
        cut = self._rng.choice(list(cuts(epochs, self._rng, CUTS_PER_EPOCH)))
        platter = Platter(self._base, self._log, epochs, self._folder)
        platter.build(cut)
        platter.close()
        platter.image.rename(self._base)
        self._observed = self._observed.until(cut.place).at_the_beginning()

    def _judge(self, image: Path, device: str, cut: Cut) -> None:
        name = self._file_system.name
        story = f"{name}, play {self.figures.plays}, flush {cut.epoch}, {cut.label}"
        self.figures.images += 1
        try:
            with ExitStack() as stack:
                try:
                    stack.enter_context(kernel.mounted(device, self._mount, name, self._file_system.options))
                except OSError as error:
                    # No promise of ours, nor of a disk that writes its blocks whole.
                    self.figures.unmountable.append(f"{story}: {error}")
                    return
                self.figures.seen.add(self._judged(cut))
        except (Violation, OSError, ValueError) as violation:
            self.figures.violations.append(f"{story}: {type(violation).__name__}: {violation}")
        if complaint := self._file_system.complaint(image):
            self.figures.violations.append(f"{story}: {complaint}")

    def _judged(self, cut: Cut) -> Judgement:
        return judge(self._mount, self._observed.until(cut.place), self._disk, ENGINES[self._engine])

    def _check_what_was_taken(self, scribe: Scribe) -> None:
        letters = {
            each: letter for _, letter in self._observed.offered.values() for each in letter.recipients
        }
        for recipient, facts in self._observed.taken.items():
            for _, content in facts:
                letter = letters.get(recipient)
                if letter is not None and not is_as_handed_over(content, letter):
                    scribe.fault(f"{recipient} got other content than that of letter {letter.number}")
        self.figures.violations += scribe.faults
