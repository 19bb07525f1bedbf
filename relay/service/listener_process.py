"""A listener process: takes mail on an inherited socket into the spool, and knows nothing of the sender.

Run by `listening`, never by hand: orders come as one line of JSON on stdin, counts go
out as lines on stdout once a second, the log goes to stderr.  The end of stdin is the
order to stop, and also what the death of the parent looks like.
Crash anywhere: drafts without a 250, which clean-up removes, and clients that keep
their messages.
"""

import asyncio
import json
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from relay.clock import SystemClock
from relay.listener.server import Listener
from relay.policy.source import parse_policy
from relay.service.events import Events
from relay.service.listener_counts import ListenerCounts
from relay.service.listening import CLOSE_SECONDS, look_for_room, spool_intake
from relay.service.loops import run
from relay.service.observer import ListenerObserver
from relay.spool.durable import RealDisk

REPORT_SECONDS = 1.0


async def take_mail(orders: dict[str, Any]) -> None:
    """Take mail until stdin ends or SIGTERM comes."""
    policy = parse_policy(orders["policy"].encode(), Path(orders["path"]))
    listen = policy.listen[orders["listen"]]
    clock = SystemClock()
    events = Events(sys.stderr, orders["style"], clock, hostname=orders["hostname"])
    loop = asyncio.get_running_loop()
    events.collect(loop.call_soon)
    counts = ListenerCounts([str(listen.address)])
    intake = spool_intake(str(policy.spool), RealDisk(), clock, events)
    listener = Listener(listen, orders["hostname"], intake, ListenerObserver(events, counts))
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    for ignored in (signal.SIGINT, signal.SIGHUP):
        # Meant for the parent: a terminal and some supervisors send them to all of us.
        loop.add_signal_handler(ignored, lambda: None)
    loop.add_reader(sys.stdin.fileno(), _end_of_orders, loop, stop)
    await listener.start(socket.socket(fileno=orders["fd"]))
    chores = [
        asyncio.create_task(_report(counts)),
        asyncio.create_task(look_for_room(intake)),
    ]
    await stop.wait()
    await listener.close(CLOSE_SECONDS)
    for chore in chores:
        chore.cancel()
    await asyncio.gather(*chores, return_exceptions=True)
    intake.close()
    _write(counts)
    events.flush()


def _end_of_orders(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    # Once: an end of file stays readable, and content in flight is to be finished in peace.
    loop.remove_reader(sys.stdin.fileno())
    stop.set()


async def _report(counts: ListenerCounts) -> None:
    while True:
        await asyncio.sleep(REPORT_SECONDS)
        _write(counts)


def _write(counts: ListenerCounts) -> None:
    try:
        sys.stdout.write(json.dumps(counts.take_delta()) + "\n")
        sys.stdout.flush()
    except OSError:
        pass  # the parent is gone, and stdin says so too; or has read nothing for very long


if __name__ == "__main__":
    run(take_mail(json.loads(sys.stdin.buffer.readline())))
