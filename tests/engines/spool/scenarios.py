"""Every small run of the spool, made systematically: the space that the crash runs draw from.

A scenario is up to three messages, each with up to four recipients, each recipient with
one fate: relayed, relayed after a deferral, failed, expired after a deferral, deleted, relayed
with a sender who wants to be told, failed with one who does not (NOTIFY, RFC 3461).
Where one failed: its report is relayed, or fails too, or there is nobody to tell.  And
all of it plain, or held and released (one by one or together), or left held while it is
settled, or with a dead and a living listener's drafts at a clean-up.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from relay.mail.dsn import NO_REQUEST, DsnRequest, Notify, RecipientRequest, asked_of
from relay.spool.interface import SpoolError, Status
from tests.engines.spool.engine import OnModel
from tests.engines.spool.maildir_engine import MAILDIR
from tests.engines.spool.world import Letter, Sender, Snapshot, World, play, prepared
from tests.fakes.disk import Fault
from tests.fakes.platter import Model

MOST_MESSAGES = 3
MOST_RECIPIENTS = 4

FATES: dict[str, tuple[int, Status]] = {
    "relayed": (0, Status.RELAYED),
    "deferred": (1, Status.RELAYED),
    "failed": (0, Status.BOUNCED),
    "expired": (1, Status.EXPIRED),
    "deleted": (0, Status.DELETED),
    "told": (0, Status.SUCCESS),
    "untold": (0, Status.BOUNCED),
}
"""At which attempt what becomes of a recipient."""


def left_held(sender: Sender) -> None:
    for queue_id in sorted(sender.queue):
        sender.hold(queue_id)


def held_and_released(sender: Sender) -> None:
    for queue_id in sorted(sender.queue):
        sender.hold(queue_id)
        sender.hold(queue_id, release=True)


def held_and_released_together(sender: Sender) -> None:
    sender.hold(*sorted(sender.queue))
    sender.hold(*sorted(sender.queue), release=True)


ASKED = {"told": RecipientRequest(Notify.SUCCESS), "untold": RecipientRequest(Notify.NEVER)}
"""What the sender asked of a recipient with this fate."""

MEANWHILE: dict[str, Callable[[Sender], None] | None] = {
    "plain": None,
    "held": left_held,
    "held and released": held_and_released,
    "held and released together": held_and_released_together,
    "with a clean-up": None,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """One message: the fates of its recipients, and who hears of those that failed."""

    fates: tuple[str, ...]
    is_null: bool = False

    @property
    def may_report(self) -> bool:
        return not self.is_null and not {"failed", "expired", "told"}.isdisjoint(self.fates)

    def letter(self) -> Letter:
        attempts = tuple(
            {
                index: self._status_of(fate)
                for index, fate in enumerate(self.fates)
                if FATES[fate][0] == attempt
            }
            for attempt in range(1 + max(FATES[fate][0] for fate in self.fates))
        )
        asked = asked_of([ASKED.get(fate, NO_REQUEST) for fate in self.fates])
        sender = "" if self.is_null else "list@example.org"
        return Letter(attempts, len(self.fates), sender, dsn=DsnRequest(recipients=asked))

    def _status_of(self, fate: str) -> Status:
        # Nobody is told of a success of mail from nobody.
        return Status.RELAYED if self.is_null and fate == "told" else FATES[fate][1]

    def __str__(self) -> str:
        return "+".join(self.fates) + (" from nobody" if self.is_null else "")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run."""

    shapes: tuple[Shape, ...]
    meanwhile: str = "plain"
    report_fails: bool = False

    def run(self, model: Model, engine: OnModel = MAILDIR, fault: Fault | None = None) -> list[Snapshot]:
        """Return every instant of it; with a fault, of the sender's disk, those after it struck."""
        world = World(prepared(model, engine=engine), engine=engine)
        world.record()
        if fault is not None:
            world.sender_disk.fail(fault)
        try:
            play(
                world,
                *(shape.letter() for shape in self.shapes),
                meanwhile=MEANWHILE[self.meanwhile],
                clean_up=self.meanwhile == "with a clean-up",
                reports=Status.BOUNCED if self.report_fails else Status.RELAYED,
            )
        except (SpoolError, OSError):
            # It says so and dies; a restart reads the disk.
            if not world.sender_disk.has_failed:
                raise
        if fault is None:
            return world.snapshots
        # The failed call leaves an instant behind, and a restart never comes sooner.
        return world.snapshots[world.failed_at :] if world.sender_disk.has_failed else []

    def __str__(self) -> str:
        reports = "; reports fail" if self.report_fails else ""
        return f"{', '.join(map(str, self.shapes))}; {self.meanwhile}{reports}"


def shapes(recipients: int) -> list[Shape]:
    """Return every message of so many recipients."""
    found = []
    for fates in itertools.combinations_with_replacement(FATES, recipients):
        found.append(Shape(fates))
        if found[-1].may_report:
            found.append(Shape(fates, is_null=True))
    return found


def of_one_recipient() -> Iterator[Scenario]:
    for shape in shapes(1):
        yield from _with_all_that_goes_on((shape,))


def drawn(rng: random.Random) -> Scenario:
    """Return a scenario of any size, by chance."""
    some = [rng.choice(shapes(rng.randint(1, MOST_RECIPIENTS))) for _ in range(rng.randint(1, MOST_MESSAGES))]
    return rng.choice(list(_with_all_that_goes_on(tuple(some))))


def _with_all_that_goes_on(some: tuple[Shape, ...]) -> Iterator[Scenario]:
    for meanwhile in MEANWHILE:
        yield Scenario(some, meanwhile)
        if any(shape.may_report for shape in some):
            yield Scenario(some, meanwhile, report_fails=True)
