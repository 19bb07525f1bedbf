"""The daemon: puts the rooms together, runs until told to stop, and returns the exit code.

Crash-only: a start recovers, a stop finishes the transactions in flight, and a clean stop leaves no state of
its own.  Exit codes are sysexits: 0 after SIGTERM, 69 if an address is taken, 70 after a fault in the sender,
74 if the spool fails, 75 if another sender holds the spool, 78 for the policy.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

from relay import __version__
from relay.clock import SystemClock
from relay.daemon.assembly import Assembly
from relay.daemon.capacity import raise_limit
from relay.daemon.listener_files_watch import ListenerFilesWatch
from relay.daemon.listening import Listening, Start
from relay.daemon.loops import start_threads, tell_unhandled
from relay.daemon.notify import keep_watchdog, notify, reloading
from relay.daemon.policy_watch import PolicyWatch, digest
from relay.daemon.reload import Reload
from relay.daemon.spool_intake import spool_intake
from relay.hooks.hooks import Hooks
from relay.policy.secrets import read_password_file
from relay.policy.source import parse_policy, policy_bytes
from relay.practice.smarthost import PracticeAccount, PracticeSmarthost
from relay.sender.host import Host
from relay.smtp.sasl import Credentials
from relay.spool.disk.durable import RealDisk, doubt_about
from relay.spool.engines import open_spool
from relay.spool.interface import Full, Unavailable
from relay.status.collector import SnapshotCollector
from relay.status.snapshot import Condition, PolicyStatus
from relay.telemetry.events import Events, Level, LogStyle
from relay.telemetry.metrics import Metrics, Telemetry
from relay.telemetry.outcomes import OutcomeStore
from relay.telemetry.stderr import LogStream

LOOK_SECONDS = 1.0
"""Between two looks at watched files: a listener's files must be the same in two of them."""

FileWatch = PolicyWatch | ListenerFilesWatch


async def serve(path: Path, style: LogStyle, level: Level) -> int:
    """Run a relay.  Raises PolicyError, SpoolBusy, OSError, WrongSpool."""
    text = policy_bytes(path)
    policy = parse_policy(text, path, looks_at_files=True)
    start = Start(path, text, policy, policy.hostname or socket.getfqdn(), style, level)
    return await Daemon(start, Host(SystemClock(), RealDisk())).run()


