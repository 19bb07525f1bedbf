"""What a message costs the processors: `make bench OPTIONS="--only cost"`.

User and system time of the relay's own processes, from the client's MAIL to the last removal, a message.
It says how much work there is, where a rate says what else the machine does too.  Beside it stands the
floor: what the same loop takes to speak the protocol and nothing else.

Assumes: Linux (`/proc`).  Batches are larger where the machine is busy, and then a message costs less:
compare what ran in one call.
"""

import asyncio
import os
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from tests.bench.contenders import CONNECTIONS, sink_policy
from tests.bench.measure import Load, send_through
from tests.system.relay import RelayProcess
from tests.system.smtp_tools import SmtpSink, smtp_sink, smtp_source
from tests.system.waiting import free_port

WARM_UP = 400
CONTENT = b"Subject: floor\r\n\r\n" + b"".join(b"X" * 78 + b"\r\n" for _ in range(51))
"""4 KiB, as smtp-source sends them."""
_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
_SETTLED_S = 0.5
"""Behind the last message: its removal, and the timers of before."""


class Spent(NamedTuple):
    user_ms: float
    system_ms: float


def rows(load: Load, rounds: int, processes: int, engines: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each process of the relay and each floor: medians of the rounds."""
    found: dict[str, list[Spent]] = {}
    for _ in range(rounds):
        relays = [spent for engine in engines for spent in _of_relay(load, processes, engine)]
        for name, spent in (*relays, *_floors(load)):
            found.setdefault(name, []).append(spent)
    return [
        {
            "what": name,
            "ms_a_message": round(statistics.median(map(sum, spent)), 3),
            "user_ms": round(statistics.median(each.user_ms for each in spent), 3),
            "system_ms": round(statistics.median(each.system_ms for each in spent), 3),
        }
        for name, spent in found.items()
    ]


def _of_relay(load: Load, processes: int, engine: str) -> Iterator[tuple[str, Spent]]:
    with smtp_sink() as sink, tempfile.TemporaryDirectory(prefix="relay-cost-") as folder:
        relay = RelayProcess(
            Path(folder), {"sink": sink_policy(sink)}, spool={"path": "./spool", "engine": engine}
        )
        relay.policy["listen"][0]["processes"] = processes
        relay.write_policy()
        with relay:
            send_through(relay.port, sink, replace(load, messages=WARM_UP))
            time.sleep(_SETTLED_S)
            pids = [relay.pid, *_children(relay.pid)]
            before = [_spent(pid) for pid in pids]
            send_through(relay.port, sink, load)
            time.sleep(_SETTLED_S)
            for number, (pid, earlier) in enumerate(zip(pids, before, strict=True)):
                name = "sender" if processes and not number else "listener" if processes else "all in one"
                yield (
                    f"{engine}: {name}",
                    Spent(
                        *(
                            (now - then) / load.messages
                            for now, then in zip(_spent(pid), earlier, strict=True)
                        )
                    ),
                )


def _floors(load: Load) -> Iterator[tuple[str, Spent]]:
    with smtp_sink() as sink, _counted_away(sink):
        before = _of_thread()
        uvloop.run(_send_many(sink.port, load.messages))
        yield "floor of sending", _since(before, load.messages)
    before = _of_thread()
    uvloop.run(_receive_bare(load))
    yield "floor of receiving", _since(before, load.messages)


class _BareClient(asyncio.Protocol):
    """MAIL, RCPT and DATA at once, then the content: two writes a message, and no look at a reply's words."""

    def __init__(self, messages: int, over: asyncio.Future[None]) -> None:
        self._left, self._over = messages, over
        self._unread = b""

    _transport: Any

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._steps = self._talk()
        next(self._steps)

    def data_received(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\r\n")
        for line in lines:
            if line[3:4] != b"-":
                next(self._steps, None)

    def _talk(self) -> Iterator[None]:
        yield  # the greeting
        self._transport.write(b"EHLO floor.test\r\n")
        yield
        for _ in range(self._left):
            self._transport.write(b"MAIL FROM:<mjd@front.test>\r\nRCPT TO:<r@list.test>\r\nDATA\r\n")
            yield
            yield
            yield
            self._transport.write(CONTENT + b".\r\n")
            yield
        self._transport.close()
        self._over.set_result(None)
        yield


class _BareServer(asyncio.Protocol):
    """Looks for the ends of lines and of content, and agrees."""

    _transport: Any

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._unread, self._is_content = b"", False
        self._transport.write(b"220 floor.test ESMTP\r\n")

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while True:
            end = b"\r\n.\r\n" if self._is_content else b"\r\n"
            line, found, rest = self._unread.partition(end)
            if not found:
                return
            self._unread, was_content = rest, self._is_content
            self._is_content = not was_content and line == b"DATA"
            self._transport.write(b"354 go on\r\n" if self._is_content else b"250 ok\r\n")
            if not was_content and line == b"QUIT":
                self._transport.close()


async def _send_many(port: int, messages: int) -> None:
    await asyncio.gather(*(_send_bare(port, messages // CONNECTIONS) for _ in range(CONNECTIONS)))


async def _send_bare(port: int, messages: int) -> None:
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    await loop.create_connection(lambda: _BareClient(messages, over), "127.0.0.1", port)
    await over


async def _receive_bare(load: Load) -> None:
    port = free_port()
    async with await asyncio.get_running_loop().create_server(_BareServer, "127.0.0.1", port):
        await asyncio.to_thread(
            smtp_source, port, messages=load.messages, sessions=load.sessions, keep_connection=True
        )


@contextmanager
def _counted_away(sink: SmtpSink) -> Iterator[None]:
    """Read what smtp-sink counts: a full pipe would stop it."""
    is_over = threading.Event()

    def read() -> None:
        while not is_over.wait(0.05):
            assert sink.count >= 0

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        is_over.set()
        reader.join()


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def _spent(pid: int) -> Spent:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Spent(int(fields[11]) * _TICK_MS, int(fields[12]) * _TICK_MS)


def _of_thread() -> Spent:
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return Spent(usage.ru_utime * 1000, usage.ru_stime * 1000)


def _since(before: Spent, messages: int) -> Spent:
    return Spent(*((now - then) / messages for now, then in zip(_of_thread(), before, strict=True)))
