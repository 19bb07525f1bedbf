"""Whole lives of a log: mail that stays over many crashes, while segments end, are copied and go.

In test_crash and test_small_scenarios every message ends soon after a crash.  Here most of it stays, in short
segments, while listeners come and go: the copies, ends and snapshots that cleaning makes are the only
witnesses of earlier lives.  After each life the sender is killed, the power is cut, a sync fails, or it
closes; the oracle then judges the start, and at the end everything is relayed and the account has to add up.
"""

import contextlib
import errno
import itertools
import random
import sys
import time

import pytest

from relay.spool.interface import SpoolFault, SpoolFull
from relay.spool.log import segments, summary
from tests.engines.spool import oracle
from tests.engines.spool.campaign import SYNCS
from tests.engines.spool.everyday import Everyday
from tests.engines.spool.log_engine import LOG
from tests.engines.spool.plays import prepared
from tests.engines.spool.world import Listener, Sender, Violation, World
from tests.fakes.disk import Fault, ModelDisk
from tests.fakes.platter import Model
from tests.fakes.power import survivors

LIVES = 8
OPERATIONS = 14
LENGTHS = (1, 600, 2_000, 6_000)
"""Of segments."""


class Struck(BaseException):
    """The process is gone in the middle of a call."""


class Lives:
    """One spool, and what chance makes of it; what those outside know is in the trace."""

    def __init__(self, seed: str) -> None:
        self._rng = random.Random(seed)
        self.model = self._rng.choice(list(Model))
        self.length = self._rng.choice(LENGTHS)
        self._world = World(prepared(self.model, engine=LOG), engine=LOG)
        self._everyday = Everyday(self._rng)
        self._seeds = itertools.count(1)
        self.starts = 0
        self.story: list[str] = []

    def run(self) -> None:
        for _ in range(LIVES):
            image = self._life(self._start())
            self._world = World(image, self._world.trace, LOG)
            self._world.trace.crash()
        sender = self._start()
        sender.warn_after_a_start()
        sender.drain()
        oracle.check_end(self._world.sender_disk, sender, LOG)
        oracle.check_told(self._world.trace)

    def _start(self) -> Sender:
        """Start on what is there, as relays do, and judge what is found."""
        sender = self._world.sender()
        oracle.check_start(self._world.sender_disk, sender, sender.recover(), LOG)
        sender.end_what_is_done()
        sender.report_what_is_owed(sorted(sender.queue))
        sender.commit()
        self.starts += 1
        return sender

    def _life(self, sender: Sender) -> ModelDisk:
        """Live until the disk or chance ends it; return what the next start finds."""
        disk, rng = self._world.sender_disk, self._rng
        way = rng.choice(("closed", "killed", "killed", "a failed sync", "no room"))
        nth = rng.randint(1, 60)
        self.story.append(f"{way} at {nth}")
        if way == "killed":
            self._strike(nth)
        elif way == "a failed sync":
            disk.fail(Fault(nth % 12 + 1, errno.EIO, kinds=SYNCS, drops_pages=rng.random() < 0.5))
        elif way == "no room":
            sender.on_full = disk.heal
            disk.fail(Fault(nth, errno.ENOSPC, forever=rng.random() < 0.5, is_short=rng.random() < 0.5))
        # A relay whose disk fails dies; a restart reads the disk.
        with contextlib.suppress(Struck, SpoolFault, SpoolFull, OSError):
            listeners = [self._listener() for _ in range(2)]
            for _ in range(rng.randint(1, OPERATIONS)):
                self._everyday.operate(sender, rng.choice(listeners))
            if way == "closed":
                sender.spool.close()
        self._world.listener_disk.before = disk.before = None
        if rng.random() < 0.4:
            return disk.after_kill()
        kept = list(itertools.islice(survivors(self.model, disk.platter.pending, rng, 12), 12))
        return ModelDisk(disk.platter.after_cut(rng.choice(kept)))

    def _strike(self, nth: int) -> None:
        calls = itertools.count(1)

        def before(_step: str) -> None:
            if next(calls) == nth:
                raise Struck

        self._world.sender_disk.before = self._world.listener_disk.before = before

    def _listener(self) -> Listener:
        listener = self._world.another_listener(1000 * self.starts + next(self._seeds))
        listener.disk.before = self._world.sender_disk.before
        return listener


def live(seed: str, monkeypatch: pytest.MonkeyPatch) -> Lives:
    """Live all lives of a seed.  Raises Violation, which tells the story."""
    lives = Lives(seed)
    monkeypatch.setattr(segments, "SEGMENT_BYTES", lives.length)
    monkeypatch.setattr(summary, "LET_BE", 0)
    try:
        lives.run()
    except Exception as error:
        told = f"seed {seed}, {lives.model.name}, segments of {lives.length}: {lives.story}"
        raise Violation(f"{told}: {error!r}") from error
    return lives


@pytest.mark.parametrize("tenth", [0, *(pytest.param(n, marks=pytest.mark.full) for n in range(1, 4))])
def test_mail_that_stays_over_many_crashes_is_never_lost(tenth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10 * tenth, 10 * tenth + 10):
        assert live(f"0/{number}", monkeypatch).starts == LIVES + 1


@pytest.mark.crash
def test_lives_drawn_from_a_seed_lose_nothing(
    crash_seed: int,
    crash_budget_s: float,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    until, starts = time.monotonic() + crash_budget_s / 10, 0
    for number in itertools.count(1):
        starts += live(f"{crash_seed}/{number}", monkeypatch).starts
        if time.monotonic() > until:
            break
    with capsys.disabled():
        sys.stdout.write(
            f"\nlog: {number} spools of {LIVES} lives, {starts} starts, seed {crash_seed}: nothing lost\n"
        )
