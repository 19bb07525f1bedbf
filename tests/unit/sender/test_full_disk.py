"""A sender on a real file system that is full, or has no inodes left: it starts, relays, reports and drains.

The disk is memory (tmpfs), so that a thousand levels take minutes; ext4 and a whole relay
are in tests/proofs/peers/test_relay_full_disk.py.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from relay.clock import SystemClock
from relay.daemon.spool_intake import NO_ROOM, SpoolIntake
from relay.listener.ports import NotAccepted
from relay.mail.envelope import Envelope
from relay.policy.model import Policy
from relay.sender import dispatcher, spool_thread
from relay.spool.disk.durable import RealDisk
from relay.spool.maildir.intake import MaildirIntake
from relay.spool.maildir.layout import prepare
from relay.spool.root.headroom import HEADROOM_BYTES, HEADROOM_INODES
from relay.spool.root.trigger import Trigger
from tests.fakes.smarthost import Script, Smarthost
from tests.proofs.figures import FIGURES
from tests.proofs.peers import small_disk
from tests.proofs.peers.demand import demand
from tests.proofs.peers.small_disk import MEGABYTE, SmallDisk, tmpfs
from tests.unit.sender.in_process_relay import CONTENT, Relay, policy_of
from tests.unit.spool.recovering import recover

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


FEW_PAGES = [Level(free_bytes=pages * PAGE_BYTES) for pages in range(24)]
FEW_INODES = [Level(free_inodes=inodes) for inodes in range(8)]
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


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look again at once where a relay would wait a few seconds."""
    monkeypatch.setattr(spool_thread, "RETRY_FULL_SECONDS", 0.02)
    monkeypatch.setattr(dispatcher, "HISTORY_RETRY_NS", 20_000_000)


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
        await relay.until_empty()
    assert _came(host) == ONCE_EACH, level
    assert not relay.faults
    assert not relay.told
    FIGURES["levels of a full disk, a sender on tmpfs"] += 1


async def test_a_start_on_a_full_disk_relays_reports_and_drains(small: SmallDisk, host: Smarthost) -> None:
    policy = policy_of(small.path, host.port, LIMITS)
    for level in (*FEW_PAGES, *FEW_INODES):
        await _drains_at(level, small, host, policy)


@pytest.mark.crash
async def test_a_start_at_any_level_of_a_full_disk_drains(
    small: SmallDisk, host: Smarthost, crash_seed: int, crash_budget_s: float
) -> None:
    """A level for each second of the budget: 1,024 is all of them, and 64 the least."""
    assert len(set(LEVELS)) == 1024
    # The levels are of one hour, and one report is owed at each.
    policy = policy_of(small.path, host.port, LIMITS, "reports: {per_hour: null}")
    levels = min(len(LEVELS), max(64, int(crash_budget_s)))
    for level in random.Random(crash_seed).sample(LEVELS, levels):
        await _drains_at(level, small, host, policy)


async def test_a_neighbour_who_takes_all_room_costs_only_time(small: SmallDisk, host: Smarthost) -> None:
    async def take_all() -> None:
        while True:
            small.fill_to(0)
            await asyncio.sleep(0)

    relay = _accepted(policy_of(small.path, host.port, LIMITS))
    small.fill_to(0)
    neighbour = asyncio.create_task(take_all())
    async with relay:
        await relay.until(lambda: "nothing is sent" in _said(relay))
        neighbour.cancel()
        await asyncio.gather(neighbour, return_exceptions=True)
        small.empty()
        await relay.until_empty()
    assert _came(host) == ONCE_EACH
    assert not relay.faults


