"""Cutting the power of a run at every instant, killing it, and doing so again while it recovers."""

import random
from collections.abc import Callable, Iterator, Sequence

from relay.spool.interface import Status
from tests.fakes.disk import ModelDisk
from tests.fakes.platter import Renames
from tests.spool.oracle import live_on
from tests.spool.world import Letter, Sender, Snapshot, Violation, World, play, prepared

RELAYED, BOUNCED, EXPIRED, DELETED = Status.RELAYED, Status.BOUNCED, Status.EXPIRED, Status.DELETED
LONG = b"Subject: long\r\n\r\n" + b"0123456789\r\n" * 110

Images = Iterator[tuple[str, ModelDisk]]


def _held(sender: Sender) -> None:
    for queue_id in sorted(sender.queue):
        sender.hold(queue_id)
        sender.hold(queue_id, release=True)


def _left_held(sender: Sender) -> None:
    for queue_id in sorted(sender.queue)[:1]:
        sender.hold(queue_id)


def _warned(sender: Sender) -> None:
    for queue_id in sorted(sender.queue):
        sender.warn(queue_id)


SCENARIOS: dict[str, tuple[tuple[Letter, ...], Callable[[Sender], None] | None]] = {
    "relayed": ((Letter(({0: RELAYED},)),), None),
    "deferred, then relayed": ((Letter(({}, {0: RELAYED, 2: RELAYED}, {1: RELAYED}), 3),), None),
    "a batch of two": ((Letter(({0: RELAYED}, {1: BOUNCED}), 2), Letter(({0: RELAYED},))), None),
    "bounced": ((Letter(({0: RELAYED, 1: BOUNCED},), 2),), None),
    "bounced, then expired": ((Letter(({0: BOUNCED}, {1: EXPIRED}), 2),), None),
    "bounced with nobody to tell": ((Letter(({0: BOUNCED},), 1, ""),), None),
    "two bounced": ((Letter(({0: BOUNCED},)), Letter(({0: EXPIRED},))), None),
    "deleted": ((Letter(({0: DELETED, 1: RELAYED},), 2),), None),
    "held and released": ((Letter(({0: RELAYED},)), Letter(({0: BOUNCED},))), _held),
    "bounced while held": ((Letter(({0: BOUNCED},)),), _left_held),
    "warned, then bounced": ((Letter(({}, {0: BOUNCED})),), _warned),
    "spilled": ((Letter(({0: RELAYED}, {1: BOUNCED}, {2: RELAYED}), 3, content=LONG, spills=2),), None),
}


def run_of(name: str, renames: Renames, *, from_nothing: bool = False) -> list[Snapshot]:
    """Play a scenario and return every instant of it."""
    letters, meanwhile = SCENARIOS[name]
    world = World(prepared(renames, is_started=not from_nothing))
    world.record()
    play(world, *letters, meanwhile=meanwhile)
    return world.snapshots


def prefixes(snapshot: Snapshot) -> Images:
    """Yield what an ordered log may leave of an instant."""
    for number, image in enumerate(ModelDisk(snapshot.platter).prefixes()):
        yield f"cut after {snapshot.step!r} keeping the first {number}", image


def subsets(snapshot: Snapshot, rng: random.Random, most: int) -> Images:
    """Yield what a disk without any order may leave of an instant."""
    for number, image in enumerate(ModelDisk(snapshot.platter).subsets(rng, most)):
        yield f"cut after {snapshot.step!r} keeping subset {number}", image


def killed(snapshot: Snapshot) -> Images:
    """Yield what a new process finds when the others were killed and the power stayed."""
    yield f"killed after {snapshot.step!r}", ModelDisk(snapshot.platter).after_kill()


class Judge:
    """Judges images, each different one once."""

    def __init__(self, *, counts: bool = True) -> None:
        """Begin; `counts` is whether the account has to be right."""
        self.judged = 0
        self._counts = counts
        self._seen: set[tuple[object, str]] = set()

    def judge(
        self, snapshots: Sequence[Snapshot], images: Callable[[Snapshot], Images], *, story: str
    ) -> None:
        """Judge the images of these instants; Violation says how to get there."""
        for snapshot in snapshots:
            for label, image in images(snapshot):
                # A killed run leaves what is pending, which no fingerprint shows.
                key = image.fingerprint(), str(snapshot.trace)
                if image.platter.pending or key not in self._seen:
                    self._seen.add(key)
                    self.go_on(image, snapshot, f"{story}, {label}")

    def go_on(
        self, image: ModelDisk, snapshot: Snapshot, story: str, *, record: bool = False
    ) -> list[Snapshot]:
        """Judge one image and return the instants of recovering from it and ending its messages."""
        self.judged += 1
        try:
            return live_on(image, snapshot.trace.copy(), record=record, counts=self._counts)
        except Violation as violation:
            raise Violation(f"{story}: {violation}") from violation
        except Exception as error:
            raise Violation(f"{story}: {error!r}") from error
