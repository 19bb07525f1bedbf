"""Every call to the disk fails once, or from then on: nothing accepted is lost, nothing refused is queued."""

import contextlib
import errno
import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from relay.spool.identity import report_id
from relay.spool.interface import SpoolFault, SpoolFull
from tests.fakes.disk import Fault, ModelDisk
from tests.spool.cuts import BOUNCED, LONG, RELAYED, SCENARIOS
from tests.spool.oracle import live_on
from tests.spool.world import ROOT, Letter, Violation, World, play, prepared

OPENS = frozenset({"open", "open_new", "sync_directory"})
FAULTS: dict[str, Callable[[int], Fault]] = {
    "EIO": lambda nth: Fault(nth, errno.EIO),
    "EIO from then on": lambda nth: Fault(nth, errno.EIO, forever=True),
    "ENOSPC": lambda nth: Fault(nth, errno.ENOSPC),
    "ENOSPC from then on": lambda nth: Fault(nth, errno.ENOSPC, forever=True),
    "half a write, then ENOSPC": lambda nth: Fault(nth, errno.ENOSPC, is_short=True),
    "half a write, then ENOSPC from then on": lambda nth: Fault(
        nth, errno.ENOSPC, is_short=True, forever=True
    ),
    "EMFILE": lambda nth: Fault(nth, errno.EMFILE, kinds=OPENS),
    "EMFILE from then on": lambda nth: Fault(nth, errno.EMFILE, kinds=OPENS, forever=True),
}
LETTERS = (Letter(({0: RELAYED},), content=LONG, spills=1), Letter(({0: RELAYED},)))


def few(*names: str) -> list[object]:
    """Return these scenarios, and all others for the long run."""
    others = [name for name in SCENARIOS if name not in names]
    return [*names, *(pytest.param(name, marks=pytest.mark.crash) for name in others)]


def check_after(world: World, story: str) -> None:
    """Judge what a restart finds, and what one after a power cut would."""
    platter = world.sender_disk.platter
    images = [ModelDisk(platter).after_kill()]
    images += [ModelDisk(platter.after_cut(())), ModelDisk(platter.after_cut(platter.pending))]
    for image in images:
        try:
            live_on(image, world.trace.copy())
        except Exception as error:
            raise Violation(f"{story}: {error}") from error


@pytest.mark.parametrize("kind", FAULTS)
def test_what_a_listener_was_refused_is_not_queued_and_what_it_was_told_is_ours_stays(kind: str) -> None:
    base = prepared()
    for nth in itertools.count(1):
        world = World(base.after_kill())
        sender = world.sender()
        sender.recover()
        fault = FAULTS[kind](nth)
        world.listener_disk.fail(fault)
        world.listener().offer(*LETTERS)
        if not world.listener_disk.has_failed:
            break
        world.listener_disk.die()
        sender.take()
        queued = sender.queue & world.trace.refused
        # A dead disk cannot take back what was already published; the client will send it again.
        assert not queued or fault.forever
        assert world.trace.accepted <= sender.queue
        check_after(world, f"{kind} at {nth}: {world.listener_disk.steps[-3:]}")
    assert nth > 10 or "EMFILE" in kind


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("name", few("a batch of two", "held and released"))
def test_a_sender_whose_disk_fails_says_so_and_a_restart_finds_everything(name: str, kind: str) -> None:
    base, (letters, meanwhile) = prepared(), SCENARIOS[name]
    for nth in itertools.count(1):
        world = World(base.after_kill())
        world.sender_disk.fail(FAULTS[kind](nth))
        world.sender_disk.steps.clear()
        with contextlib.suppress(SpoolFault, SpoolFull, OSError):
            play(world, *letters, meanwhile=meanwhile)
        if not world.sender_disk.has_failed:
            break
        check_after(world, f"{name}, {kind} at {nth}: {world.sender_disk.steps[-3:]}")
    assert nth > 10