async def test_what_was_relayed_is_marked_without_room_for_reasons(small: SmallDisk, host: Smarthost) -> None:
    # The history has room, on another disk.
    policy = policy_of(small.path, host.port, ", history: ../history")
    first = Relay(policy)
    first.accept("r1@x.example", "bad@x.example")
    # Neither notes nor a reserve: whoever looks next finds one mark and one recipient to do.
    small.fill_inodes_to(0)
    first.spool._reserve.spend()
    small.fill_inodes_to(0)
    with contextlib.suppress(asyncio.CancelledError):
        async with first:
            await first.until(lambda: "spool failed" in _said(first))
            for sending in first.dispatcher.delivery._sending.values():
                sending.cancel()
    second = Relay(policy)
    (entry,) = recover(second.spool).entries
    assert entry.recipients_shown == ("bad@x.example",)
    await second.sender.spool_thread.call(lambda: None)
    second.sender.spool_thread.close()


def _said(relay: Relay) -> str:
    relay.events.flush()
    return relay.log.getvalue()


async def test_new_mail_leaves_room_for_reports_and_the_ledger(small: SmallDisk) -> None:
    root = str(small.path / "spool")
    prepare(root, RealDisk())
    errors: list[OSError] = []
    intake = SpoolIntake(
        MaildirIntake(root, RealDisk(), SystemClock()), Trigger(root, RealDisk()), errors.append
    )
    small.fill_to(HEADROOM_BYTES + MEGABYTE)
    await intake.look_for_room()

    assert (intake.refusal(0), intake.refusal(MEGABYTE // 2)) == (None, None)
    # By declared size, before anything is sent.
    assert intake.refusal(2 * MEGABYTE) == NO_ROOM
    # Without one, when it is written.
    await _refuses_in_time(intake)
    await _refuses_at(lambda: small.fill_to(HEADROOM_BYTES - PAGE_BYTES), intake)
    small.empty()
    await _refuses_at(lambda: small.fill_inodes_to(HEADROOM_INODES - 1), intake)
    small.empty()
    assert not errors
    await intake.look_for_room()
    assert intake.refusal(0) is None
    draft = intake.draft()
    draft.append(CONTENT)
    await intake.accept(draft, ENVELOPE)
    assert (RealDisk().names(f"{root}/new"), RealDisk().names(f"{root}/tmp")) == ([draft.queue_id], [])
    intake.close()


async def _refuses_in_time(intake: SpoolIntake) -> None:
    draft = intake.draft()
    for _ in range(MEGABYTE // 300_000):
        draft.append(b"x" * 300_000)
        await intake.spill(draft)
    draft.append(b"x" * 300_000)
    with pytest.raises(NotAccepted, match=r"452 4\.3\.1"):
        await intake.spill(draft)


async def _refuses_at(fill: Callable[[], None], intake: SpoolIntake) -> None:
    fill()
    draft = intake.draft()
    draft.append(CONTENT)
    # The last look is from before.
    with pytest.raises(NotAccepted, match=r"452 4\.3\.1"):
        await intake.accept(draft, ENVELOPE)
    await intake.look_for_room()
    assert intake.refusal(0) == NO_ROOM


async def test_what_can_be_seen_says_that_no_mail_is_taken_for_lack_of_room(
    small: SmallDisk, host: Smarthost
) -> None:
    async with Relay(policy_of(small.path, host.port)) as relay:
        relay.watch.refusing_because = ""
        # The dispatcher makes it at its first look, and an inode is counted here.
        await relay.until(Path(f"{relay.policy.history_path('isp')}.lock").exists)
        assert await _refusing_at(relay, small, Level()) == ""
        why = await _refusing_at(relay, small, Level(free_bytes=0))
        assert why.startswith("no room on the disk: 0 bytes free")
        why = await _refusing_at(relay, small, Level(free_inodes=5))
        assert why.startswith("no room on the disk: 5 inodes free")
        assert await _refusing_at(relay, small, Level()) == ""


async def _refusing_at(relay: Relay, small: SmallDisk, level: Level) -> str:
    small.empty()
    level.fill(small)
    await relay.sender.look()
    return relay.watch.snapshot().refusing_because
