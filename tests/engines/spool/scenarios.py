"""Runs of the spool: hand-written stories, and small runs generated systematically.

A small run has up to three messages with up to four recipients each. Each recipient has one fate: relayed,
relayed after a deferral, failed, expired after a deferral, deleted, relayed for a sender who wants a success
report, or failed for a sender who wants no report (NOTIFY, RFC 3461). The report of a failure is relayed or
fails too, or the reverse path is empty. Meanwhile the messages are left alone, or held and released (one by
one or together), or settled while held, or a clean-up meets drafts of a dead and a living listener.
"""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from relay.mail.dsn import NO_REQUEST, DsnRequest, Notify, RecipientRequest, asked_of
from relay.spool.interface import SpoolError, Status
from tests.engines.spool.engine import BOUNCED, DELETED, EXPIRED, RELAYED, TOLD, OnModel
from tests.engines.spool.world import Letter, Sender, Snapshot, Violation, World, prepared
from tests.fakes.disk import Fault, ModelDisk

MOST_MESSAGES = 3
MOST_RECIPIENTS = 4
LONG = b"Subject: long\r\n\r\n" + b"0123456789\r\n" * 110
WANTS_ALL = RecipientRequest("SUCCESS,FAILURE", "rfc822;list+2Bowner@example.org")
WANTS_NONE = RecipientRequest("NEVER")


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


def warned(sender: Sender) -> None:
    for queue_id in sorted(sender.queue):
        sender.warn(queue_id)


def reports_wait_after_a_crash(sender: Sender) -> None:
    sender.trace.waits_after_a_crash = True


def the_first_report_waits(sender: Sender) -> None:
    sender.trace.reports_wait = 1


@dataclass(frozen=True, slots=True)
class Scenario:
    words: str
    letters: Sequence[Letter]
    meanwhile: Callable[[Sender], None] | None = None
    reports: Status = RELAYED
    """The final status of each report."""
    cleans_up: bool = False
    is_started: bool = True
    """Whether the spool was started once before."""

    def play(self, world: World) -> None:
        """Accept the letters as one batch, settle them as they say, then send the reports."""
        sender = world.sender()
        sender.claim()
        world.listener().offer(*self.letters)
        sender.claim()
        if self.cleans_up:
            _clean_up_beside_the_living(world, sender)
        if self.meanwhile is not None:
            self.meanwhile(sender)
        sender.settle_attempts(sorted(sender.queue), self.letters)
        sender.claim()
        sender.drain(self.reports)
        sender.spool.close()

    def run(self, engine: OnModel, fault: Fault | None = None) -> list[Snapshot]:
        """Return every instant of the run; with a fault of the sender's disk, those after it struck."""
        world = World(prepared(is_started=self.is_started, engine=engine), engine=engine)
        world.record()
        if fault is not None:
            world.sender_disk.fail(fault)
        try:
            self.play(world)
        except (SpoolError, OSError):
            # The sender reports the fault and dies; a restart reads the disk.
            if not world.sender_disk.has_failed:
                raise
        if fault is None:
            return world.snapshots
        # The failed call has a snapshot of its own, and no restart comes before it.
        return world.snapshots[world.failed_at :] if world.sender_disk.has_failed else []

    def __str__(self) -> str:
        return self.words


def _clean_up_beside_the_living(world: World, sender: Sender) -> None:
    still_arriving = Letter(({0: RELAYED},), content=b"Subject: slow\r\n\r\nand steady\r\n", spills=1)
    dead, living = world.another_listener(101), world.another_listener(102)
    assert isinstance(dead.disk, ModelDisk)
    dead.begin(still_arriving)
    drafted = living.begin(still_arriving)
    dead.disk.die()
    if sender.spool.tidy() != 1 or drafted is None:
        raise Violation("tidying took another one's draft, or left that of the dead")
    if None in living.accept([drafted]):
        raise Violation("a message was refused after a tidying")


