"""`python -m tests.engines.lab FILE-SYSTEM` runs one experiment, prints JSON and exits 1 for a violation.

An experiment records plays on one file system, and judges the images that power cuts may have left. The spool
is used and judged as on the model disk (tests.engines.spool): a listener and a sender share one spool, and a
trace records what clients and upstream were told. `Notes` keeps the trace at places in the log of blocks: a
promise told before a place is owed there, and a call made before it may have begun.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from relay.clock import SECOND_NS
from relay.mail.envelope import QueueId
from relay.spool.disk.durable import RealDisk
from relay.spool.engines import ENGINES
from relay.spool.interface import Intake, Spool, SpoolError, Status
from tests.engines.lab.blocks import Cut, Epoch, Platter, cuts, read_log
from tests.engines.lab.machine import FILE_SYSTEMS, FileSystem, enter_private_namespace
from tests.engines.spool.engine import LogOnModel, MaildirOnModel, OnModel
from tests.engines.spool.oracle import check_start, check_whole, go_on
from tests.engines.spool.scenarios import MOST_RECIPIENTS, shapes
from tests.engines.spool.world import Letter, Listener, Sender, Trace, Violation
from tests.fakes.clock import FakeClock
from tests.system.relay import PROJECT
from tests.system.small_disk import mounted
from tests.system.waiting import HANG_S

LONG = b"Subject: long\r\n\r\n" + b"0123456789abcdef\r\n" * 20_000


class CarelessDisk(RealDisk):
    """A disk that leaves out one kind of sync: METHOD, or METHOD:FOLDER. The laboratory must notice it."""

    def __init__(self, careless: str) -> None:
        super().__init__()
        method, _, folder = careless.partition(":")
        sync = getattr(RealDisk, method)

        def left_out(at: Any) -> None:
            if folder and not str(at).endswith(f"/{folder}"):
                sync(self, at)

        setattr(self, method, left_out)


class Notes:
    """What was known at each place in the log of blocks."""

    def __init__(self, log: Path, trace: Trace) -> None:
        self.trace = trace
        self._log = log
        # Place 0 also covers the writes of the mount.
        self._noted = [(0, trace.copy())]

    def note(self) -> None:
        self._noted.append((self._log.stat().st_size, self.trace.copy()))

    def known(self, place: int) -> Trace:
        return [trace for noted_at, trace in self._noted if noted_at <= place][-1].copy()

    @property
    def places(self) -> list[int]:
        return [place for place, _ in self._noted]


class _Noting:
    """Wraps an object and takes a note before each call."""

    def __init__(self, called: object, notes: Notes) -> None:
        self._called, self._notes = called, notes

    def __getattr__(self, name: str) -> Any:
        self._notes.note()
        return getattr(self._called, name)


def work(
    engine: OnModel, disk: RealDisk, notes: Notes, clock: FakeClock, rng: random.Random, rounds: int
) -> None:
    """Accept and settle messages. Some stay in the spool, some of them held, for the next play."""
    sender = Sender(disk, clock, notes.trace, engine)
    sender.spool = cast(Spool, _Noting(sender.spool, notes))
    sender.claim()
    sender.end_what_is_done()
    sender.report_what_is_owed(sorted(sender.queue))
    listener = Listener(disk, clock, notes.trace, rng.randrange(1 << 30), engine)
    listener.intake = cast(Intake, _Noting(listener.intake, notes))
    fates: dict[QueueId, list[Mapping[int, Status]]] = {}
    for number in range(rounds):
        clock.advance(SECOND_NS)
        letters = [
            rng.choice(shapes(rng.randint(1, MOST_RECIPIENTS))).letter() for _ in range(rng.randint(1, 3))
        ]
        if number % 8 == 3:
            letters.append(Letter(({0: Status.RELAYED},), content=LONG, spills=2))
        for queue_id, letter in zip(listener.offer(*letters), letters, strict=True):
            if queue_id is not None:
                fates[queue_id] = list(letter.fates)
        for queue_id in sender.claim():
            fates.setdefault(queue_id, [{0: Status.RELAYED}])
        due = {q: fates[q].pop(0) for q in sorted(sender.queue) if fates.get(q) and rng.random() < 0.7}
        sender.settle(due)
        if sender.queue and rng.random() < 0.2:
            sender.hold(rng.choice(sorted(sender.queue)))
    notes.note()
    listener.intake.close()
    sender.spool.close()


def judge(engine: OnModel, trace: Trace, clock: FakeClock) -> None:
    """Judge the mounted image against what was known. Raises Violation, OSError, SpoolError."""
    disk = RealDisk()
    trace.crash()
    with _started(disk, engine, trace, clock) as sender:
        check_start(disk, sender.claim(), engine)
        found = dict(sender.queue)
        check_whole(trace, sender)
        sender.spool.close()
    with _started(disk, engine, trace, clock) as sender:
        sender.claim()
        if sender.queue != found:
            raise Violation(f"starting twice is not starting once: {found} then {sender.queue}")
        go_on(disk, sender, engine)


@contextmanager
def _started(disk: RealDisk, engine: OnModel, trace: Trace, clock: FakeClock) -> Iterator[Sender]:
    sender = Sender(disk, clock, trace, engine)
    try:
        yield sender
    except BaseException:
        # An open file would keep the image mounted.
        with suppress(OSError):
            sender.spool.close()
        raise


CUTS_PER_EPOCH = 8
LEAST_IMAGES = 20
"""This many images are judged even if the time is up before the first."""


@contextmanager
def recorded_disk(base: Path, fuse: Path, log: Path) -> Iterator[Path]:
    """Yield a file with the content of `base`, on the recorder's file system, which is mounted on `fuse`.

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
            yield fuse / "disk"
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
        on_model = MaildirOnModel if engine == "maildir" else LogOnModel
        self._engine: OnModel = on_model(str(self._mount / "spool"))
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
        for cut in self._draw(notes, epochs, most):
            is_late = until_s is not None and time.monotonic() > until_s
            if is_late and self.figures.images >= LEAST_IMAGES:
                break
            if self._careless and self.figures.violations:
                break
            platter.build(cut)
            self._judge(platter.image, cut, notes.known(cut.place))
        cut = self._rng.choice(list(cuts(epochs, self._rng, CUTS_PER_EPOCH)))
        platter = Platter(self._base, self._log, epochs, self._folder)
        platter.build(cut)
        platter.image.rename(self._base)
        self._before = notes.known(cut.place)
        self._clock.reboot(down_ns=SECOND_NS)

    def _record(self, rounds: int) -> tuple[Notes, list[Epoch]]:
        recorded = self._folder / "blocks"
        recorded.write_bytes(b"")
        disk = CarelessDisk(self._careless) if self._careless else RealDisk()
        with (
            recorded_disk(self._base, self._folder / "fuse", recorded) as file,
            self._file_system.mounted(file, self._mount),
        ):
            notes = Notes(recorded, self._before)
            notes.trace.crash()
            work(self._engine, disk, notes, self._clock, self._rng, rounds)
            end = recorded.stat().st_size
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

    def _judge(self, image: Path, cut: Cut, known: Trace) -> None:
        story = f"{self._file_system.name}, play {self.figures.plays}, flush {cut.epoch}, {cut.label}"
        clock = copy.copy(self._clock)
        clock.reboot(down_ns=SECOND_NS)
        self.figures.images += 1
        try:
            with ExitStack() as stack:
                try:
                    stack.enter_context(self._file_system.mounted(image, self._mount))
                except subprocess.CalledProcessError as error:
                    # A disk that writes its blocks whole prevents this; the relay promises nothing here.
                    self.figures.unmountable.append(f"{story}: {error.stderr.decode(errors='replace')}")
                    return
                judge(self._engine, known, clock)
        except (Violation, OSError, ValueError, SpoolError) as violation:
            self.figures.violations.append(f"{story}: {type(violation).__name__}: {violation}")


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
