"""Cutting the power of a run at every instant, killing it, and doing so again while it recovers."""

import errno
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.engines.spool.engine import OnModel
from tests.engines.spool.oracle import live_on
from tests.engines.spool.scenarios import Scenario
from tests.engines.spool.world import Snapshot, Violation
from tests.fakes.disk import Fault, ModelDisk

SYNCS = frozenset({"sync", "sync_content", "sync_directory"})
FIRST_CRASHES = 6
SECOND_STATES = 24

Images = Iterator[tuple[str, ModelDisk]]


def prefixes(snapshot: Snapshot) -> Images:
    """Yield what one order of all that is not synced may leave of an instant."""
    for number, image in enumerate(ModelDisk(snapshot.platter).prefixes()):
        yield f"cut after {snapshot.step!r} keeping the first {number}", image


def cuts(snapshot: Snapshot, rng: random.Random, most: int) -> Images:
    """Yield what a cut may leave of an instant: all of it, or `most` drawn by `rng`."""
    for number, image in enumerate(ModelDisk(snapshot.platter).cuts(rng, most)):
        yield f"cut after {snapshot.step!r} keeping choice {number}", image


def killed(snapshot: Snapshot) -> Images:
    """Yield what a new process finds when the others were killed and the power stayed."""
    yield f"killed after {snapshot.step!r}", ModelDisk(snapshot.platter).after_kill()


@dataclass(slots=True)
class Tally:
    """What was judged."""

    states: set[int] = field(default_factory=set)
    second: set[int] = field(default_factory=set)
    """Those of them that a second crash left."""
    offered: int = 0
    """Images, the same ones too."""
    runs: int = 0

    def __str__(self) -> str:
        return (
            f"{len(self.states)} crash states, {len(self.second)} of them double crashes, "
            f"of {self.offered} images in {self.runs} runs"
        )


class Judge:
    """Judges crash states: what is on the disk together with what was promised; each different one once.

    Two images are the same state if no process can tell them apart and the trace is the
    same.  In the tally are all of them, and apart those that only a second crash left, while
    the first was recovered from or after.
    """

    def __init__(self, engine: OnModel) -> None:
        self.tally = Tally()
        self._engine = engine

    def judge_scenario(self, scenario: Scenario, rng: random.Random, most: int) -> None:
        """Judge one scenario, `most` images of an instant where not all.

        Every instant of it is killed and cut, so is a run of it in which one sync failed, and of some images
        so is the recovery, the rest of the run, one message more: the second crash.
        """
        story = str(scenario)
        snapshots = scenario.run(self._engine)
        self._judge_all(snapshots, rng, most, story)
        first_crashes = [_first_crash(snapshots, rng) for _ in range(FIRST_CRASHES)]
        nth, drops_pages = rng.randint(1, 12), rng.random() < 0.5
        fault = Fault(nth, errno.EIO, kinds=SYNCS, drops_pages=drops_pages)
        failed = f"{story}, sync {nth} failed{' and dropped its pages' * drops_pages}"
        self._judge_all(scenario.run(self._engine, fault), rng, most, failed)
        for label, image, snapshot in first_crashes:
            told = f"{story}, {label}"
            again = self.go_on(image, snapshot, told, record=True)
            # The recovery itself and what comes after it, equally.
            some = rng.sample(again, min(len(again), SECOND_STATES))

            def second(instant: Snapshot) -> Images:
                return itertools.islice(itertools.chain(cuts(instant, rng, 4), killed(instant)), 5)

            self.judge(some, second, story=told, is_second=True)
        self.tally.runs += 1

    def _judge_all(self, snapshots: Sequence[Snapshot], rng: random.Random, most: int, story: str) -> None:
        self.judge(snapshots, killed, story=story)
        self.judge(snapshots, lambda snapshot: cuts(snapshot, rng, most), story=story)

    def judge(
        self,
        snapshots: Sequence[Snapshot],
        images: Callable[[Snapshot], Images],
        *,
        story: str,
        is_second: bool = False,
    ) -> None:
        """Judge the images of these instants; Violation says how to get there."""
        for snapshot in snapshots:
            for label, image in images(snapshot):
                self.tally.offered += 1
                state = hash((image.fingerprint(), snapshot.told))
                if state not in self.tally.states:
                    self.go_on(image, snapshot, f"{story}, {label}")
                    self.tally.states.add(state)
                    if is_second:
                        self.tally.second.add(state)

    def go_on(
        self, image: ModelDisk, snapshot: Snapshot, story: str, *, record: bool = False
    ) -> list[Snapshot]:
        """Judge one image, uncounted; return the instants of recovering from it and ending its messages."""
        try:
            return live_on(image, snapshot.trace.copy(), record=record, engine=self._engine)
        except Exception as error:
            raise Violation(f"{story}: {error!r}") from error


def _first_crash(snapshots: Sequence[Snapshot], rng: random.Random) -> tuple[str, ModelDisk, Snapshot]:
    snapshot = rng.choice(snapshots)
    images = [*killed(snapshot), *cuts(snapshot, rng, 8)]
    return (*rng.choice(images), snapshot)
