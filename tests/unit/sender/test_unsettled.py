"""What is being written down keeps no connection idle, and there is never much of it."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

from relay.spool.disk.durable import RealDisk
from tests.fakes.smarthost import Script, Smarthost, Until, turns
from tests.unit.sender.in_process_relay import Relay, policy_of
from tests.unit.sender.test_races import policy_through, turns_of_the_loop


class Stalls(RealDisk):
    """A disk that keeps whoever marks waiting, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.is_held, self.goes_on = False, threading.Event()

    def sync_each(self, fds: Sequence[int], *, content_only: bool) -> list[OSError | None]:
        if fds and content_only:
            self.is_held = True
            self.goes_on.wait()
        return super().sync_each(fds, content_only=content_only)


async def test_a_connection_takes_the_next_while_two_are_written_down(
    tmp_path: Path,
) -> None:
    disk, held = Stalls(), asyncio.Event()
    async with (
        Smarthost(Script(mail=turns([Until(held), "250 ok"]))) as host,
        Relay(policy_of(tmp_path, host.port, connections=1), disk) as relay,
    ):
        try:
            for _ in range(4):
                relay.accept()
            # All are in memory before the first goes.
            await relay.until(lambda: len(relay.sender.queue) == 4)
            held.set()
            await relay.until(lambda: len(host.relayed) == 2)
            await turns_of_the_loop()
            assert len(host.relayed) == 2
        finally:
            disk.goes_on.set()
        await relay.until_empty()
        assert len(host.relayed) == 4


async def test_what_a_former_upstream_took_is_settled_however_late(tmp_path: Path) -> None:
    disk = Stalls()
    async with (
        Smarthost() as old,
        Smarthost() as new,
        Relay(policy_through(tmp_path, "old", old.port), disk) as relay,
    ):
        try:
            queue_id = relay.accept()
            await relay.until(lambda: disk.is_held)
            former = relay.sender.upstreams.in_use["old"]
            await relay.sender.apply(policy_through(tmp_path, "new", new.port))
            # Its grace is over, and the disk takes longer.
            await former.stop(0.0)
        finally:
            disk.goes_on.set()

        await relay.until(lambda: relay.queued(queue_id) is None)
        assert (len(old.relayed), new.relayed) == (1, [])
