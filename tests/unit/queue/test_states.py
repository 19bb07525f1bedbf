"""Every state of a queued message against everything that may happen to it."""

import pytest
from relay.queue.pages import Pages
from relay.queue.scheduler import Scheduler

from relay.mail.envelope import QueueId
from relay.mail.header import NO_NAMES, Names
from relay.queue.queued import (
    NO_REASON,
    ListedWords,
    Queued,
    RecipientsLeft,
    State,
    WaitKind,
    WaitReason,
    origin_of,
)

W, A, D, H, R = State.WAITING, State.ACTIVE, State.DEFERRED, State.HELD, State.REPORTING
# By verb: what becomes of WAITING, ACTIVE, DEFERRED, HELD, REPORTING.
CELLS = {
    "take": (A, A, D, H, R),
    "give_back": (W, W, D, H, R),
    "again": (W, W, D, H, R),
    "park": (W, W, D, H, R),
    "postpone": (W, D, D, H, R),
    "hold": (H, H, H, H, H),
    "release": (W, A, W, W, R),
    "seize": (A, A, A, A, A),
    "put_back": (W, H, D, H, R),
}


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("verb", CELLS)
def test_each_verb_does_to_each_state_what_the_table_says(verb: str, state: State) -> None:
    scheduler, queue_id = Scheduler(), QueueId("a")
    queued = Queued(queue_id, origin_of("s"), 1, 0, 1, state, due_at_ns=100)
    scheduler.add(queued)

    match verb:
        case "take":
            scheduler.next_ready(0)
        case "give_back":
            scheduler.give_back(queue_id, NO_REASON)
        case "again":
            scheduler.again(queue_id, 1, NO_REASON)
        case "park":
            scheduler.park(queue_id, "place", 100, NO_REASON)
        case "postpone":
            scheduler.postpone(queue_id, 100, 1, NO_REASON)
        case "put_back":
            scheduler.put_back(queue_id, State.HELD)
        case _:
            getattr(scheduler, verb)(queue_id)

    assert queued.state is CELLS[verb][list(State).index(state)]
    # Whoever may go now goes, and nobody else.
    taken = scheduler.next_ready(0)
    is_parked = queued.place is not None
    assert (taken is queued) == (CELLS[verb][list(State).index(state)] is State.WAITING and not is_parked)


def test_a_refusal_is_told_apart_from_what_else_keeps_a_message() -> None:
    scheduler = Scheduler()
    queued = Queued(QueueId("a"), origin_of("s"), 1, 0, 1)
    scheduler.add(queued)
    scheduler.next_ready(0)
    refusal = WaitReason("450 4.2.1 later", WaitKind.REFUSAL, "4.2.1")
    scheduler.postpone(queued.queue_id, 100, 1, refusal)
    assert (queued.refusal, queued.reason, queued.is_sitting_out) == (refusal, "450 4.2.1 later", False)

    scheduler.sender_pauses.begin("s", 0, "553 not yours")
    scheduler.release(queued.queue_id)
    assert (queued.why.kind, queued.reason) == (WaitKind.WORDS, "")
    assert not scheduler.has_ready(0)
    assert (queued.refusal, queued.is_sitting_out, queued.reason) == (None, True, "553 not yours")


def test_what_a_listing_shows_follows_what_is_left() -> None:
    shown = ListedWords(Names("<1@x>"), 7, ("b@x", "c@x"))
    queued = Queued(QueueId("a"), origin_of("s"), 1, 0, 2, listed=shown)
    assert queued.shown == shown
    queued.note_left(RecipientsLeft((), ("c@x",)), Pages())
    assert queued.shown == ListedWords(Names("<1@x>"), 7, ("c@x",))

    queued = Queued(QueueId("b"), origin_of("s"), 1, 0, 1, listed=ListedWords(NO_NAMES, 0, ("b@x",)))
    queued.enter_page(Pages())
    assert queued.shown == ListedWords(NO_NAMES, 0, ("b@x",))
    assert Queued(QueueId("c"), origin_of("s"), 1, 0, 1).shown == ListedWords()
