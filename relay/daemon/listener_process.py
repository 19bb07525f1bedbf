"""A listener process: takes mail on an inherited socket into the spool, and knows nothing of the sender.

The argument is the socket's descriptor.  Orders are lines of JSON on stdin.  The first has the values that
the relay was started with; later ones have users and a certificate, or the owners that reached their quota.
The end of stdin, also by the death of the parent, is the order to stop.  Counts are lines of JSON on stdout;
the log is stderr.  A crash leaves drafts without a 250, which `tidy` removes; the clients keep the messages.
"""

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path

from relay.clock import SystemClock
from relay.daemon.capacity import fitted, raise_limit
from relay.daemon.listener_observer import ListenerObserver, Tally
from relay.daemon.listening import CLOSE_SECONDS
from relay.daemon.loops import run, start_threads, tell_unhandled
from relay.daemon.spool_intake import spool_intake
from relay.listener.listener_files import ListenerFiles
from relay.listener.quotas import Owner
from relay.listener.server import Listener
from relay.policy.source import parse_policy
from relay.sender.host import Host
from relay.spool.disk.durable import RealDisk
from relay.telemetry.events import Events, Level
from relay.telemetry.stderr import divert

REPORT_SECONDS = 1.0
MOST_LINE_BYTES = 64 * 1024 * 1024
"""Of one order, which has a policy or all users."""


async def take_mail(bound: socket.socket) -> None:
    """Return when stdin ends or SIGTERM comes."""
    loop = asyncio.get_running_loop()
    stdin = asyncio.StreamReader(MOST_LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    if not (line := await stdin.readline()):
        return  # the parent died meanwhile
    orders = json.loads(line)
    policy = parse_policy(orders["policy"].encode(), Path(orders["path"]))
    (listen,) = fitted([policy.listen[orders["listen"]]], raise_limit())
    clock, name = SystemClock(), str(listen.address)
    level, hostname = Level(orders["level"]), orders["hostname"]
    events = Events(sys.stderr, orders["style"], clock, level=level, hostname=hostname)
    tell_unhandled(events)
    start_threads()
    tally = Tally(events)
    observer = ListenerObserver(events, tally, clock)
    intake = spool_intake(policy, Host(clock, RealDisk()), events)
    files = ListenerFiles.from_order(orders["files"])
    listener = Listener(listen, hostname, intake, observer, files=files, clock=clock)
    obeying = asyncio.create_task(_obey(stdin, name, listener, events))
    loop.add_signal_handler(signal.SIGTERM, obeying.cancel)
    await listener.start(bound)
    chores = [asyncio.create_task(each) for each in (_report(tally), intake.keep_looking_for_room())]
    await asyncio.wait([obeying])
    await listener.close(CLOSE_SECONDS)
    for chore in chores:
        chore.cancel()
    await asyncio.gather(*chores, return_exceptions=True)
    intake.close()


async def _obey(stdin: asyncio.StreamReader, name: str, listener: Listener, events: Events) -> None:
    async for line in stdin:
        order = json.loads(line)
        if "full" in order:
            listener.quotas.full = {Owner(*each) for each in order["full"]}
        else:
            files = ListenerFiles.from_order(order)
            listener.use(files)
            events.tell(
                "listener_files_loaded", listener=name, users=len(files.hashes), certificate=files.fingerprint
            )


async def _report(tally: Tally) -> None:
    """Send counts to the parent.  If the parent does not read, only the counts wait."""
    while True:
        await asyncio.sleep(REPORT_SECONDS)
        report = json.dumps(tally.take()).encode() + b"\n"
        # An error here means that the parent is gone; stdin ends then too.
        await asyncio.to_thread(os.write, sys.stdout.fileno(), report)


if __name__ == "__main__":
    divert()
    for meant_for_the_parent in (signal.SIGINT, signal.SIGHUP):
        # A terminal and some supervisors signal the whole process group.
        signal.signal(meant_for_the_parent, signal.SIG_IGN)
    run(take_mail(socket.socket(fileno=int(sys.argv[1]))))
