"""A start whose queue the disk does not give at once: what goes on meanwhile, and what is said of it."""

import threading
from pathlib import Path

import pytest

from relay.control.operations import ABSENT, OK, UNREAD, NotDone
from relay.mail.envelope import QueueId
from relay.policy.model import Policy
from relay.sender import arrivals
from tests.fakes.smarthost import Smarthost
from tests.fakes.unsynced import Unsynced
from tests.unit.sender.in_process_relay import PATIENCE_SECONDS, Relay, policy_of

QUEUED = 6
BATCH = 2


class SlowDisk(Unsynced):
    """A disk on which no queued file behind the first batch can be opened before `let_go`."""

    def __init__(self) -> None:
        super().__init__()
        self._left = BATCH
        self._gate = threading.Event()

    def open_update(self, path: str) -> int:
        if "/cur/" in path:
            self._left -= 1
            assert self._left >= 0 or self._gate.wait(PATIENCE_SECONDS)
        return super().open_update(path)

    def let_go(self) -> None:
        self._gate.set()


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "CLAIMED_AT_ONCE", BATCH)


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
        async with Relay(policy, disk, is_threaded=True) as relay:
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
    async with Relay(policy, disk, is_threaded=True) as relay:
        assert relay.watch.snapshot().recovering >= QUEUED - 2 * BATCH
        with pytest.raises(NotDone, match=UNREAD):
            await relay.operator.show(ids[-1])
        assert await relay.operator.act("delete", ids[-1:]) == {ids[-1]: UNREAD}
        with pytest.raises(NotDone, match="still reads its queue"):
            await relay.operator.plan("", tmp_path / "policy.yaml")
        disk.let_go()
        await relay.until(lambda: not relay.sender.is_reading)
        assert relay.watch.snapshot().recovering == 0
        assert await relay.operator.act("hold", ids[-1:]) == {ids[-1]: OK}
        with pytest.raises(NotDone, match=ABSENT):
            await relay.operator.show(QueueId("0" * 16))
