"""How soon a relay with a long queue takes mail and relays again: `make bench OPTIONS="--only restart"`.

Measured from the start of the process: to the first `250`, to the first message relayed, to the whole
queue known; and memory a message, beyond that of an empty queue.  The empty queue's own times are what
Python and its imports take.  The upstream lets a few messages through, then the queue stands still.
The spool's files are in the page cache, as after a restart of the process alone.
"""

import asyncio
import contextlib
import smtplib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from relay.mail.envelope import Envelope
from tests.bench.filling import accept, opened_spool, temporary_folder
from tests.fakes.smarthost import Smarthost
from tests.system.waiting import free_port

CONTENT = (
    b"Received: by us\r\nMessage-ID: <1@here.example>\r\nSubject: minutes\r\n\r\n" + b"x" * 1024 + b"\r\n"
)
SENDERS = 50
IN_A_GROUP = 500
LET_THROUGH = 5
PATIENCE_SECONDS = 3600.0
POLL_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Restart:
    first_250_seconds: float
    first_relayed_seconds: float
    all_known_seconds: float
    rss_bytes: int
    peak_bytes: int


def rows(count: int, engines: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each engine, empty and with so many messages."""
    found: list[dict[str, Any]] = []
    for engine in engines:
        empty_bytes = 0
        for queued in (0, count):
            with temporary_folder() as folder:
                of = asyncio.run(measure(folder, queued, engine))
            empty_bytes = empty_bytes or of.rss_bytes
            row = {
                "engine": engine,
                "queued": queued,
                "first_250_s": round(of.first_250_seconds, 2),
                "first_relayed_s": round(of.first_relayed_seconds, 2),
                "all_known_s": round(of.all_known_seconds, 2),
                "bytes_a_message": round((of.rss_bytes - empty_bytes) / max(1, queued)),
                "at_most": round((of.peak_bytes - empty_bytes) / queued) if queued else 0,
            }
            sys.stderr.write(f"{row}\n")
            found.append(row)
    return found


def fill(spool: Path, count: int, engine: str) -> None:
    with opened_spool(spool, engine) as (owner, intake):
        for start in range(0, count, IN_A_GROUP):
            accept(intake, CONTENT, [_envelope(n) for n in range(start, min(count, start + IN_A_GROUP))])
            while owner.claim(IN_A_GROUP):
                pass


def _envelope(number: int) -> Envelope:
    to = (f"b{number}@there.example",)
    return Envelope(f"{number % SENDERS}@here.example", to, time.time_ns(), "", "", "")


async def measure(folder: Path, count: int, engine: str) -> Restart:
    await asyncio.to_thread(fill, folder / "spool", count, engine)
    port = free_port()
    async with Smarthost() as host:
        (folder / "policy.yaml").write_text(yaml.safe_dump(_policy(port, host.port, engine)))
        command = (sys.executable, "-m", "relay", "run", "--log", "json", "--policy", f"{folder}/policy.yaml")
        began = time.monotonic()
        log = folder / "log"
        with log.open("wb") as stderr:
            relay = await asyncio.create_subprocess_exec(*command, stderr=stderr)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                first, relayed, known = await asyncio.gather(
                    _first_250(port),
                    _when(lambda: bool(host.transactions)),
                    _when(lambda: b'"recovered"' in log.read_bytes()),
                )
            rss_bytes, peak_bytes = _memory(relay.pid, "VmRSS"), _memory(relay.pid, "VmHWM")
        finally:
            relay.terminate()
            await relay.wait()
    return Restart(first - began, relayed - began, known - began, rss_bytes, peak_bytes)


def _policy(port: int, upstream_port: int, engine: str) -> dict[str, object]:
    isp = {
        "host": "127.0.0.1",
        "port": upstream_port,
        "tls": "none",
        "limits": [{"messages": LET_THROUGH, "per": "1h"}],
    }
    listen = [{"address": f"127.0.0.1:{port}", "clients": ["127.0.0.0/8"], "processes": 0}]
    spool = {"path": "./spool", "engine": engine}
    return {"spool": spool, "hostname": "relay.test", "listen": listen, "upstreams": {"isp": isp}}


async def _first_250(port: int) -> float:
    def offer() -> None:
        with smtplib.SMTP("127.0.0.1", port, timeout=PATIENCE_SECONDS) as client:
            client.sendmail("new@here.example", ["b@there.example"], CONTENT)

    while True:
        with contextlib.suppress(ConnectionError):
            await asyncio.to_thread(offer)
            return time.monotonic()
        await asyncio.sleep(POLL_SECONDS)


async def _when(is_so: Callable[[], bool]) -> float:
    while not is_so():  # noqa: ASYNC110 - no event tells of another process
        await asyncio.sleep(POLL_SECONDS)
    return time.monotonic()


def _memory(pid: int, field: str) -> int:
    (line,) = [x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith(field)]
    return int(line.split()[1]) * 1024
