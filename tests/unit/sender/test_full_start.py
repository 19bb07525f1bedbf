"""A start with no room for a report that is owed: the rest of the queue goes, and that is what gives room."""

import asyncio
import errno
from collections import Counter
from pathlib import Path

import pytest

from relay.sender import spool_thread
from relay.spool.disk.durable import RealDisk
from relay.spool.interface import Note, Status
from tests.fakes.smarthost import Smarthost
from tests.unit.sender.in_process_relay import PATIENCE_SECONDS, Relay, policy_of


class NoInodeLeft(RealDisk):
    """A disk on which no message can be begun until it is told so."""

    is_full = True

    def open_new(self, path: str) -> int:
        if self.is_full and "/spool/tmp/" in path:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().open_new(path)


async def test_a_start_without_room_for_an_owed_report_relays_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_thread, "RETRY_FULL_SECONDS", 0.02)
    async with Smarthost() as host:
        policy = policy_of(tmp_path, host.port)
        before = Relay(policy)
        failed = before.accept("bad@x.example")
        await before.sender.read()
        before.spool.note({failed: [Note(0, "5.1.1", "bounced", "550 no", "isp", 1)]})
        before.spool.mark({failed: {0: Status.BOUNCED}})
        before.accept("good@x.example")
        before.sender.close()
        before.trigger.close()

        disk = NoInodeLeft()
        relay = Relay(policy, disk)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await relay.sender.start()
        await relay.until(lambda: host.relayed)
        disk.is_full = False
        await relay.until(lambda: len(host.relayed) == 2)
        await relay.until_empty()
        await relay.__aexit__(None, None, None)
    came = Counter(address for each in host.relayed for address in each.recipients)
    assert came == Counter(["good@x.example", "a@here.example"])
