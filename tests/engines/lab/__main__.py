"""`python -m tests.engines.lab FILE-SYSTEM` runs one experiment, prints JSON and exits 1 for a violation.

An experiment records plays on one file system, and judges the images that power cuts may have left.
"""

import argparse
import copy
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from relay.clock import SECOND_NS
from relay.spool.disk.durable import RealDisk
from relay.spool.engines import ENGINES
from relay.spool.interface import SpoolError
from tests.engines.lab.blocks import Cut, Epoch, Platter, cuts, read_log
from tests.engines.lab.machine import FILE_SYSTEMS, FileSystem, Loop, enter_private_namespace
from tests.engines.lab.play import CarelessDisk, Notes, engine_on, judge, work
from tests.engines.spool.world import Trace, Violation
from tests.fakes.clock import FakeClock
from tests.system.relay import PROJECT
from tests.system.small_disk import mounted
from tests.system.waiting import HANG_S

CUTS_PER_EPOCH = 8
LEAST_IMAGES = 20
"""This many images are judged even if the time is up before the first."""


@contextmanager
def recorded_disk(base: Path, fuse: Path, log: Path) -> Iterator[Loop]:
    """Yield a disk with the content of `base`, a loop device over the recorder, mounted on `fuse` meanwhile.

    The recorder logs every write and every flush.
    """
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0"
    with mounted(fuse, "-i", "-t", "fuse", "-o", options, "lab", fds=[fd]):
        # In another namespace without this mount: the last process of a namespace flushes its file systems as
        # it ends. If that were the recorder, it would wait forever for an answer that only it can give.
        serve = 'umount --lazy "$1" && shift && exec "$@"'
        alone = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "sh", "-c", serve, "sh", str(fuse)]
        program = [sys.executable, "-m", "tests.engines.lab.recorder", str(fd), str(base), str(log)]
        recorder = subprocess.Popen([*alone, *program], cwd=PROJECT, pass_fds=[fd])
        os.close(fd)
        try:
            with closing(Loop(fuse / "disk")) as loop:
                loop.forget()
                yield loop
        except BaseException:
            recorder.kill()
            raise
    recorder.wait(HANG_S)


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
        self._engine = engine_on(engine, self._mount)
        self._careless = careless
        self._before = Trace()
        file_system.make_on(self._base)

    def play(self, rounds: int, most: int, until_s: float | None = None) -> None:
        """Use the disk and judge up to `most` images. Afterwards the disk is an image that a cut left.

        After `until_s` it stops, but not before LEAST_IMAGES images.  If a sync is left out, it stops at the
        first violation.
        """
        notes, epochs = self._record(rounds)
        platter = Platter(self._base, self._log, epochs, self._folder)
        with closing(Loop(platter.image)) as loop:
            for cut in self._draw(notes, epochs, most):
                is_late = until_s is not None and time.monotonic() > until_s
                if (self._careless and self.figures.violations) or (
                    is_late and self.figures.images >= LEAST_IMAGES
                ):
                    break
                platter.build(cut)
                loop.forget()
                self._judge(platter.image, loop.device, cut, notes.known(cut.place))
        cut = self._rng.choice(list(cuts(epochs, self._rng, CUTS_PER_EPOCH)))
        platter = Platter(self._base, self._log, epochs, self._folder)
        platter.build(cut)
        platter.image.rename(self._base)
        self._before = notes.known(cut.place)
        self._clock.reboot(down_ns=SECOND_NS)

    def _mounted(self, device: str) -> AbstractContextManager[None]:
        return mounted(self._mount, "-t", self._file_system.name, "-o", self._file_system.options, device)

    def _record(self, rounds: int) -> tuple[Notes, list[Epoch]]:
        recorded = self._folder / "blocks"
        recorded.write_bytes(b"")
        disk = CarelessDisk(self._careless) if self._careless else RealDisk()
        with recorded_disk(self._base, self._folder / "fuse", recorded) as loop:
            with self._mounted(loop.device):
                notes = Notes(recorded, self._before)
                notes.trace.crash()
                work(self._engine, disk, notes, self._clock, self._rng, rounds)
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

    def _judge(self, image: Path, device: str, cut: Cut, known: Trace) -> None:
        story = f"{self._file_system.name}, play {self.figures.plays}, flush {cut.epoch}, {cut.label}"
        clock = copy.copy(self._clock)
        clock.reboot(down_ns=SECOND_NS)
        self.figures.images += 1
        try:
            with ExitStack() as stack:
                try:
                    stack.enter_context(self._mounted(device))
                except subprocess.CalledProcessError as error:
                    # A disk that writes its blocks whole prevents this; the relay promises nothing here.
                    self.figures.unmountable.append(f"{story}: {error.stderr.decode(errors='replace')}")
                    return
                judge(self._engine, known, clock)
        except (Violation, OSError, ValueError, SpoolError) as violation:
            self.figures.violations.append(f"{story}: {type(violation).__name__}: {violation}")
        if complaint := self._file_system.complaint(image):
            self.figures.violations.append(f"{story}: {complaint}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engines.lab", description=__doc__)
    parser.add_argument("file_system", choices=FILE_SYSTEMS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=24, help="of up to four messages, in each play")
    parser.add_argument("--images", type=int, default=400, help="so many images of each play")
    parser.add_argument(
        "--seconds", type=float, help="play after play for so long, each on a disk that a cut left"
    )
    parser.add_argument("--engine", choices=ENGINES, default="maildir", help="of the spool")
    parser.add_argument("--careless", default="", help="leave out a sync: METHOD, or METHOD:FOLDER")
    options = parser.parse_args()

    enter_private_namespace()
    until_s = None if options.seconds is None else time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory(prefix="relay-lab-") as name, mounted(Path(name), "-t", "tmpfs", "lab"):
        file_system = FILE_SYSTEMS[options.file_system]
        laboratory = Laboratory(file_system, options.seed, Path(name), options.engine, options.careless)
        laboratory.play(options.rounds, options.images, until_s)
        while until_s is not None and time.monotonic() < until_s:
            laboratory.play(options.rounds, options.images, until_s)
    sys.stdout.write(json.dumps(vars(options) | vars(laboratory.figures)) + "\n")
    return 1 if laboratory.figures.violations else 0


if __name__ == "__main__":
    sys.exit(main())
