"""A listener process: takes mail on an inherited socket into the spool, and knows nothing of the sender.

Orders come as one line of JSON on stdin, counts go out as lines on stdout once a second, the log goes
to stderr.  Each further line on stdin has other users and another certificate, or who has how much in the
queue.  The end of stdin is the order to stop, and also what the death of the parent looks like.
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
from typing import Any

from relay.clock import SystemClock
from relay.daemon.descriptors import listener_budget, raise_limit
from relay.daemon.listening import CLOSE_SECONDS, look_for_room, spool_intake
from relay.daemon.loops import run, start_threads, tell_unhandled
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
READ_BYTES = 65_536


async def take_mail(orders: dict[str, Any], begun: bytes) -> None:
    """Return when stdin ends or SIGTERM comes; `begun` was read of it behind the first orders."""
    policy = parse_policy(orders["policy"].encode(), Path(orders["path"]))
    listen = policy.listen[orders["listen"]]
    clock = SystemClock()
    events = Events(sys.stderr, orders["style"], clock, hostname=orders["hostname"])
    loop = asyncio.get_running_loop()
    tell_unhandled(events)
    start_threads()
    counts = ListenerCounts([str(listen.address)])
    intake = spool_intake(policy, Host(clock, RealDisk()), events)
    budget = listener_budget(listen, raise_limit())
    listener = Listener(
        budget.fitted(listen),
        orders["hostname"],
        intake,
        ListenerObserver(events, counts),
        ceiling=budget.ceiling,
        files=orders["files"] and ListenerFiles.from_order(orders["files"]),
    )
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    for ignored in (signal.SIGINT, signal.SIGHUP):
        # Meant for the parent: a terminal and some supervisors send them to all of us.
        loop.add_signal_handler(ignored, lambda: None)
    name = str(listen.address)
    further = FurtherOrders(name, listener, events, begun)
    loop.add_reader(sys.stdin.fileno(), further.hear, stop)
    await listener.start(socket.socket(fileno=orders["fd"]))
    report = Report(counts, events, str(listen.address), sys.stdout.fileno())
    chores = [
        asyncio.create_task(_report(report)),
        asyncio.create_task(look_for_room(intake)),
    ]
    await stop.wait()
    await listener.close(CLOSE_SECONDS)
    for chore in chores:
        chore.cancel()
    await asyncio.gather(*chores, return_exceptions=True)
    intake.close()
    events.flush()
    report.send()


def first_orders(fd: int) -> tuple[bytes, bytes]:
    """Return the first line of what a descriptor gives, and what was read behind it."""
    heard = b""
    while b"\n" not in heard and (more := os.read(fd, READ_BYTES)):
        heard += more
    line, _, begun = heard.partition(b"\n")
    return line, begun


class FurtherOrders:
    def __init__(self, name: str, listener: Listener, events: Events, begun: bytes) -> None:
        self._name = name
        self._listener = listener
        self._events = events
        self._heard = b""
        self._obey(begun)

    def hear(self, stop: asyncio.Event) -> None:
        """Read once, without waiting: there is something, or the end."""
        orders = sys.stdin.fileno()
        with contextlib.suppress(OSError):
            if more := os.read(orders, READ_BYTES):
                self._obey(more)
                return
        # Once: an end of file stays readable, and content in flight is to be finished in peace.
        asyncio.get_running_loop().remove_reader(orders)
        stop.set()

    def _obey(self, more: bytes) -> None:
        *lines, self._heard = (self._heard + more).split(b"\n")
        for line in lines:
            order = json.loads(line)
            if "held" in order:
                self._listener.quotas.told(
                    {Owner(user, client): count for user, client, count in order["held"]}
                )
                continue
            files = ListenerFiles.from_order(order)
            self._listener.use(files)
            self._events.listener_files_loaded(self._name, len(files.hashes), files.fingerprint)


class Report:
    """Sends counts to the parent.  Never waits: a parent that does not read gets them later."""

    def __init__(self, counts: ListenerCounts, events: Events, listener: str, fd: int) -> None:
        self._counts = counts
        self._events = events
        self._listener = listener
        self._parent = socket.socket(fileno=os.dup(fd))
        self._unsent = b""
        self._lost_lines = 0

    def send(self) -> None:
        """Send new counts, or go on with what the parent has not read yet."""
        if not self._unsent:
            lost_lines = self._events.lines_lost
            self._counts.lost_lines(self._listener, lost_lines - self._lost_lines)
            self._lost_lines = lost_lines
            self._unsent = json.dumps(self._counts.take_delta()).encode() + b"\n"
        # An error: the parent is gone, and stdin says so too; or it has read nothing for very long.
        with contextlib.suppress(OSError):
            self._unsent = self._unsent[self._parent.send(self._unsent, socket.MSG_DONTWAIT) :]


async def _report(report: Report) -> None:
    while True:
        await asyncio.sleep(REPORT_SECONDS)
        report.send()


if __name__ == "__main__":
    divert()
    first, begun = first_orders(sys.stdin.fileno())
    run(take_mail(json.loads(first), begun))
