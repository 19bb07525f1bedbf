"""A start whose queue the disk does not give at once: what goes on meanwhile, and what is said of it."""

import asyncio
import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from relay.control.operations import ABSENT, OK, UNREAD
from relay.mail.envelope import QueueId
from relay.policy.model import Policy
from relay.queue.scheduler import State
from relay.spool.disk.durable import RealDisk
from relay.spool.interface import SpoolFault
from relay.spool.maildir import recovery
from relay.verdicts.operator_pause import PauseAsked
from tests.fakes.smarthost import Smarthost
from tests.unit.sender.in_process_relay import PATIENCE_SECONDS, Relay, policy_of

QUEUED = 6
BATCH = 2


class SlowDisk(RealDisk):
    """A disk on which no queued file behind the first batch can be opened before `let_go`."""

    def __init__(self, *, most: int = BATCH) -> None:
        super().__init__()
        self._left = most
        self._gate = threading.Event()
        self.fails_with: int | None = None
        """What the disk says instead, once it answers."""

    def open_update(self, path: str) -> int:
        if "/cur/" in path:
            self._left -= 1
            if self._left < 0:
                assert self._gate.wait(PATIENCE_SECONDS)
                if self.fails_with is not None:
                    raise OSError(self.fails_with, "as the test says")
        return super().open_update(path)

    def let_go(self, fails_with: int | None = None) -> None:
        self.fails_with = fails_with
        self._gate.set()


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "BATCH", BATCH)


async def _with_queue(policy: Policy) -> list[QueueId]:
    """Queue messages, and end; return their ids, the oldest first."""
    relay = Relay(policy)
    ids = [relay.accept(f"b{number}@there.example") for number in range(QUEUED)]
    await relay.sender.read()
    await relay.sender.stop()
    relay.trigger.close()
    return ids


async def test_the_first_goes_before_the_last_is_read(tmp_path: Path) -> None:
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port)
        await _with_queue(policy)
        disk = SlowDisk()
        async with Relay(policy, disk) as relay:
            await host.until(lambda: len(host.transactions) == BATCH)
            assert relay.sender.is_reading
            disk.let_go()
            await relay.until_empty()
        recipients = [sent.recipients for sent in host.transactions]
    assert sorted(recipients[:BATCH]) == [[f"b{number}@there.example"] for number in range(BATCH)]
    assert sorted(recipients) == [[f"b{number}@there.example"] for number in range(QUEUED)]


async def test_what_is_not_read_yet_is_not_said_to_be_absent(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, 9)
    ids = await _with_queue(policy)
    disk = SlowDisk()
    async with Relay(policy, disk) as relay:
        assert relay.watch.snapshot().recovering >= QUEUED - 2 * BATCH
        assert await relay.operator.show(ids[-1]) == UNREAD
        assert await relay.operator.act("delete", ids[-1:]) == {ids[-1]: UNREAD}
        assert isinstance(await relay.operator.plan(b"", tmp_path / "policy.yaml"), str)
        disk.let_go()
        await relay.until(lambda: not relay.sender.is_reading)
        assert relay.watch.snapshot().recovering == 0
        assert await relay.operator.act("hold", ids[-1:]) == {ids[-1]: OK}
        assert await relay.operator.show(QueueId("0" * 16)) == ABSENT


