"""How long the event loop stands still with a long queue: `python -m tests.bench.long_queue [MESSAGES]`.

Prints, for an edit of the lanes and for verbs on everything, how long each took and the longest
time between two turns of the loop.  The spool is in a folder of its own, on the disk of TMPDIR.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from relay.clock import SystemClock
from relay.control.operations import Verb
from relay.mail.envelope import Envelope
from relay.spool.durable import RealDisk
from relay.spool.maildir.intake import MaildirIntake, prepare
from tests.unit.sender.in_process_relay import CONTENT, Relay, policy_of

AT_ONCE = 500
SENDERS = 50
LANES = 'lanes: {fast: {sender: "@fast.example", share: 60}, default: {share: 40}}'


def _fill(spool: Path, count: int) -> None:
    prepare(str(spool), RealDisk())
    clock = SystemClock()
    intake = MaildirIntake(str(spool), RealDisk(), clock)
    for start in range(0, count, AT_ONCE):
        drafts = []
        for number in range(start, min(count, start + AT_ONCE)):
            draft = intake.draft()
            draft.append(CONTENT)
            sender, to = f"{number % SENDERS}@here.example", (f"b{number}@there.example",)
            drafts.append((draft, Envelope(sender, to, clock.wall_ns(), "", "", "")))
        assert not any(intake.accept(drafts))


class _Watchdog:
    """Knows the longest time between two turns of the loop."""

    def __init__(self) -> None:
        self.longest_seconds = 0.0

    async def watch(self) -> None:
        before = time.monotonic()
        while True:
            await asyncio.sleep(0)
            now = time.monotonic()
            self.longest_seconds = max(self.longest_seconds, now - before)
            before = now


async def _measured(name: str, asked: Awaitable[Any]) -> None:
    dog = _Watchdog()
    watching = asyncio.create_task(dog.watch())
    await asyncio.sleep(0)
    began = time.monotonic()
    await asked
    took_seconds = time.monotonic() - began
    await asyncio.sleep(0)
    watching.cancel()
    sys.stdout.write(f"{name:24} {took_seconds:8.2f} s, longest stall {1000 * dog.longest_seconds:7.1f} ms\n")
    sys.stdout.flush()


async def _run(folder: Path, count: int) -> None:
    policy = policy_of(folder, 1)
    await asyncio.to_thread(_fill, Path(policy.spool), count)
    relay = Relay(policy)
    await _measured("start", relay.sender.read())
    ids = [queued.queue_id for queued in relay.sender.queue]
    await _measured("edit of the lanes", relay.sender.apply(policy_of(folder, 1, rest=LANES)))
    await _measured("snapshot", relay.operator.snapshot())
    verbs: tuple[Verb, ...] = ("hold", "release", "retry")
    for verb in verbs:
        await _measured(f"{verb} ALL", relay.operator.act(verb, ids))
    await relay.sender.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_run(Path(folder), int(sys.argv[1]) if len(sys.argv) > 1 else 200_000))
