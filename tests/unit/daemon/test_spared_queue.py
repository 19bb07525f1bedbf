"""The collector of garbage leaves a long queue alone."""

import asyncio
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.daemon import daemon, loops
from relay.daemon.loops import SPARED_AT_ONCE, spare_queue
from relay.mail.envelope import QueueId
from relay.mail.header import NO_NAMES
from relay.queue.queued import ListedWords, Queued, origin_of
from relay.queue.whole import Queue
from tests.proofs.peers.waiting import free_port
from tests.unit.daemon.test_long_start import fill
from tests.unit.sender.in_process_relay import PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def _each_look_at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(loops, "SPARE_SECONDS", 0)
    yield
    gc.unfreeze()


class OwnMessage(Queued):
    """A message of this file: other tests of this process may have left some of theirs."""

    __slots__ = ()


def a_queue(count: int) -> Queue:
    queue = Queue()
    queue.use(["isp"], [])
    for number in range(count):
        queue.add(
            OwnMessage(
                QueueId(f"{number:016d}"),
                origin_of("a@here.example", "unknown[127.0.0.1]"),
                4096,
                number,
                1,
                listed=ListedWords(NO_NAMES, number, ("b@there.example",)),
                domains=(("there.example", 1),),
            ),
            now_ns=number,
        )
    return queue


def seen_by_the_collector(kind: type[Queued] = OwnMessage) -> int:
    return sum(isinstance(each, kind) for each in gc.get_objects())


async def looked(sparing: asyncio.Task[None]) -> None:
    for _ in range(3):
        await asyncio.sleep(0)
    assert not sparing.done()


async def test_the_collector_sees_nothing_of_a_long_queue() -> None:
    queue = a_queue(SPARED_AT_ONCE)
    sparing = asyncio.create_task(spare_queue(lambda: len(queue)))
    await looked(sparing)
    assert seen_by_the_collector() == 0

    for queued in list(queue)[SPARED_AT_ONCE // 2 - 1 :]:
        queue.remove(queued.queue_id)
    del queued
    await looked(sparing)
    assert seen_by_the_collector() == SPARED_AT_ONCE // 2 - 1
    assert gc.get_freeze_count() == 0
    sparing.cancel()


async def test_what_comes_in_behind_what_left_is_spared_too() -> None:
    length = 3 * SPARED_AT_ONCE
    sparing = asyncio.create_task(spare_queue(lambda: length))
    await looked(sparing)
    length = SPARED_AT_ONCE
    await looked(sparing)

    queue = a_queue(1)
    await looked(sparing)
    assert seen_by_the_collector() == 1
    length += SPARED_AT_ONCE
    await looked(sparing)
    assert (len(queue), seen_by_the_collector()) == (1, 0)
    sparing.cancel()


def test_messages_that_leave_the_queue_are_in_no_cycle() -> None:
    """What is frozen is freed only by its last reference."""
    queue = a_queue(100)
    gc.collect()
    gc.freeze()
    queued = None
    for queued in list(queue):
        queue.hold(queued.queue_id, queued.why)
        queue.remove(queued.queue_id)
    del queued

    gc.unfreeze()
    assert seen_by_the_collector() == 0


async def test_a_relay_keeps_the_collector_off_what_its_start_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "SPARED_AT_ONCE", 20)
    frozen, freeze = asyncio.Event(), gc.freeze

    def freeze_and_tell() -> None:
        freeze()
        frozen.set()

    monkeypatch.setattr(gc, "freeze", freeze_and_tell)
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "spool: ./spool\nhostname: relay.test\n"
        f'listen: [{{address: "127.0.0.1:{free_port()}", clients: [127.0.0.0/8], processes: 0}}]\n'
        f"upstreams: {{isp: {{host: 127.0.0.1, port: {free_port()}, tls: none}}}}\n"
    )
    fill(tmp_path / "spool", 20)
    running = asyncio.create_task(daemon.serve(policy, "text", lambda _policy: None))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await frozen.wait()
    assert (gc.get_freeze_count() > 0, seen_by_the_collector(Queued)) == (True, 0)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == os.EX_OK
