"""What a spool writes for each byte that it took: `python -m tests.bench.amplification [MESSAGES]`.

So many messages of 4 KiB come and go, first come first served, 200 of them in the queue at a time; then the
same with one in a hundred held for ever.  Printed for each engine: bytes written (`wchar` of /proc/self/io)
for each byte of content, for each byte that accepting alone wrote, and what the folder takes at the end for
each byte that is still queued.
"""

import json
import sys
import tempfile
from collections import deque
from pathlib import Path

from relay.clock import SystemClock
from relay.mail.envelope import Envelope, QueueId
from relay.spool.disk.durable import RealDisk
from relay.spool.engines import ENGINES, Engine
from relay.spool.interface import Intake, Spool, Status
from tests.bench.filling import accept

CONTENT = b"Subject: amplification\r\n\r\n" + 127 * b"Thirty characters in this line\r\n"
AT_ONCE = 20
QUEUED = 200
HELD_EACH = 100


def _written() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def _accept(intake: Intake, clock: SystemClock, first: int) -> None:
    to = ((f"b{number}@there.example",) for number in range(first, first + AT_ONCE))
    accept(intake, ((CONTENT, Envelope("a@here.example", each, clock.wall_ns(), "", "", "")) for each in to))


def _end(spool: Spool, queue_ids: list[QueueId]) -> None:
    spool.mark({queue_id: {0: Status.RELAYED} for queue_id in queue_ids})
    spool.finish(queue_ids)
    spool.commit()


def measure(engine: Engine, root: str, count: int, *, holds: bool) -> dict[str, float]:
    disk, clock = RealDisk(), SystemClock()
    spool = engine.spool(root, disk, clock, lambda name, why: sys.exit(f"{name}: {why}"))
    for _ in spool.recover():
        pass
    engine.prepare(root, disk)
    intake = engine.intake(root, disk, clock)
    queued: deque[QueueId] = deque()
    held = 0
    began, by_accepting = _written(), 0
    for first in range(0, count, AT_ONCE):
        before = _written()
        _accept(intake, clock, first)
        by_accepting += _written() - before
        taken = [entry.queue_id for entry in spool.take(AT_ONCE)]
        if holds and first % HELD_EACH == 0:
            spool.hold(taken.pop())
            held += 1
        queued.extend(taken)
        if len(queued) > QUEUED:
            _end(spool, [queued.popleft() for _ in range(AT_ONCE)])
    while queued:
        _end(spool, [queued.popleft() for _ in range(min(AT_ONCE, len(queued)))])
    written = _written() - began
    spool.close()
    space = sum(path.stat().st_blocks * 512 for path in Path(root).rglob("*") if path.is_file())
    return {
        "written_for_content": round(written / (count * len(CONTENT)), 3),
        "written_for_accepting": round(written / by_accepting, 3),
        "held": held,
        "space_mib": round(space / 2**20, 1),
        "held_mib": round(held * len(CONTENT) / 2**20, 1),
    }


def main(count: int = 50_000) -> None:
    for name, engine in ENGINES.items():
        for holds in (False, True):
            with tempfile.TemporaryDirectory(prefix="relay-amplification-") as folder:
                row = measure(engine, str(Path(folder, "spool")), count, holds=holds)
            sys.stdout.write(json.dumps({"engine": name, "one_in_a_hundred_held": holds, **row}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