STORIES = {
    words: Scenario(words, letters, meanwhile)
    for words, letters, meanwhile in (
        ("relayed", [Letter(({0: RELAYED},))], None),
        ("a batch of two", [Letter(({0: RELAYED}, {1: BOUNCED}), 2), Letter(({0: RELAYED},))], None),
        ("bounced", [Letter(({0: RELAYED, 1: BOUNCED},), 2)], None),
        ("bounced, then expired", [Letter(({0: BOUNCED}, {1: EXPIRED}), 2)], None),
        ("bounced one by one", [Letter(({2: BOUNCED}, {0: BOUNCED}, {1: RELAYED}), 3)], None),
        (
            "bounced one by one, no report after a crash",
            [Letter(({2: BOUNCED}, {0: BOUNCED}, {1: RELAYED}), 3)],
            reports_wait_after_a_crash,
        ),
        (
            "three bounced, no report after a crash",
            [Letter(({1: BOUNCED, 2: EXPIRED, 3: BOUNCED}, {0: BOUNCED}), 4)],
            reports_wait_after_a_crash,
        ),
        (
            "bounced, the first report waits",
            [Letter(({2: BOUNCED}, {0: BOUNCED, 1: RELAYED}, {3: EXPIRED}), 4)],
            the_first_report_waits,
        ),
        ("deleted", [Letter(({0: DELETED, 1: RELAYED},), 2)], None),
        ("held and released", [Letter(({0: RELAYED},)), Letter(({0: BOUNCED},))], held_and_released),
        (
            "held and released together",
            [Letter(({0: RELAYED},)), Letter(({0: BOUNCED},)), Letter(({0: RELAYED},))],
            held_and_released_together,
        ),
        ("bounced while held", [Letter(({0: BOUNCED},))], left_held),
        ("warned, then bounced", [Letter(({}, {0: BOUNCED}))], warned),
        (
            "told of some, no report after a crash",
            [
                Letter(
                    ({1: TOLD, 2: BOUNCED}, {0: TOLD, 3: BOUNCED}),
                    4,
                    dsn=DsnRequest(recipients=(WANTS_ALL, WANTS_ALL, WANTS_NONE, WANTS_ALL)),
                )
            ],
            reports_wait_after_a_crash,
        ),
        (
            "spilled",
            [Letter(({0: RELAYED}, {1: BOUNCED}, {2: RELAYED, 3: EXPIRED}), 4, content=LONG, spills=2)],
            None,
        ),
    )
}

FATES: dict[str, tuple[int, Status]] = {
    "relayed": (0, RELAYED),
    "deferred": (1, RELAYED),
    "failed": (0, BOUNCED),
    "expired": (1, EXPIRED),
    "deleted": (0, DELETED),
    "told": (0, TOLD),
    "untold": (0, BOUNCED),
}
"""For each fate: the number of the attempt that ends the recipient, and its status."""
ASKED = {"told": RecipientRequest(Notify.SUCCESS), "untold": WANTS_NONE}
"""What the sender requests for a recipient with this fate."""
MEANWHILE: dict[str, Callable[[Sender], None] | None] = {
    "plain": None,
    "held": left_held,
    "held and released": held_and_released,
    "held and released together": held_and_released_together,
    "with a clean-up": None,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """One message: the fates of its recipients, and whether its reverse path is empty."""

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
        # Nobody receives a success report for mail with an empty reverse path.
        return RELAYED if self.is_null and fate == "told" else FATES[fate][1]

    def __str__(self) -> str:
        return "+".join(self.fates) + (" from nobody" if self.is_null else "")


def shapes(recipients: int) -> list[Shape]:
    """Return every message with this number of recipients."""
    found = []
    for fates in itertools.combinations_with_replacement(FATES, recipients):
        found.append(Shape(fates))
        if found[-1].may_report:
            found.append(Shape(fates, is_null=True))
    return found


def of_one_recipient() -> Iterator[Scenario]:
    for shape in shapes(1):
        yield from _with_all_that_goes_on([shape])


def drawn(rng: random.Random) -> Scenario:
    """Draw a scenario of any size."""
    some = [rng.choice(shapes(rng.randint(1, MOST_RECIPIENTS))) for _ in range(rng.randint(1, MOST_MESSAGES))]
    return rng.choice(list(_with_all_that_goes_on(some)))


def _with_all_that_goes_on(some: Sequence[Shape]) -> Iterator[Scenario]:
    letters = [shape.letter() for shape in some]
    for words, meanwhile in MEANWHILE.items():
        story = f"{', '.join(map(str, some))}; {words}"
        cleans_up = words == "with a clean-up"
        yield Scenario(story, letters, meanwhile, cleans_up=cleans_up)
        if any(shape.may_report for shape in some):
            yield Scenario(f"{story}; reports fail", letters, meanwhile, BOUNCED, cleans_up)
