"""How soon a relay with a long queue takes mail and relays again.

`python -m tests.bench.restart [MESSAGES [ENGINE]]`, by default of a maildir.

Prints, from the start of the process: to the first `250`, to the first message relayed, to the whole
queue known; and memory a message.  The same of an empty queue, which is what Python and its imports take.
The upstream lets a few messages through, then the queue stands still.  The spool is in a folder of its own,
on the disk of TMPDIR, and its files are in the page cache, as after a restart of the process alone.
"""

import asyncio
import contextlib
import os
import smtplib
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from relay.clock import SystemClock
from relay.mail.envelope import Envelope, QueueId
from relay.policy.model import SpoolEngine
from relay.spool.disk.durable import RealDisk
from relay.spool.engines import ENGINES, Engine
from relay.spool.identity import Identities
from relay.spool.maildir.layout import Layout, prepare
from relay.spool.maildir.ledger_file import LedgerFile
from relay.spool.message import message_file
from tests.bench.filling import accept, slices
from tests.fakes.smarthost import Smarthost
from tests.system.waiting import free_port

CONTENT = (
    b"Received: by us\r\nMessage-ID: <1@here.example>\r\nSubject: minutes\r\n\r\n" + b"x" * 1024 + b"\r\n"
)
SENDERS = 50
AT_ONCE = 10_000
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


def fill(spool: Path, count: int) -> None:
    """Queue messages as files of the maildir, without a sync: as many as a disk takes in minutes."""
    layout, disk, clock = Layout(str(spool)), RealDisk(), SystemClock()
    prepare(layout.root, disk)
    ledger = LedgerFile(layout, disk)
    ledger.rewrite()
    identities = Identities(clock, os.urandom)
    for numbers in slices(count, AT_ONCE):
        ledger.enter([(_queue(layout, identities.next_id(), number), 1) for number in numbers])
    ledger.close()


def fill_by_intake(spool: Path, count: int, engine: Engine) -> None:
    """Queue messages as a listener and a sender do that end cleanly."""
    root, disk, clock = str(spool), RealDisk(), SystemClock()
    sender = engine.spool(root, disk, clock, lambda name, why: sys.exit(f"{name}: {why}"))
    for _ in sender.recover():
        pass
    engine.prepare(root, disk)
    intake = engine.intake(root, disk, clock)
    for numbers in slices(count, IN_A_GROUP):
        accept(intake, ((CONTENT, _envelope(number)) for number in numbers))
        sender.take(IN_A_GROUP)
        sender.commit()
    sender.close()


def _envelope(number: int) -> Envelope:
    to = (f"b{number}@there.example",)
    return Envelope(f"{number % SENDERS}@here.example", to, time.time_ns(), "", "", "")


def _queue(layout: Layout, queue_id: QueueId, number: int) -> QueueId:
    envelope = _envelope(number)
    tail = message_file.encode_envelope(queue_id, envelope)
    shape = message_file.shape_of(envelope, len(CONTENT), eight_bit=False)
    crc = message_file.checksum(CONTENT)
    header = message_file.encode_header(len(CONTENT), tail, 1, shape, crc)
    fd = os.open(layout.queued(queue_id), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(fd, header + CONTENT + tail)
    finally:
        os.close(fd)
    return queue_id


async def measure(folder: Path, count: int, engine: str) -> Restart:
    spool = folder / "spool"
    if engine == SpoolEngine.MAILDIR:
        await asyncio.to_thread(fill, spool, count)
    else:
        await asyncio.to_thread(fill_by_intake, spool, count, ENGINES[engine])
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


def _print(count: int, of: Restart, empty_bytes: int | None) -> None:
    memory = "" if empty_bytes is None else f", {(of.rss_bytes - empty_bytes) / count:.0f} octets a message"
    peak = "" if empty_bytes is None else f" (at most {(of.peak_bytes - empty_bytes) / count:.0f})"
    sys.stdout.write(
        f"{count:9} queued: first 250 {of.first_250_seconds:7.2f} s, first relayed "
        f"{of.first_relayed_seconds:7.2f} s, all known {of.all_known_seconds:7.2f} s{memory}{peak}\n"
    )
    sys.stdout.flush()


def main(count: int, engine: str = "maildir") -> None:
    empty_bytes: int | None = None
    for each in (0, count):
        with tempfile.TemporaryDirectory(prefix="relay-restart-") as folder:
            found = asyncio.run(measure(Path(folder), each, engine))
        _print(each, found, empty_bytes)
        empty_bytes = found.rss_bytes


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000, *sys.argv[2:])