async def test_new_mail_goes_beside_the_queue_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Takes and batches take turns: whatever is ahead of it, new mail waits for one batch."""
    monkeypatch.setattr(recovery, "BATCH", 1)
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port)
        await _with_queue(policy)
        relay = Relay(policy)
        # Seen by the start as one of its files: it may be taken by either.
        relay.accept("early@there.example")
        async with relay:
            relay.accept("new@there.example")
            await relay.until_empty()
            totals = relay.sender.seen.totals
        recipients = sorted(recipient for sent in host.transactions for recipient in sent.recipients)
    everybody = [f"b{number}@there.example" for number in range(QUEUED)]
    assert recipients == sorted([*everybody, "early@there.example", "new@there.example"])
    assert (totals.accepted, totals.relayed, totals.imbalance) == (QUEUED + 2, QUEUED + 2, 0)


async def test_a_stop_in_the_middle_leaves_the_rest_to_the_next_start(tmp_path: Path) -> None:
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port)
        await _with_queue(policy)
        disk = SlowDisk()
        relay = Relay(policy, disk)
        await relay.sender.start()
        await host.until(lambda: len(host.transactions) == BATCH)
        stopping = asyncio.create_task(relay.sender.stop())
        disk.let_go()
        await stopping
        relay.trigger.close()
        assert not relay.faults
        async with Relay(policy) as again:
            await again.until_empty()
            assert again.sender.seen.totals.imbalance == 0
        assert len(host.transactions) == QUEUED


async def test_a_disk_that_fails_in_the_middle_ends_the_sender(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, 9)
    await _with_queue(policy)
    disk = SlowDisk()
    relay = Relay(policy, disk)
    await relay.sender.start()
    # A disk that may only be read: nothing could be marked.
    disk.let_go(errno.EROFS)
    while not relay.faults:  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(0)
    assert isinstance(relay.faults[0], SpoolFault | OSError)
    await relay.sender.stop()
    relay.trigger.close()


async def test_a_lack_of_descriptors_in_the_middle_only_delays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.sender.arrivals.LACK_SECONDS", 0)
    policy = policy_of(tmp_path, 9)
    await _with_queue(policy)
    disk = SlowDisk()
    async with Relay(policy, disk) as relay:
        disk.let_go(errno.EMFILE)
        await relay.sender.spool_thread.call(lambda: None)
        assert relay.sender.is_reading
        disk.fails_with = None
        await relay.until(lambda: len(relay.sender.queue) == QUEUED)
        assert not relay.faults


async def test_an_edit_in_the_middle_sorts_what_is_read_after_it(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, 9)
    ids = await _with_queue(policy)
    disk = SlowDisk()
    lanes = 'lanes: {last: {sender: "a@here.example"}, default: {}}'
    async with Relay(policy, disk) as relay:
        await relay.sender.apply(policy_of(tmp_path, 9, rest=lanes))
        disk.let_go()
        await relay.until(lambda: not relay.sender.is_reading)
        (last,) = relay.sender.queue.parts(ids[-1])
        assert last.lane == "last"


class TellingDisk(SlowDisk):
    """One that tells when a file is read again, which the start read before by other rules."""

    def __init__(self, queue_id: QueueId, on_again: Callable[[], None]) -> None:
        super().__init__()
        self._path_end, self._on_again = f"/{queue_id}", on_again
        self._opened = 0

    def open_update(self, path: str) -> int:
        if "/cur/" in path and path.endswith(self._path_end):
            self._opened += 1
            if self._opened == 2:
                self._on_again()
        return super().open_update(path)


async def test_an_edit_while_another_one_is_gone_by_counts(tmp_path: Path) -> None:
    policy, loop = policy_of(tmp_path, 9), asyncio.get_running_loop()
    ids = await _with_queue(policy)
    first, second = (
        policy_of(tmp_path, 9, rest=f'lanes: {{{name}: {{sender: "a@here.example"}}, default: {{}}}}')
        for name in ("first", "second")
    )
    edits: list[None] = []

    def edit() -> None:
        edited = asyncio.run_coroutine_threadsafe(relay.sender.apply(second), loop)
        edits.append(edited.result(PATIENCE_SECONDS))

    disk = TellingDisk(ids[BATCH], edit)
    async with Relay(policy, disk) as relay:
        await relay.sender.apply(first)
        disk.let_go()
        await relay.until(lambda: not relay.sender.is_reading)
        await relay.until(lambda: all(each.lane == "second" for each in relay.sender.queue))
        assert len(edits) == 1


async def test_a_pause_holds_what_is_read_after_it_was_recalled(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, 9)
    async with Relay(policy) as relay:
        assert await relay.operator.pause("isp", PauseAsked("anna", holds_new=True)) == OK
    ids = await _with_queue(policy)
    disk = SlowDisk()
    async with Relay(policy, disk) as relay:
        await relay.until(lambda: relay.line.holds_new)
        disk.let_go()
        await relay.until(lambda: not relay.sender.is_reading)
        assert {queued.state for queued in relay.sender.queue} == {State.HELD}
        assert len(relay.sender.queue) == len(ids)
