"""How soon a relay with a long queue takes mail and relays again: `make bench OPTIONS="--only restart"`.

It measures the time from the start of the process to the first `250`, to the first message relayed, and to
the whole queue known; and memory a message, beyond that of an empty queue.  The times of an empty queue are
those of Python and its imports.  The limit lets a few messages through, then the queue stands still.  The
spool's files are in the page cache, as after a restart of the process alone.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.bench.filling import accept, opened_spool, temporary_folder
from tests.system.processes import most_resident_bytes
from tests.system.relay import ColdRelay, upstream_at
from tests.system.smtp_tools import smtp_sink
from tests.system.waiting import wait_until

CONTENT = (
    b"Received: by us\r\nMessage-ID: <1@here.example>\r\nSubject: minutes\r\n\r\n" + b"x" * 1024 + b"\r\n"
)
SENDERS = 50
IN_A_GROUP = 500
LET_THROUGH = 5
PATIENCE_S = 3600.0


def rows(count: int, engines: Sequence[str]) -> list[dict[str, Any]]:
    """Return two rows for each engine: with an empty queue, and with so many messages."""
    found: list[dict[str, Any]] = []
    for engine in engines:
        empty_bytes = 0
        for queued in (0, count):
            with temporary_folder() as folder:
                fill(folder / "spool", queued, engine)
                times_s, resident_bytes = measure(folder, engine)
            empty_bytes = empty_bytes or resident_bytes
            row = {"engine": engine, "queued": queued} | times_s
            row["bytes_a_message"] = round((resident_bytes - empty_bytes) / max(1, queued))
            sys.stderr.write(f"{row}\n")
            found.append(row)
    return found


def fill(spool: Path, count: int, engine: str) -> None:
    with opened_spool(spool, engine) as (owner, intake):
        for start in range(0, count, IN_A_GROUP):
            numbers = range(start, min(count, start + IN_A_GROUP))
            paths = [(f"{n % SENDERS}@here.example", f"b{n}@there.example") for n in numbers]
            accept(intake, CONTENT, paths)
            while owner.claim(IN_A_GROUP):
                pass


def measure(folder: Path, engine: str) -> tuple[dict[str, float], int]:
    """Return the seconds until each of three events, and the peak of resident memory in bytes."""
    with smtp_sink() as sink:
        isp = upstream_at(sink.port, limits=[{"messages": LET_THROUGH, "per": "1h"}])
        relay = ColdRelay(folder, {"isp": isp}, spool={"path": "./spool", "engine": engine})
        began_s = time.monotonic()

        def after(condition: Callable[[], object]) -> float:
            wait_until(condition, within_s=PATIENCE_S)
            return round(time.monotonic() - began_s, 2)

        def is_taken() -> bool:
            with contextlib.suppress(OSError):
                relay.send("b@there.example", content=CONTENT)
                return True
            return False

        conditions: dict[str, Callable[[], object]] = {
            "first_250_s": is_taken,
            "first_relayed_s": lambda: sink.count,
            "all_known_s": lambda: any("event=recovered" in line for line in relay.log()),
        }
        relay.spawn()
        with ThreadPoolExecutor(len(conditions)) as pool:
            times_s = dict(zip(conditions, pool.map(after, conditions.values()), strict=True))
        resident_bytes = most_resident_bytes(relay.pid)
        relay.stop()
    return times_s, resident_bytes
