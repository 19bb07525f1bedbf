"""The running counts of the queue, held against a count of every message."""

from hypothesis import given
from hypothesis import strategies as st
from relay.queue.scheduler import Scheduler

from relay.mail.envelope import QueueId
from relay.queue.counts import Sums, total
from relay.queue.queued import NO_REASON, Queued, RecipientsLeft, State, WaitReason, origin_of


def assert_counted(scheduler: Scheduler) -> None:
    """Check that the counts of a queue are what a pass over it finds."""
    for state in State:
        lanes: dict[str, list[Queued]] = {}
        for queued in scheduler:
            if queued.state is state:
                lanes.setdefault(queued.lane, []).append(queued)
        assert scheduler.counts.of(state) == {lane: _sums(its) for lane, its in lanes.items()}
        assert total(scheduler.counts.of(state).values()) == _sums([q for its in lanes.values() for q in its])


def _sums(messages: list[Queued]) -> Sums:
    return Sums(
        len(messages),
        sum(queued.recipients_left for queued in messages),
        sum(queued.size_bytes for queued in messages),
        min((queued.arrived_at_ns for queued in messages), default=None),
    )


acts = st.sampled_from(
    ["take", "back", "again", "postpone", "park", "refuse", "hold", "release", "remove", "move", "report"]
)


@given(st.lists(st.tuples(acts, st.integers(0, 7), st.integers(0, 3)), max_size=60))
def test_the_counts_are_what_a_pass_finds(steps: list[tuple[str, int, int]]) -> None:
    scheduler = Scheduler()
    for number in range(8):
        origin = origin_of(f"s{number % 3}", "pq"[number % 2], ("", "", "u")[number % 3])
        queued = Queued(QueueId(f"{number}"), origin, 10 + number, -number % 5, 1 + number)
        scheduler.add(queued)
    scheduler.sender_pauses.begin("s2", 0, "no", asked_ns=5)
    for now_ns, (act, number, more) in enumerate(steps):
        queue_id = QueueId(f"{number}")
        _do(scheduler, act, queue_id, more, now_ns)
        scheduler.has_ready(now_ns)
        assert_counted(scheduler)


def _do(scheduler: Scheduler, act: str, queue_id: QueueId, more: int, now_ns: int) -> None:
    match act:
        case "take":
            scheduler.next_ready(now_ns)
        case "back":
            scheduler.give_back(queue_id, NO_REASON)
        case "again":
            scheduler.again(queue_id, more, NO_REASON)
        case "postpone":
            scheduler.postpone(queue_id, now_ns + more, more, NO_REASON)
        case "park":
            scheduler.park(queue_id, more, now_ns, NO_REASON)
        case "refuse":
            scheduler.attempted(queue_id, tried=frozenset(), refusals=1, left=RecipientsLeft())
            scheduler.give_back(queue_id, WaitReason("421 no"))
        case "move":
            scheduler.move(queue_id, f"lane {more}")
        case "report":
            if (before := scheduler.seize(queue_id)) is not None:
                scheduler.put_back(
                    queue_id, State.REPORTING if more else before, (more, RecipientsLeft()) if more else None
                )
        case _:
            getattr(scheduler, act)(queue_id)
