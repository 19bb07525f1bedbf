"""Cuts the power of a run, or kills it, at every instant, and again while it recovers."""

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
    """Yield the images of an instant if unsynced changes reach the disk in order: each prefix of them."""
    for number, image in enumerate(ModelDisk(snapshot.platter).prefixes()):
        yield f"cut after {snapshot.step!r} keeping the first {number}", image


def cuts(snapshot: Snapshot, rng: random.Random, most: int) -> Images:
    """Yield the images that a power cut may leave of an instant: all of them, or `most` drawn by `rng`."""
    for number, image in enumerate(ModelDisk(snapshot.platter).cuts(rng, most)):
        yield f"cut after {snapshot.step!r} keeping choice {number}", image


def killed(snapshot: Snapshot) -> Images:
    """Yield what a new process finds after all others were killed. The power stays."""
    yield f"killed after {snapshot.step!r}", ModelDisk(snapshot.platter).after_kill()


@dataclass(slots=True)
class Tally:
    """The number of images and states judged."""

    states: set[int] = field(default_factory=set)
    second: set[int] = field(default_factory=set)
    """The states that only a second crash left."""
    offered: int = 0
    """Offered images, repeated ones included."""
    runs: int = 0

    def __str__(self) -> str:
        return (
            f"{len(self.states)} crash states, {len(self.second)} of them double crashes, "
            f"of {self.offered} images in {self.runs} runs"
        )


class Judge:
    """Judges crash states. A state is the content of the disk and the trace of promises; each is judged once.

    Two images are the same state if no process can tell them apart and their traces are equal. The tally
    counts all states. It also counts separately the states left by a second crash, during or after recovery.
    """

    def __init__(self, engine: OnModel) -> None:
        self.tally = Tally()
        self._engine = engine

    def judge_scenario(self, scenario: Scenario, rng: random.Random, most: int) -> None:
        """Judge one scenario, with all images of an instant or, if there are more, `most` of them.

        Every instant of the scenario, and of a run in which one sync fails, is killed and cut. For some
        images the recovery, the rest of the run and one more message are too: the second crash.
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
            # Draw equally from the recovery and from what follows it.
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
        """Judge the images of these instants. Raises Violation, which names the path to the image."""
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
        """Judge one image without counting it. Return the instants of the recovery and of what follows."""
        try:
            return live_on(image, snapshot.trace.copy(), record=record, engine=self._engine)
        except Exception as error:
            raise Violation(f"{story}: {error!r}") from error


def _first_crash(snapshots: Sequence[Snapshot], rng: random.Random) -> tuple[str, ModelDisk, Snapshot]:
    snapshot = rng.choice(snapshots)
    images = [*killed(snapshot), *cuts(snapshot, rng, 8)]
    return (*rng.choice(images), snapshot)
