"""A listener process: takes mail on an inherited socket into the spool, and knows nothing of the sender.

Orders come as lines of JSON on stdin, counts go out as lines on stdout once a second, the log goes to
stderr.  Each line on stdin behind the first has other users and another certificate, or who has how much in
the queue.  The end of stdin is the order to stop, and also what the death of the parent looks like.
A crash leaves drafts without a 250, which clean-up removes; their clients keep the messages.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path

from relay.clock import SystemClock
from relay.daemon.capacity import fitted, raise_limit
from relay.daemon.listening import CLOSE_SECONDS
from relay.daemon.loops import run, start_threads, tell_unhandled
from relay.daemon.spool_intake import spool_intake
from relay.listener.listener_files import ListenerFiles
from relay.listener.quotas import Owner
from relay.listener.server import Listener
from relay.policy.source import parse_policy
from relay.sender.host import Host
from relay.spool.disk.durable import RealDisk
from relay.telemetry.events import Events
from relay.telemetry.listener_counts import ListenerCounts, ListenerObserver
from relay.telemetry.stderr import divert

REPORT_SECONDS = 1.0
MOST_LINE_BYTES = 64 * 1024 * 1024
"""Of orders: a policy, or all users."""


async def take_mail() -> None:
    """Return when stdin ends or SIGTERM comes."""
    loop = asyncio.get_running_loop()
    stdin = asyncio.StreamReader(MOST_LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    orders = json.loads(await stdin.readline() or "null")
    if orders is None:  # the parent died meanwhile
        return
    policy = parse_policy(orders["policy"].encode(), Path(orders["path"]))
    (listen,) = fitted([policy.listen[orders["listen"]]], raise_limit())
    clock, name = SystemClock(), str(listen.address)
    events = Events(sys.stderr, orders["style"], clock, hostname=orders["hostname"])
    tell_unhandled(events)
    start_threads()
    counts = ListenerCounts([name])
    intake = spool_intake(policy, Host(clock, RealDisk()), events)
    listener = Listener(
        listen,
        orders["hostname"],
        intake,
        ListenerObserver(events, counts),
        files=orders["files"] and ListenerFiles.from_order(orders["files"]),
    )
    obeying = asyncio.create_task(_obey(stdin, name, listener, events))
    loop.add_signal_handler(signal.SIGTERM, obeying.cancel)
    for ignored in (signal.SIGINT, signal.SIGHUP):
        # Meant for the parent: a terminal and some supervisors send them to all of us.
        loop.add_signal_handler(ignored, lambda: None)
    await listener.start(socket.socket(fileno=orders["fd"]))
    report = _Report(counts, events, name)
    chores = [asyncio.create_task(report.run()), asyncio.create_task(intake.keep_looking_for_room())]
    await asyncio.wait([obeying])
    await listener.close(CLOSE_SECONDS)
    for chore in chores:
        chore.cancel()
    await asyncio.gather(*chores, return_exceptions=True)
    intake.close()
    events.flush()
    report.send()


async def _obey(stdin: asyncio.StreamReader, name: str, listener: Listener, events: Events) -> None:
    async for line in stdin:
        order = json.loads(line)
        if "held" in order:
            listener.quotas.told({Owner(user, client): count for user, client, count in order["held"]})
        else:
            files = ListenerFiles.from_order(order)
            listener.use(files)
            events.listener_files_loaded(name, len(files.hashes), files.fingerprint)


class _Report:
    """Sends counts to the parent.  Never waits: a parent that does not read gets them later."""

    def __init__(self, counts: ListenerCounts, events: Events, listener: str) -> None:
        self._counts, self._events, self._listener = counts, events, listener
        self._unsent = b""
        self._lost_lines = 0
        os.set_blocking(sys.stdout.fileno(), False)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            self.send()

    def send(self) -> None:
        """Send new counts, or go on with what the parent has not read yet."""
        if not self._unsent:
            lost_lines = self._events.lines_lost
            self._counts.lost_lines(self._listener, lost_lines - self._lost_lines)
            self._lost_lines = lost_lines
            self._unsent = json.dumps(self._counts.take_delta()).encode() + b"\n"
        # An error: the parent is gone, and stdin says so too; or it has read nothing for very long.
        with contextlib.suppress(OSError):
            self._unsent = self._unsent[os.write(sys.stdout.fileno(), self._unsent) :]


if __name__ == "__main__":
    divert()
    run(take_mail())