@pytest.mark.parametrize("kind", ["ENOSPC", "half a write, then ENOSPC from then on"])
@pytest.mark.parametrize("name", few("a batch of two", "bounced while held"))
def test_a_full_disk_holds_the_sender_up_and_the_same_calls_go_on_when_there_is_room(
    name: str, kind: str
) -> None:
    base, (letters, meanwhile) = prepared(), SCENARIOS[name]
    for nth in itertools.count(1):
        world = World(base.after_kill())
        sender = world.sender()
        sender.recover()
        world.listener().offer(*letters)
        sender.take()
        sender.on_full = world.sender_disk.heal
        queue_ids = sorted(sender.queue)
        if meanwhile is not None:
            meanwhile(sender)
        world.sender_disk.fail(FAULTS[kind](nth))
        for attempt in range(max(len(letter.fates) for letter in letters)):
            pairs = zip(queue_ids, letters, strict=True)
            due = {q: letter.fates[attempt] for q, letter in pairs if attempt < len(letter.fates)}
            sender.settle({queue_id: fates for queue_id, fates in due.items() if queue_id in sender.queue})
        has_failed = world.sender_disk.has_failed
        world.sender_disk.heal()
        check_after(world, f"{name}, {kind} at {nth}: {world.sender_disk.steps}")
        sender.take()
        sender.drain()
        totals = sender.spool.totals()
        assert totals.queued == 0
        assert totals.accepted == totals.relayed + totals.bounced + totals.expired + totals.deleted
        if not has_failed:
            break
    assert nth > 2


def test_a_report_is_queued_once_though_its_message_cannot_be_ended_for_lack_of_room() -> None:
    world = World(prepared())
    sender = world.sender()
    sender.recover()
    (bounced,) = world.listener().offer(Letter(({0: BOUNCED},)))
    assert bounced is not None
    sender.take()

    def relay_the_report() -> None:
        world.sender_disk.heal()
        assert sender.take() == [report_id(bounced)]
        sender.settle({report_id(bounced): {0: RELAYED}})

    sender.on_full = relay_the_report
    world.sender_disk.fail(Fault(1, errno.ENOSPC, path="/ledger"))
    # The world sees to it that no report is queued after it was relayed.
    sender.settle({bounced: {0: BOUNCED}})

    assert report_id(bounced) in world.trace.finishing
    assert sender.take() == []
    assert sender.spool.totals().queued == 0


def test_a_draft_is_given_up_by_who_wrote_it_or_by_who_finds_it_dead() -> None:
    world = World(prepared())
    sender, listener = world.sender(), world.listener()
    sender.recover()
    given_up, dead, alive = (listener.intake.draft() for _ in range(3))
    for draft in (given_up, dead, alive):
        draft.append(b"Subject: half\r\n")
        listener.intake.spill(draft)
    listener.intake.discard(given_up)
    assert sorted(world.sender_disk.names(f"{ROOT}/tmp")) == sorted([dead.queue_id, alive.queue_id])

    assert dead.fd is not None
    world.listener_disk.close(dead.fd)
    world.clock.step_wall(10 * 365 * 86400 * 10**9)
    assert sender.spool.clean_up() == 1
    assert world.sender_disk.names(f"{ROOT}/tmp") == [alive.queue_id]
    envelope = LETTERS[0].envelope(world.clock.wall_ns())
    alive.append(b"\r\nwhole\r\n")
    assert listener.intake.accept([(alive, envelope)]) == [None]
    assert [entry.queue_id for entry in sender.spool.take(10)] == [alive.queue_id]


def test_a_draft_that_was_given_up_cannot_be_accepted() -> None:
    world = World(prepared())
    listener = world.listener()
    envelope = LETTERS[0].envelope(world.clock.wall_ns())
    draft = listener.intake.draft()
    draft.append(b"first part")
    world.listener_disk.fail(Fault(1, errno.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        listener.intake.spill(draft)
    world.listener_disk.heal()
    draft.append(b"second part")

    (error,) = listener.intake.accept([(draft, envelope)])

    assert isinstance(error, OSError)
    assert world.listener_disk.names(f"{ROOT}/new") == []
    assert world.listener_disk.names(f"{ROOT}/tmp") == []


def test_one_bad_message_of_a_batch_is_refused_alone() -> None:
    world = World(prepared())
    listener = world.listener()
    drafts = [listener.intake.draft() for _ in range(4)]
    for draft in drafts:
        draft.append(b"content")
    good = LETTERS[0].envelope(1)
    bad: list[tuple[str, ...]] = [("r@example.com\nDx",), (), ("\ud800@example.com",)]
    envelopes = [good, *(replace(good, recipients=addresses) for addresses in bad)]

    results = listener.intake.accept(list(zip(drafts, envelopes, strict=True)))

    assert results[0] is None
    assert all(isinstance(error, OSError) and error.errno == errno.EINVAL for error in results[1:])
    assert world.listener_disk.names(f"{ROOT}/new") == [drafts[0].queue_id]
    assert world.listener_disk.names(f"{ROOT}/tmp") == []
