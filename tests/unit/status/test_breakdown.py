import asyncio

from relay.mail.envelope import QueueId
from relay.queue.queued import Queued, State, WaitKind, WaitReason, origin_of
from relay.queue.queues import Queues
from relay.queue.routes import Choice, Part, Route
from relay.status.breakdown import AT_ONCE, FRESH_NS, Breakdown, Breakdowns, Count
from relay.status.snapshot import QueueState
from tests.fakes.clock import START_WALL_NS, FakeClock


def queued(number: int, sender: str = "a@x.example", state: State = State.WAITING, why: str = "") -> Queued:
    kind = WaitKind.REFUSAL if state is State.DEFERRED else WaitKind.WORDS
    reason = WaitReason(why, kind)
    return Queued(
        QueueId(f"{number:016d}"), origin_of(sender), 1_000, 0, 2, state, why=reason, choice=Choice("isp")
    )


def counted(*messages: Queued, paused: str = "") -> Breakdown:
    count = Count({"isp": paused})
    count.add(messages)
    return count.breakdown(START_WALL_NS)


def reasons(breakdown: Breakdown) -> list[tuple[QueueState, str, int, int]]:
    return [(each.state, each.reason, each.messages, each.recipients) for each in breakdown.reasons]


def test_senders_are_counted_in_all_their_spellings_most_first() -> None:
    breakdown = counted(queued(1, "b@x.example"), queued(2, "A@x.example"), queued(3, "a@X.example"))

    listed = [(each.reverse_path, each.messages, each.recipients) for each in breakdown.senders]
    assert listed == [("A@x.example", 2, 4), ("b@x.example", 1, 2)]


def test_replies_are_one_reason_where_only_ids_differ() -> None:
    def refused(number: int, reply: str) -> Queued:
        return queued(number, state=State.DEFERRED, why=reply)

    breakdown = counted(
        refused(1, "450 4.2.0 <ann@x.example> come again, id q1f"),
        refused(2, "450 4.2.0 <bob@x.example> come again, id q2e"),
        refused(3, "451 4.2.0 <bob@x.example> come again, id q2e"),
    )

    assert reasons(breakdown) == [
        (QueueState.DEFERRED, "450 4.2.0 <ann@x.example> come again, id q1f", 2, 4),
        (QueueState.DEFERRED, "451 4.2.0 <bob@x.example> come again, id q2e", 1, 2),
    ]


def test_a_pause_is_the_reason_of_all_that_waits_and_no_other() -> None:
    deferred = queued(3, state=State.DEFERRED, why="450 later")
    breakdown = counted(queued(1), queued(2, why="no room"), deferred, paused="isp is paused: 421")

    assert reasons(breakdown) == [
        (QueueState.WAITING, "isp is paused: 421", 2, 4),
        (QueueState.DEFERRED, "450 later", 1, 2),
    ]


def test_a_message_in_parts_counts_once_in_each_row() -> None:
    parts = [queued(1), queued(1), queued(1, state=State.DEFERRED, why="450 later"), queued(2)]
    for index, part in enumerate(parts[:3]):
        part.part = Part(Route((f"u{index}",)), frozenset([2 * index, 2 * index + 1]))

    breakdown = counted(*parts)

    assert reasons(breakdown) == [
        (QueueState.WAITING, "", 2, 6),
        (QueueState.DEFERRED, "450 later", 1, 2),
    ]
    assert [(each.messages, each.recipients) for each in breakdown.senders] == [(2, 8)]


def queue_of(count: int) -> Queues:
    queue = Queues()
    queue.use(["isp"], ())
    for number in range(count):
        queue.add(queued(number), now_ns=0)
    return queue


async def test_all_that_ask_share_one_count_while_it_is_fresh() -> None:
    queue, clock = queue_of(1), FakeClock()
    breakdowns = Breakdowns(queue, clock)

    first, second = await asyncio.gather(breakdowns.newest({}), breakdowns.newest({}))
    queue.add(queued(1), now_ns=0)
    clock.advance(FRESH_NS - 1)
    third = await breakdowns.newest({})
    clock.advance(1)
    fourth = await breakdowns.newest({})

    assert first is second is third
    assert [each.senders[0].messages for each in (first, fourth)] == [1, 2]


async def test_messages_that_come_and_go_meanwhile_do_no_harm() -> None:
    queue = queue_of(3 * AT_ONCE)
    counting = asyncio.create_task(Breakdowns(queue, FakeClock()).newest({}))
    await asyncio.sleep(0)
    for number in range(AT_ONCE):
        queue.remove(QueueId(f"{number:016d}"))
        queue.add(queued(10_000 + number), now_ns=0)

    assert (await counting).senders[0].messages == 3 * AT_ONCE
