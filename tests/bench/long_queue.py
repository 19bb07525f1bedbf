"""How long the event loop stands still with a long queue: `python -m tests.bench.long_queue [MESSAGES]`.

Prints for an edit of the lanes and for verbs on everything what `tests.bench.stalls` tells.  The spool is
in a folder of its own, on the disk of TMPDIR.
"""

import asyncio
import sys
import tempfile
from functools import partial
from pathlib import Path

from relay.clock import SystemClock
from relay.control.operations import Verb
from relay.mail.envelope import Envelope
from relay.spool.disk.durable import RealDisk
from relay.spool.maildir.intake import MaildirIntake
from relay.spool.maildir.layout import prepare
from tests.bench.filling import accept, slices
from tests.bench.stalls import measured
from tests.unit.sender.in_process_relay import CONTENT, Relay, policy_of

AT_ONCE = 500
SENDERS = 50
LANES = 'lanes: {fast: {sender: "@fast.example", share: 60}, default: {share: 40}}'


def _fill(spool: Path, count: int) -> None:
    prepare(str(spool), RealDisk())
    clock = SystemClock()
    intake = MaildirIntake(str(spool), RealDisk(), clock)
    for numbers in slices(count, AT_ONCE):
        accept(intake, ((CONTENT, _envelope(number, clock.wall_ns())) for number in numbers))


def _envelope(number: int, wall_ns: int) -> Envelope:
    return Envelope(f"{number % SENDERS}@here.example", (f"b{number}@there.example",), wall_ns, "", "", "")


async def _run(folder: Path, count: int) -> None:
    policy = policy_of(folder, 1)
    await asyncio.to_thread(_fill, Path(policy.spool), count)
    relay = Relay(policy)
    await measured("start", relay.sender.read)
    ids = [queued.queue_id for queued in relay.sender.queue]
    edited = policy_of(folder, 1, rest=LANES)
    await measured("edit of the lanes", lambda: relay.sender.apply(edited))
    await measured("snapshot", relay.operator.snapshot)
    verbs: tuple[Verb, ...] = ("hold", "release", "retry")
    for verb in verbs:
        await measured(f"{verb} ALL", partial(relay.operator.act, verb, ids))
    await relay.sender.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_run(Path(folder), int(sys.argv[1]) if len(sys.argv) > 1 else 200_000))