class Daemon:
    def __init__(self, start: Start, host: Host) -> None:
        self._start = start
        self._host, self._clock = host, host.clock
        self._events = Events(
            sys.stderr, start.style, self._clock, level=start.level, hostname=start.hostname
        )
        self._metrics = Metrics()
        self._telemetry = Telemetry(self._events, self._metrics, self._clock)
        self._is_asked, self._is_stopping = asyncio.Event(), asyncio.Event()
        """Asked to look at watched files (SIGHUP), and stopping by a signal or a failure."""
        self._why, self._exit_code = "", os.EX_OK

    async def run(self) -> int:
        """Return the exit code.  Raises SpoolBusy, OSError, WrongSpool."""
        start, policy, host, events = self._start, self._start.policy, self._host, self._events
        root, loop = str(policy.spool), asyncio.get_running_loop()
        tell_unhandled(events)
        events.tell("started", version=__version__, hostname=start.hostname, path=str(start.path))
        if "." not in start.hostname:
            events.tell("hostname_without_domain", hostname=start.hostname)
        self._metrics.know("upstream", policy.upstreams)

        def set_aside(name: str, why: str) -> None:
            # Called in the spool's thread; the log belongs to the loop.
            loop.call_soon_threadsafe(self._tell_damage, name, why)

        spool = open_spool(policy, host.disk, self._clock, set_aside)
        if (doubt := doubt_about(root)) is not None:
            events.tell("spool_failed", error=f"messages may not survive a loss of power: {doubt}")
        intake = spool_intake(policy, host, events)
        listening = Listening(start, intake, events, self._metrics, clock=self._clock, limit=raise_limit())
        await listening.bind()
        start_threads()
        status = PolicyStatus(digest(start.text), self._clock.wall_ns(), path=str(start.path.absolute()))
        relay = Assembly(spool, host, policy, start.hostname, self._telemetry, status, self._fail)
        collector = SnapshotCollector(self._metrics, relay.status_view.snapshot, events)
        self._metrics.registry.register(collector)
        await self._serve(relay, listening)
        return self._exit_code

    async def _serve(self, relay: Assembly, listening: Listening) -> None:
        start, policy, sender, status_view = self._start, self._start.policy, relay.sender, relay.status_view
        hooks = Hooks(policy, start.hostname, self._telemetry)
        outcomes = OutcomeStore(str(policy.spool), policy.recent, self._host.disk, self._telemetry)
        async with contextlib.AsyncExitStack() as ends:
            if (practised := policy.practice) is not None:
                password = read_password_file(practised.password_file)
                practice = PracticeSmarthost(
                    practised.address,
                    Credentials(practised.user, password),
                    PracticeAccount(practised.limit, practised.cut_off_ns),
                    self._clock,
                    keep=practised.keep,
                )
                await practice.start()
                ends.push_async_callback(practice.close)
            self._hear_signals()
            # Release the lock last: its holder owns the name of the control socket.
            ends.callback(sender.close)
            # These close after the last event of the sender.
            ends.push_async_callback(hooks.close)
            ends.push_async_callback(outcomes.close)
            ends.push_async_callback(sender.finish)
            files = ListenerFilesWatch(listening.use, status_view, self._events, self._metrics)
            await files.begin(policy.listen)
            # Take mail before the queue is read: clients that wait for the start might give up.
            ends.push_async_callback(listening.close)
            await listening.start()
            status_view.refusing_because = ""
            # Take mail first: the import of aiohttp takes 0.25 s.  But open the status port before sending: a
            # relay that cannot start must not interrupt a transaction at each attempt.
            if policy.http is not None:
                from relay.status.http import StatusServer  # noqa: PLC0415 - see above

                registry = self._metrics.registry
                http = StatusServer(policy.http, status_view, registry, self._events, policy.hostname)
                await http.start()
                ends.push_async_callback(http.stop)
            notify("STATUS=recovering")
            try:
                await sender.start()
            except (Full, Unavailable) as trouble:
                self._fail(trouble)
            else:
                outcomes.start()
                edits = Reload(start.path, policy, sender, status_view, hooks, outcomes, self._telemetry)
                file = PolicyWatch(start.path, start.text, edits, self._clock)
                await self._run(relay, listening, file, files)
        self._events.tell("stopped", queued=sender.queued)

    async def _run(self, relay: Assembly, listening: Listening, *watches: FileWatch) -> None:
        """Relay until told to stop; on return nothing is in flight."""
        start, sender, status_view = self._start, relay.sender, relay.status_view
        guard, owners = sender.guard, sender.queue.owners.items
        from relay.control.server import ControlServer  # noqa: PLC0415 - it imports aiohttp, as above

        control = ControlServer(start.policy.spool, relay.operator, self._events)
        await control.start()
        ours = guard(lambda: self._keep_looking(*watches)), guard(lambda: listening.tell_owners(owners))
        chores = [asyncio.create_task(each) for each in (keep_watchdog(), *ours, *relay.chores())]
        status_view.condition, status_view.started_ns = Condition.RUNNING, self._clock.boottime_ns()
        notify("READY=1", "STATUS=relaying")
        await self._is_stopping.wait()
        status_view.condition, status_view.refusing_because = Condition.STOPPING, f"stopping: {self._why}"
        notify("STOPPING=1", f"STATUS=stopping: {sender.in_flight} transactions in flight")
        self._events.tell("stopping", reason=self._why, in_flight=sender.in_flight)
        for chore in chores:
            chore.cancel()
        await asyncio.gather(*chores, return_exceptions=True)
        await asyncio.gather(listening.close(), sender.finish())
        # Refresh the figures, so that `stopped` also counts mail that nobody claimed yet.
        await sender.look()
        await control.stop()

    def _hear_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._tell_to_stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._is_asked.set)

    def _tell_to_stop(self, number: signal.Signals) -> None:
        if self._is_stopping.is_set():
            # A second signal: the next start repeats the transactions in flight, and nothing is lost.
            if isinstance(sys.stderr, LogStream):
                sys.stderr.drain()
            os._exit(128 + number)
        self._why = number.name
        self._is_stopping.set()

    def _fail(self, error: BaseException) -> None:
        """Stop for an error that only a restart can repair; the first error sets the exit code."""
        if self._exit_code != os.EX_OK:
            return
        if isinstance(error, Full | Unavailable | OSError):
            self._telemetry.spool_trouble(error)
            self._exit_code, self._why = os.EX_IOERR, "the spool failed"
        else:
            self._metrics.count("relay_faults_total")
            self._events.fault(where="sender", error=error)
            self._exit_code, self._why = os.EX_SOFTWARE, "a fault in the sender"
        self._is_stopping.set()

    def _tell_damage(self, name: str, why: str) -> None:
        self._metrics.count("relay_spool_corrupt_total")
        self._events.tell("corrupt", queue_id=name, reason=why)

    async def _keep_looking(self, *watches: FileWatch) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._is_asked.wait()
            if is_asked := self._is_asked.is_set():
                self._is_asked.clear()
                reloading()
            for each in watches:
                await each.look(is_asked=is_asked)
            if is_asked:
                notify("READY=1")
