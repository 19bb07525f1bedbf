"""A sender whose disk fails a sync, or is full: it goes on once there is room, or a restart does.

The disk is memory (tmpfs), so that a thousand levels take minutes; ext4 and a whole relay
are in tests/system/test_relay_full_disk.py.
"""

import errno
import itertools
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from relay.clock import SystemClock
from relay.daemon.spool_intake import NO_ROOM, SpoolIntake
from relay.mail.envelope import Envelope
from relay.policy.model import Policy
from relay.smtp.commands import Refused
from relay.spool.disk.durable import RealDisk
from relay.spool.interface import Unavailable
from relay.spool.maildir.intake import MaildirIntake
from relay.spool.maildir.layout import prepare
from relay.spool.root.headroom import HEADROOM_BYTES, HEADROOM_INODES
from relay.spool.root.trigger import Trigger
from tests.fakes.smarthost import Script, Smarthost
from tests.fakes.unsynced import Unsynced
from tests.fakes.virtual_time import pass_time
from tests.figures import FIGURES
from tests.system import small_disk
from tests.system.demand import demand
from tests.system.small_disk import MEGABYTE, SmallDisk, tmpfs
from tests.unit.sender.in_process_relay import CONTENT, Relay, policy_of

PAGE_BYTES = 4096
LIMITS = ", limits: [{messages: 100000, per: 1h}]"
LONG = b"Subject: long\r\n\r\n" + b"0123456789abcdef\r\n" * 20_000
ENVELOPE = Envelope("a@here.example", ("b@there.example",), 1, "local", "here", "ESMTP")


@dataclass(frozen=True)
class Level:
    """How full the disk is."""

    free_bytes: int | None = None
    free_inodes: int | None = None

    def fill(self, disk: SmallDisk) -> None:
        if self.free_inodes is not None:
            disk.fill_inodes_to(self.free_inodes)
        if self.free_bytes is not None:
            disk.fill_to(self.free_bytes)


FEW = [
    *(Level(free_bytes=pages * PAGE_BYTES) for pages in range(0, 24, 5)),
    *(Level(free_inodes=inodes) for inodes in range(0, 8, 2)),
]
LEVELS = [
    *(Level(free_bytes=pages * PAGE_BYTES) for pages in range(512)),
    *(Level(free_bytes=2 * MEGABYTE + number * 10 * PAGE_BYTES) for number in range(440)),
    *(Level(free_inodes=inodes) for inodes in range(HEADROOM_INODES + 8)),
]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallDisk]:
    demand(small_disk.why_missing())
    with tmpfs(tmp_path / "small", size_bytes=24 * MEGABYTE) as disk:
        yield disk


@pytest.fixture
async def host() -> AsyncIterator[Smarthost]:
    async with Smarthost(Script(rcpt=_judge)) as host:
        yield host


def _judge(argument: str) -> str:
    return "550 5.1.1 no such user" if "bad" in argument else "250 2.1.5 fine"


def _accepted(policy: Policy) -> Relay:
    """Return a sender that is not started, with a message to relay, a long one and one that half fails."""
    relay = Relay(policy)
    relay.accept("r1@x.example")
    relay.accept("r2@x.example", content=LONG)
    relay.accept("r3@x.example", "bad@x.example")
    return relay


def _came(host: Smarthost) -> Counter[str]:
    """Return how often each recipient was relayed to; the report goes to a@here.example."""
    return Counter(address for transaction in host.relayed for address in transaction.recipients)


ONCE_EACH = Counter(["r1@x.example", "r2@x.example", "r3@x.example", "a@here.example"])


async def _drains_at(level: Level, disk: SmallDisk, host: Smarthost, policy: Policy) -> None:
    host.transactions.clear()
    disk.empty()
    relay = _accepted(policy)
    level.fill(disk)
    async with relay:
        await pass_time(300)
        disk.empty()
        await relay.until_empty()
    assert _came(host) == ONCE_EACH, level
    assert not relay.faults
    assert not relay.told
    FIGURES["levels of a full disk, a sender on tmpfs"] += 1


async def test_a_start_on_a_full_disk_drains_once_there_is_room(small: SmallDisk, host: Smarthost) -> None:
    policy = policy_of(small.path, host.port, LIMITS)
    for level in FEW:
        await _drains_at(level, small, host, policy)


@pytest.mark.crash
async def test_a_start_at_any_level_of_a_full_disk_drains(
    small: SmallDisk, host: Smarthost, crash_seed: int, crash_budget_s: float
) -> None:
    """A level for each second of the budget: 1,024 is all of them, and 16 the least."""
    assert len(set(LEVELS)) == 1024
    # The levels are of one hour, and one report is owed at each.
    policy = policy_of(small.path, host.port, LIMITS, "reports: {per_hour: null}")
    levels = min(len(LEVELS), max(16, int(crash_budget_s)))
    for level in random.Random(crash_seed).sample(LEVELS, levels):
        await _drains_at(level, small, host, policy)


async def test_new_mail_leaves_room_for_reports(small: SmallDisk) -> None:
    root = str(small.path / "spool")
    prepare(root, RealDisk())
    errors: list[Unavailable] = []
    intake = SpoolIntake(
        MaildirIntake(root, RealDisk(), SystemClock()), Trigger(root, RealDisk()), errors.append
    )
    small.fill_to(HEADROOM_BYTES + MEGABYTE)
    await intake.look_for_room()

    assert (intake.refusal(0), intake.refusal(MEGABYTE // 2)) == (None, None)
    # By declared size, before anything is sent; without one, when it is written.
    assert intake.refusal(2 * MEGABYTE) == NO_ROOM
    for level in (
        Level(free_bytes=HEADROOM_BYTES - PAGE_BYTES),
        Level(free_inodes=HEADROOM_INODES - 1),
    ):
        small.empty()
        level.fill(small)
        draft = intake.draft()
        draft.append(CONTENT)
        with pytest.raises(Refused, match=r"452 4\.3\.1"):
            await intake.accept(draft, ENVELOPE)
        await intake.look_for_room()
        assert intake.refusal(0) == NO_ROOM
    small.empty()
    await intake.look_for_room()
    assert intake.refusal(0) is None
    draft = intake.draft()
    draft.append(CONTENT)
    await intake.accept(draft, ENVELOPE)
    assert (RealDisk().names(f"{root}/new"), RealDisk().names(f"{root}/tmp")) == ([draft.queue_id], [])
    assert not errors
    intake.close()


FEWER = ", limits: [{messages: 1000, per: 1h}]"
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
        policy = policy_of(folder, host.port, FEWER)
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
