"""What the relay adds to a message below the limit: `python -m tests.bench.latency [MESSAGES] [A_SECOND]`.

One client hands over so many messages, so many a second, over one connection.  Printed are the median and the
99th percentile of the time from the client's final dot until the upstream has the final dot, and until the
client has its 250; for each engine of the spool, on an ext4 of its own where one can be made.
"""

import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

from relay.spool.engines import ENGINES
from tests.bench import disk
from tests.proofs.peers.relay import RelayProcess

CONTENT = b"Subject: %d\r\n\r\n" + 128 * b"Thirty characters in this line\r\n" + b".\r\n"
NUMBER = b"Subject: "
OFFERED = b"250-sink.test\r\n250-PIPELINING\r\n250 8BITMIME\r\n"


class _Sink:
    """An upstream that takes everything, and knows when."""

    def __init__(self) -> None:
        self.at_s: dict[int, float] = {}
        self.has_more = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 sink.test\r\n")
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                command = (await reader.readuntil(b"\r\n"))[:4].upper()
                if command == b"DATA":
                    writer.write(b"354 go\r\n")
                    content = await reader.readuntil(b"\r\n.\r\n")
                    at_s = time.perf_counter()
                    number = content[content.index(NUMBER) + len(NUMBER) :].partition(b"\r\n")[0]
                    self.at_s[int(number)] = at_s
                    self.has_more.set()
                writer.write(OFFERED if command == b"EHLO" else b"250 ok\r\n")
        writer.close()


@asynccontextmanager
async def _sink() -> AsyncIterator[tuple[_Sink, int]]:
    sink = _Sink()
    async with await asyncio.start_server(sink.serve, "127.0.0.1", 0, limit=1 << 20) as server:
        yield sink, server.sockets[0].getsockname()[1]


async def _hand_over(port: int, count: int, each_s: float) -> tuple[list[float], list[float]]:
    """Return when the final dot of each message was sent, and when its 250 came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def said(words: bytes) -> None:
        writer.write(words)
        while (line := await reader.readuntil(b"\r\n"))[3:4] == b"-":
            pass
        assert line[:1] in b"23", line

    await said(b"")
    await said(b"EHLO front.test\r\n")
    sent_s, taken_s = [], []
    began_s = time.perf_counter()
    for number in range(count):
        await asyncio.sleep(max(0.0, began_s + number * each_s - time.perf_counter()))
        for command in (b"MAIL FROM:<a@here.test>\r\n", b"RCPT TO:<b@there.test>\r\n", b"DATA\r\n"):
            await said(command)
        sent_s.append(time.perf_counter())
        await said(CONTENT % number)
        taken_s.append(time.perf_counter())
    writer.close()
    return sent_s, taken_s


async def _measure(folder: Path, engine: str, count: int, each_s: float) -> dict[str, float | str]:
    async with _sink() as (sink, port):
        upstream = {
            "host": "127.0.0.1",
            "port": port,
            "tls": "none",
            "limits": [{"messages": 1000000, "per": "1h"}],
        }
        relay = RelayProcess(folder, {"sink": upstream}, spool={"path": "./spool", "engine": engine})
        await asyncio.to_thread(relay.start)
        try:
            await _hand_over(relay.port, 10, each_s)
            sink.at_s.clear()
            sent_s, taken_s = await _hand_over(relay.port, count, each_s)
            while len(sink.at_s) < count:
                sink.has_more.clear()
                await sink.has_more.wait()
        finally:
            await asyncio.to_thread(relay.stop)
    through = [1000 * (sink.at_s[number] - at_s) for number, at_s in enumerate(sent_s)]
    taken = [1000 * (to_s - at_s) for at_s, to_s in zip(sent_s, taken_s, strict=True)]
    return {
        "engine": engine,
        "accepted_p50_ms": round(statistics.median(taken), 2),
        "accepted_p99_ms": round(statistics.quantiles(taken, n=100)[98], 2),
        "relayed_p50_ms": round(statistics.median(through), 2),
        "relayed_p99_ms": round(statistics.quantiles(through, n=100)[98], 2),
    }


def main(count: int = 1000, a_second: int = 50) -> None:
    reason = disk.why_missing()
    with nullcontext() if reason else disk.stored_on_ext4():
        for engine in ENGINES:
            with tempfile.TemporaryDirectory(prefix="relay-latency-") as folder:
                row = asyncio.run(_measure(Path(folder), engine, count, 1 / a_second))
            sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
