"""The n-th sync under a sender fails, for n = 1, 2, …: it goes on, or a restart does."""

import errno
import itertools
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from relay.policy.model import Policy
from relay.spool.interface import Unavailable
from tests.fakes.smarthost import Script, Smarthost
from tests.fakes.unsynced import Unsynced
from tests.figures import FIGURES
from tests.unit.sender.in_process_relay import Relay, policy_of

LIMITS = ", limits: [{messages: 1000, per: 1h}]"


THREADS = ("MainThread", "spool", "history", "asyncio")
"""Each makes its syncs in an order of its own; how those of several mix differs from run to run."""


class FailsAt(Unsynced):
    """A disk whose nth sync by one kind of thread fails, of whatever kind it is."""

    def __init__(self, nth: int, thread: str) -> None:
        super().__init__()
        self._calls_left = nth
        self._thread = thread

    @property
    def has_failed(self) -> bool:
        return self._calls_left <= 0

    def _count(self) -> None:
        if not threading.current_thread().name.startswith(self._thread):
            return
        self._calls_left -= 1
        if self._calls_left == 0:
            raise OSError(errno.EIO, "Input/output error")

    def sync(self, fd: int) -> None:
        self._count()
        super().sync(fd)

    def sync_content(self, fd: int) -> None:
        self._count()
        super().sync_content(fd)

    def sync_directory(self, path: str) -> None:
        self._count()
        super().sync_directory(path)

    def sync_all(self, path: str) -> None:
        self._count()
        super().sync_all(path)

    def sync_each(self, fds: Sequence[int], *, content_only: bool) -> list[OSError | None]:
        try:
            for _ in fds:
                self._count()
        except OSError as error:
            return [error] * len(fds)
        return super().sync_each(fds, content_only=content_only)


async def _goes_on(policy: Policy, disk: FailsAt) -> str:
    """Have a sender bring all to its end on a disk of which one sync fails; return what it says."""
    try:
        relay = Relay(policy, disk)
    except OSError as error:
        return f"cannot start: {error}"
    try:
        await relay.sender.start()
    except Unavailable as error:
        relay.sender.close()
        relay.trigger.close()
        return f"cannot start: {error}"
    try:
        await relay.until_empty()
    finally:
        await relay.__aexit__(None, None, None)
    relay.events.flush()
    return relay.log.getvalue()


async def test_whatever_sync_fails_all_is_brought_to_its_end(tmp_path: Path) -> None:
    said: list[str] = []
    for thread in THREADS:
        for nth in itertools.count(1):
            disk = FailsAt(nth, thread)
            said.append(await _says_and_restarts(tmp_path / f"{thread}-{nth}", disk))
            if not disk.has_failed:
                break
            assert "Input/output error" in said[-1]
            FIGURES["failed syncs under a whole sender"] += 1
    for what in ("cannot start", "spool failed", "history of isp failed"):
        assert any(what in each for each in said), what


async def _says_and_restarts(folder: Path, disk: FailsAt) -> str:
    """Have a sender meet a failing sync and another one go on; return what the first one said."""
    script = Script(rcpt=lambda argument: "550 5.1.1 nobody" if "bad@" in argument else "250 2.1.5 fine")
    async with Smarthost(script) as host:
        policy = policy_of(folder, host.port, LIMITS)
        before = Relay(policy)
        before.accept("good@x.example", "bad@x.example")
        before.sender.close()
        said = await _goes_on(policy, disk)
        async with Relay(policy) as relay:
            await relay.until_empty()
            assert not relay.told
    came = Counter(address for each in host.relayed for address in each.recipients)
    assert set(came) == {"good@x.example", "a@here.example"}
    assert came.total() <= 2 + disk.has_failed
    return said
