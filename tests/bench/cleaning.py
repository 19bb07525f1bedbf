"""How long a settlement waits while the log is cleaned: `make bench OPTIONS="--only cleaning"`.

Messages are accepted and claimed 20 at a time.  Of each 20, two are held for ever and 18 end, in one
settlement.  So a tenth of every segment stays, and is copied forward before the segment is removed.

After each settlement 4 KiB are appended to another file and synced: the longest of these is what the disk
alone takes at worst.  The longest processor time is what a settlement computes at worst.
"""

import os
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from relay.spool.interface import Message, Settlement, Status
from tests.bench.filling import accept, opened_spool, temporary_folder

AT_ONCE = 20
HELD_OF_THEM = 2
CLAIMS_AFTER = 64


class _Spent(NamedTuple):
    wall_s: float
    processor_s: float
    disk_s: float


def rows(messages: int, size_bytes: int, engines: Sequence[str]) -> list[dict[str, Any]]:
    return [_row(messages, size_bytes, engine) for engine in engines]


def _row(messages: int, size_bytes: int, engine: str) -> dict[str, Any]:
    content = b"Subject: minutes\r\n\r\n" + b"x" * size_bytes
    with temporary_folder() as folder, (folder / "beside").open("wb", buffering=0) as beside:
        with opened_spool(folder / "spool", engine) as (spool, intake):
            spent = []
            for _ in range(messages // AT_ONCE):
                accept(intake, content, [("a@here.example", "b@there.example")] * AT_ONCE)
                asked = [_settled(message, number) for number, message in enumerate(spool.claim(AT_ONCE))]
                assert len(asked) == AT_ONCE
                began_s, began_processor_s = time.monotonic(), time.process_time()
                assert not any(spool.settle(asked))
                settled_s, processor_s = time.monotonic(), time.process_time()
                beside.write(bytes(4096))
                os.fdatasync(beside.fileno())
                disk_s = time.monotonic() - settled_s
                spent.append(_Spent(settled_s - began_s, processor_s - began_processor_s, disk_s))
            # A claim, of which an idle sender makes one every 3 s, cleans 256 KiB.
            for _ in range(CLAIMS_AFTER):
                spool.claim(1)
        stored = sum(path.stat().st_size for path in (folder / "spool").rglob("*") if path.is_file())
    wall_s = sorted(each.wall_s for each in spent)
    return {
        "engine": engine,
        "settlements": len(spent),
        "median_ms": _ms(statistics.median(wall_s)),
        "999_of_1000_ms": _ms(wall_s[len(wall_s) * 999 // 1000]),
        "longest_ms": _ms(wall_s[-1]),
        "longest_processor_ms": _ms(max(each.processor_s for each in spent)),
        "longest_of_the_disk_ms": _ms(max(each.disk_s for each in spent)),
        "stored_to_held": round(stored / (len(spent) * HELD_OF_THEM * len(content)), 1),
    }


def _settled(message: Message, number: int) -> Settlement:
    if number < HELD_OF_THEM:
        return Settlement(message.queue_id, message.envelope, is_held=True)
    return Settlement(message.queue_id, message.envelope, {0: Status.RELAYED}, ends=True)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
