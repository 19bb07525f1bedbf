"""Records plays on one file system, and judges the images that power cuts may have left."""

import contextlib
import copy
import random
import subprocess
import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from relay.clock import SECOND_NS
from relay.spool.disk.durable import RealDisk
from relay.spool.interface import SpoolError
from tests.engines.lab import kernel
from tests.engines.lab.blocks import Cut, Epoch, Platter, cuts, read_log
from tests.engines.lab.filesystems import FileSystem
from tests.engines.lab.play import CarelessDisk, Known, Notes, engine_on, judge, work
from tests.engines.spool.world import Trace, Violation
from tests.fakes.clock import FakeClock
from tests.system.relay import PROJECT
from tests.system.waiting import HANG_S

CUTS_PER_EPOCH = 8
LEAST_IMAGES = 20
"""This many images are judged even if the time is up before the first."""


@contextmanager
def recorded_disk(base: Path, fuse: Path, log: Path) -> Iterator[kernel.Loop]:
    """Yield a disk with the content of `base`, a loop device over the recorder, mounted on `fuse` meanwhile.

    The recorder logs every write and every flush.
    """
    fuse.mkdir(exist_ok=True)
    program = [sys.executable, "-m", "tests.engines.lab.recorder"]
    command = kernel.ending_with_us(*program, str(fuse), str(base), str(log))
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE) as recorder:
        assert recorder.stdout is not None
        try:
            if recorder.stdout.readline() != b"ready\n":
                raise ChildProcessError(f"the recorder exited {recorder.wait()}")
            loop = kernel.Loop(fuse / "disk")
            try:
                loop.forget()
                yield loop
            finally:
                loop.close()
            kernel.unmount(fuse)
            recorder.wait(HANG_S)
        except BaseException:
            recorder.kill()
            with contextlib.suppress(OSError):
                kernel.unmount(fuse, detach=True)
            raise


@dataclass
class Figures:
    images: int = 0
    flushes: int = 0
    accepted: int = 0
    plays: int = 0
    unmountable: list[str] = field(default_factory=list)
    """Images that the file system refuses: one of its own blocks is torn between sectors."""
    violations: list[str] = field(default_factory=list)


class Laboratory:
    """Plays, cuts and judges on one file system, in its own folder (best on a tmpfs)."""

    def __init__(self, file_system: FileSystem, seed: int, folder: Path, engine: str, careless: str) -> None:
        self.figures = Figures()
        self._file_system = file_system
        self._rng = random.Random(f"{seed}/{file_system.name}")
        self._clock = FakeClock()
        self._folder, self._base, self._log = folder, folder / "base", folder / "log"
        self._mount = folder / "mount"
        self._mount.mkdir()
        self._engine = engine_on(engine, self._mount)
        self._careless = careless
        self._before: Known = Trace(), (0, 0)
        file_system.make_on(self._base)

    def play(self, rounds: int, most: int, until_s: float | None = None) -> None:
        """Use the disk and judge up to `most` images. Afterwards the disk is an image that a cut left.

        After `until_s` it stops, but not before LEAST_IMAGES images.  If a sync is left out, it stops at the
        first lost message.
        """
        notes, epochs = self._record(rounds)
        platter = Platter(self._base, self._log, epochs, self._folder)
        with closing(platter), closing(kernel.Loop(platter.image)) as loop:
            for cut in self._draw(notes, epochs, most):
                is_late = until_s is not None and time.monotonic() > until_s
                is_noticed = self._careless and any("is lost" in each for each in self.figures.violations)
                if is_noticed or (is_late and self.figures.images >= LEAST_IMAGES):
                    break
                platter.build(cut)
                loop.forget()
                self._judge(platter.image, loop.device, cut, notes.known(cut.place))
        cut = self._rng.choice(list(cuts(epochs, self._rng, CUTS_PER_EPOCH)))
        with closing(Platter(self._base, self._log, epochs, self._folder)) as platter:
            platter.build(cut)
        platter.image.rename(self._base)
        self._before = notes.known(cut.place)
        self._clock.reboot(down_ns=SECOND_NS)

    def _record(self, rounds: int) -> tuple[Notes, list[Epoch]]:
        recorded, name, options = self._folder / "blocks", self._file_system.name, self._file_system.options
        recorded.write_bytes(b"")
        disk = CarelessDisk(self._careless) if self._careless else RealDisk()
        with recorded_disk(self._base, self._folder / "fuse", recorded) as loop:
            with kernel.mounted(loop.device, self._mount, name, options):
                notes = Notes(recorded, *self._before)
                notes.trace.crash()
                work(self._mount, self._engine, disk, notes, clock=self._clock, rng=self._rng, rounds=rounds)
                end = recorded.stat().st_size
            loop.forget()
        # Writes of the unmount do not count.
        self._log.write_bytes(recorded.read_bytes()[:end])
        epochs = read_log(self._log)
        self.figures.plays += 1
        self.figures.flushes += len(epochs) - 1
        self.figures.accepted = len(notes.trace.accepted)
        return notes, epochs

    def _draw(self, notes: Notes, epochs: Sequence[Epoch], most: int) -> list[Cut]:
        """Draw cuts: up to half come right after a promise and leave only flushed writes."""
        owed = notes.places
        groups: tuple[list[Cut], list[Cut]] = ([], [])
        for cut in cuts(epochs, self._rng, CUTS_PER_EPOCH):
            epoch = epochs[cut.epoch]
            is_owed = bisect_left(owed, epoch.begin) < bisect_right(owed, epoch.end)
            groups[0 if is_owed and not cut.pieces else 1].append(cut)
        drawn: list[Cut] = []
        for share, group in zip((0.5, 1.0), groups, strict=True):
            drawn += self._rng.sample(group, min(len(group), round(most * share) - len(drawn)))
        # The platter only moves forward.
        return sorted(drawn, key=lambda cut: cut.epoch)

    def _judge(self, image: Path, device: str, cut: Cut, known: Known) -> None:
        name, options = self._file_system.name, self._file_system.options
        story = f"{name}, play {self.figures.plays}, flush {cut.epoch}, {cut.label}"
        clock = copy.copy(self._clock)
        clock.reboot(down_ns=SECOND_NS)
        self.figures.images += 1
        try:
            with ExitStack() as stack:
                try:
                    stack.enter_context(kernel.mounted(device, self._mount, name, options))
                except OSError as error:
                    # A disk that writes its blocks whole prevents this; the relay promises nothing here.
                    self.figures.unmountable.append(f"{story}: {error}")
                    return
                judge(self._mount, self._engine, known, clock)
        except (Violation, OSError, ValueError, SpoolError) as violation:
            self.figures.violations.append(f"{story}: {type(violation).__name__}: {violation}")
        if complaint := self._file_system.complaint(image):
            self.figures.violations.append(f"{story}: {complaint}")
