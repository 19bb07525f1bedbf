"""Listings of a queue of any length, and of messages beside it; the loop keeps turning meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from relay.cli.output import queue_text
from relay.clock import SECOND_NS
from relay.control.operations import ABSENT
from relay.control.operator import AT_ONCE
from relay.mail.envelope import QueueId
from relay.queue.queued import Queued, origin_of
from relay.status.filters import Filters
from relay.status.snapshot import MessageView, QueueState, message_to_json
from tests.fakes.clock import FakeClock
from tests.fakes.smarthost import Smarthost
from tests.unit.sender.in_process_relay import Relay, policy_of

LIMIT = 100
MANY = 1000


def name_of(number: int) -> QueueId:
    return QueueId(f"{number:016d}")


def fill(relay: Relay, first: int, last: int) -> None:
    now_ns = relay.clock.boottime_ns()
    for number in range(first, last):
        sender = f"{number % 7}@x.example"
        queued = Queued(name_of(number), origin_of(sender), 1, now_ns, 1)
        relay.sender.queue.add(queued, now_ns=now_ns)


@asynccontextmanager
async def a_long_queue(folder: Path) -> AsyncIterator[Relay]:
    policy = policy_of(folder, 9, f", limits: [{{messages: {LIMIT}, per: 1h}}]")
    async with Relay(policy, clock=FakeClock()) as relay:
        # A refused connection would pause the upstream meanwhile.
        relay.sender.halt()
        fill(relay, 0, MANY)
        yield relay
        for queued in list(relay.sender.queue):
            relay.sender.queue.remove(queued.queue_id)


async def test_the_drain_time_of_a_long_queue_is_the_eta_of_its_last_message(tmp_path: Path) -> None:
    async with a_long_queue(tmp_path) as relay:
        window_ns = relay.policy.upstreams["isp"].limits[0].per_ns + SECOND_NS
        drained_at_ns = relay.status_view.snapshot().upstreams[0].drained_at_ns
        assert drained_at_ns is not None
        assert drained_at_ns == relay.clock.wall_ns() + (MANY // LIMIT - 1) * window_ns

        etas = [each.eta_at_ns for each in await relay.listed()]
        assert etas == sorted(eta for eta in etas if eta is not None)
        assert etas[-1] == drained_at_ns


async def test_a_listing_gives_way_to_the_loop_and_survives_changes_of_the_queue(tmp_path: Path) -> None:
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with a_long_queue(tmp_path) as relay:
        seen, sizes = list[MessageView](), list[int]()
        counting = asyncio.create_task(take_turns())
        async for some in relay.operator.rows():
            seen += some
            sizes.append(len(some))
            gone = MANY - len(seen) // 2
            relay.sender.queue.remove(name_of(gone))
            for view in some[:1]:
                relay.sender.queue.remove(view.queue_id)
            fill(relay, MANY + len(seen), MANY + len(seen) + 1)
        names = [each.queue_id for each in seen]
        counting.cancel()
        stayed = {name_of(number) for number in range(MANY)} & {q.queue_id for q in relay.sender.queue}

    assert names == sorted(set(names))
    assert stayed <= set(names)
    assert max(sizes) <= AT_ONCE
    assert turns >= len(sizes) - 1 >= MANY // AT_ONCE - 1


async def test_a_listing_is_oldest_first_in_whatever_order_mail_came(tmp_path: Path) -> None:
    async with a_long_queue(tmp_path) as relay:
        for number in range(10):
            relay.sender.queue.remove(name_of(number))
        fill(relay, 0, 10)
        listed = await relay.listed()
        some = await relay.listed(Filters(senders=("3@x.example",)))
    assert [each.queue_id for each in listed] == [name_of(number) for number in range(MANY)]
    assert [each.queue_id for each in some[:3]] == [name_of(number) for number in (3, 10, 17)]


async def test_a_corrupt_message_is_listed_behind_the_queue(tmp_path: Path) -> None:
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port)
        relay = Relay(policy)
        queue_id = relay.accept()
        damaged = relay.accept("c@there.example")
        (path,) = (each for each in (Path(policy.spool) / "new").iterdir() if damaged in each.name)
        path.write_bytes(path.read_bytes().replace(b"c@there", b"x@there"))
        async with relay:
            await relay.until(lambda: host.relayed)
            listed = await relay.listed()
            (corrupt,) = [message for message in listed if message.state is QueueState.CORRUPT]

            assert corrupt.reason
            assert message_to_json(corrupt)["state"] == "corrupt"
            _, line = next(queue_text([[corrupt]], relay.clock.wall_ns())).splitlines()
            assert " corrupt " in line
            (result,) = (await relay.operator.act("delete", [corrupt.queue_id])).values()
            assert result == ABSENT
            assert relay.status_view.snapshot().counts(QueueState.CORRUPT).messages == 1
    assert [relayed.recipients for relayed in host.relayed] == [["b@there.example"]]
    assert queue_id != corrupt.queue_id


async def test_accepted_mail_that_is_not_claimed_is_incoming(tmp_path: Path) -> None:
    async with Smarthost() as host, Relay(policy_of(tmp_path, host.port)) as relay:
        relay.accept()
        await relay.until_empty()
        # As while a relay stops: the sender claims nothing more, and listeners still accept mail.
        await relay.sender.finish()
        for _ in range(3):
            relay.accept()
        await relay.sender.look()

        assert relay.status_view.snapshot().counts(QueueState.INCOMING).messages == 3
        assert relay.sender.queued == 3
        totals = {fate: count for fate, count in relay.sender.totals.items() if count}
        assert totals == {"accepted": 1, "relayed": 1}
