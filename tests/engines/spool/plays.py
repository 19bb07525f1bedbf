"""Runs of a world from its beginning to its end: letters in, fates out, and what happens meanwhile."""

from collections.abc import Callable

from relay.spool.interface import Status
from tests.engines.spool.engine import OnModel
from tests.engines.spool.maildir_engine import MAILDIR
from tests.engines.spool.world import Letter, Sender, Violation, World, no_corruption
from tests.fakes.clock import FakeClock
from tests.fakes.disk import ModelDisk
from tests.fakes.platter import Model, Platter


def prepared(
    model: Model = Model.ANY_SUBSET, *, is_started: bool = True, engine: OnModel = MAILDIR
) -> ModelDisk:
    """Return a disk with an empty spool that was started once and is durable, or without one."""
    disk = ModelDisk(Platter(model))
    if not is_started:
        return disk
    spool = engine.spool(disk, FakeClock(), no_corruption)
    assert spool.claim(1) == []
    spool.close()
    return ModelDisk(disk.platter.after_cut(disk.platter.pending))


def play(
    world: World,
    *letters: Letter,
    meanwhile: Callable[[Sender], None] | None = None,
    clean_up: bool = False,
    reports: Status = Status.RELAYED,
) -> None:
    """Take messages in as one batch and make of them what they say; then send the reports."""
    sender = world.sender()
    sender.claim()
    world.listener().offer(*letters)
    sender.claim()
    if clean_up:
        _clean_up_beside_the_living(world, sender)
    if meanwhile is not None:
        meanwhile(sender)
    queue_ids = sorted(sender.queue)
    for attempt in range(max(len(letter.fates) for letter in letters)):
        pairs = zip(queue_ids, letters, strict=False)
        due = {q: letter.fates[attempt] for q, letter in pairs if attempt < len(letter.fates)}
        sender.settle({queue_id: fates for queue_id, fates in due.items() if queue_id in sender.queue})
    sender.claim()
    sender.drain(reports)
    sender.spool.close()


STILL_ARRIVING = Letter(({0: Status.RELAYED},), content=b"Subject: slow\r\n\r\nand steady\r\n", spills=1)


def _clean_up_beside_the_living(world: World, sender: Sender) -> None:
    dead, living = world.another_listener(101), world.another_listener(102)
    dead.begin(STILL_ARRIVING)
    drafted = living.begin(STILL_ARRIVING)
    dead.disk.die()
    if sender.spool.tidy() != 1 or drafted is None:
        raise Violation("tidying took another one's draft, or left that of the dead")
    if None in living.accept([drafted]):
        raise Violation("a message was refused after a tidying")
