"""The daemon: puts the rooms together, runs until told to stop, and says how it ended.

Crash-only: a start recovers, a stop finishes what is in flight, and a clean stop leaves no state of
its own.  Exit codes are sysexits: 0 after SIGTERM, 69 when an address is taken, 74 when the spool
cannot be read at the start, 75 when another sender holds the spool, 78 for the policy.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from relay import __version__
from relay.clock import Clock, SystemClock
from relay.control.server import ControlServer
from relay.control.wire import PolicyInForce
from relay.daemon.assembly import Assembly
from relay.daemon.capacity import most_visitors, raise_limit
from relay.daemon.listener_files_watch import ListenerFilesWatch
from relay.daemon.listening import Listening, Start
from relay.daemon.loops import start_threads, tell_unhandled
from relay.daemon.notify import notify, reloading, stopping, watchdog_seconds
from relay.daemon.policy_watch import PolicyWatch, digest
from relay.daemon.reload import Reload
from relay.daemon.spool_intake import spool_intake
from relay.hooks.hooks import Hooks
from relay.policy.model import Policy, Practice
from relay.policy.secrets import read_password_file
from relay.policy.source import inspected_policy, policy_bytes
from relay.policy.units import HostPort
from relay.policy.written_out import policy_text
from relay.practice.account import PracticeBehaviour
from relay.practice.smarthost import PracticeSmarthost
from relay.sender.host import Host
from relay.spool.disk.durable import RealDisk, doubt_about
from relay.spool.engines import open_spool
from relay.spool.interface import Full, Unavailable
from relay.status.collector import collect
from relay.status.http import StatusServer
from relay.status.snapshot import Condition, PolicyStatus
from relay.status.visitors import VisitorBounds
from relay.status.watch import Watch
from relay.telemetry.event_table import Level
from relay.telemetry.events import Events, LogStyle
from relay.telemetry.listener_counts import ListenerCounts
from relay.telemetry.metrics import Metrics
from relay.telemetry.outcomes import OutcomeStore
from relay.telemetry.stderr import drain
from relay.telemetry.telemetry import Telemetry

LOOK_SECONDS = 1.0
"""How old an edit of a watched file may be, and how long files of listeners must stay as they are."""

Watches = Sequence[PolicyWatch | ListenerFilesWatch]


class Stop:
    def __init__(self, events: Events, metrics: Metrics) -> None:
        self.why = "told to"
        self.exit_code = os.EX_OK
        self._events = events
        self._metrics = metrics
        self._is_set = asyncio.Event()

    async def wait(self) -> None:
        await self._is_set.wait()

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._tell, signal.Signals(number).name)
        # Until the policy is watched: an edit made meanwhile is seen as soon as it is.
        loop.add_signal_handler(signal.SIGHUP, lambda: None)

    def fail(self, error: BaseException) -> None:
        """End because of what only a restart can make good; the first error counts."""
        if self._is_set.is_set() and self.exit_code != os.EX_OK:
            return
        if isinstance(error, Full | Unavailable | OSError):
            self._metrics.spool_failed()
            self._events.spool_failed(error=str(error))
            self.exit_code, self.why = os.EX_IOERR, "the spool failed"
        else:
            self._metrics.fault()
            self._events.fault(where="sender", error=error)
            self.exit_code, self.why = os.EX_SOFTWARE, "a fault in the sender"
        self._is_set.set()

    def _tell(self, name: str) -> None:
        if self._is_set.is_set():
            # Asked twice: whatever is in flight is repeated, nothing is lost.
            self._events.flush()
            drain(sys.stderr)
            os._exit(128 + signal.Signals[name])
        self.why = name
        self._is_set.set()


async def serve(
    path: Path,
    style: LogStyle,
    on_ready: Callable[[Policy], None],
    *,
    level: Level = Level.INFO,
) -> int:
    """Call `on_ready` once mail is taken.  Raises PolicyError, SpoolBusy, OSError, ValueError."""
    text = policy_bytes(path)
    policy = inspected_policy(text, path)
    start = Start(path, text, policy, policy.hostname or socket.getfqdn(), style)
    return await Daemon(start, Host(SystemClock(), RealDisk()), on_ready, level).run()


class Daemon:
    def __init__(self, start: Start, host: Host, on_ready: Callable[[Policy], None], level: Level) -> None:
        self._start = start
        self._on_ready = on_ready
        self._host, self._clock = host, host.clock
        self._events = Events(sys.stderr, start.style, self._clock, hostname=start.hostname, level=level)
        self._metrics = Metrics(self._clock)
        self._telemetry = Telemetry(self._events, self._metrics, self._clock)
        self._stop = Stop(self._events, self._metrics)

    async def run(self) -> int:
        """Return the exit code.  Raises SpoolBusy, OSError, ValueError."""
        start, policy, host, events = self._start, self._start.policy, self._host, self._events
        root = str(policy.spool)
        tell_unhandled(events)
        events.started(version=__version__, hostname=start.hostname, path=str(start.path))
        if "." not in start.hostname:
            events.hostname_without_domain(hostname=start.hostname)
        self._metrics.know_upstreams(policy.upstreams, policy.stand_ins)
        spool = open_spool(policy, host.disk, self._clock, self._set_aside())
        if (doubt := doubt_about(root)) is not None:
            events.spool_failed(error=f"messages may not survive a loss of power: {doubt}")
        counts = ListenerCounts([str(listen.address) for listen in policy.listen])
        intake = spool_intake(policy, host, events)
        listening = Listening(start, intake, events, counts, raise_limit())
        try:
            await listening.bind()
            start_threads()
            hooks = Hooks(policy, start.hostname, host.disk, self._telemetry)
            outcomes = OutcomeStore(root, policy.recent, host.disk, self._telemetry)
            path = str(start.path.absolute())
            relay = Assembly(
                spool,
                host,
                policy=policy,
                hostname=start.hostname,
                telemetry=self._telemetry,
                status=PolicyStatus(digest(start.text), self._clock.wall_ns(), path=path),
                on_fault=self._stop.fail,
            )
            collect(self._metrics, relay.watch.snapshot, counts, events, self._clock)
            await self._serve(relay, hooks, outcomes, listening)
        finally:
            events.flush()
        return self._stop.exit_code

    async def _serve(
        self, relay: Assembly, hooks: Hooks, outcomes: OutcomeStore, listening: Listening
    ) -> None:
        policy, sender, watch = self._start.policy, relay.sender, relay.watch
        async with contextlib.AsyncExitStack() as ends:
            if policy.practice is not None:
                practice = await _practise(policy.practice, self._clock)
                ends.push_async_callback(practice.close)
            # Before anything is sent: what cannot start must not cut off a transaction each time.
            if policy.http is not None:
                http = self._http(policy.http, policy.hostname, watch)
                await http.start()
                ends.push_async_callback(http.stop)
            self._stop.listen()
            # Release the lock last: the control socket's name belongs to the holder of the lock.
            ends.callback(sender.close)
            # After the last event of the sender, and while nobody else may have the notices.
            ends.push_async_callback(hooks.close)
            ends.push_async_callback(outcomes.close)
            ends.push_async_callback(sender.finish)
            files = ListenerFilesWatch(listening.use, watch, self._events, self._metrics)
            await files.begin(policy.listen)
            # Mail is taken before the queue is read: clients that had to wait for a start might give up.
            ends.push_async_callback(listening.close)
            await listening.start()
            watch.refusing_because = ""
            notify("STATUS=recovering")
            try:
                await sender.start()
            except (Full, Unavailable) as trouble:
                self._stop.fail(trouble)
            else:
                await hooks.start()
                outcomes.start()
                edits = Reload(
                    self._start.path,
                    policy,
                    sender=sender,
                    watch=watch,
                    hooks=hooks,
                    outcomes=outcomes,
                    telemetry=self._telemetry,
                )
                file = PolicyWatch(self._start.path, policy, self._start.text, edits, self._clock)
                await self._run(relay, listening, (file, files))
        self._events.stopped(queued=sender.queued)

    async def _run(self, relay: Assembly, listening: Listening, watches: Watches) -> None:
        """Take mail and relay; on return nothing is in flight."""
        start, sender, watch = self._start, relay.sender, relay.watch
        guard = sender.upstreams.guard
        control = ControlServer(
            start.policy.spool,
            relay.operator,
            self._events,
            lambda: PolicyInForce(start.path.absolute(), policy_text(watch.policy, {})),
        )
        _look_when_asked(watches)
        chores = [
            asyncio.create_task(chore)
            for chore in (guard(lambda: _keep_looking(watches)), _keep_watchdog(), *relay.chores())
        ]
        try:
            await control.start()
            chores.append(asyncio.create_task(guard(lambda: listening.tell_owners(sender.queue.owners.each))))
            watch.condition, watch.started_ns = Condition.RUNNING, self._clock.boottime_ns()
            notify("READY=1", "STATUS=relaying")
            self._on_ready(start.policy)
            await self._stop.wait()
            watch.condition, watch.refusing_because = Condition.STOPPING, f"stopping: {self._stop.why}"
            stopping(sender.in_flight)
            self._events.stopping(reason=self._stop.why, in_flight=sender.in_flight)
        finally:
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, return_exceptions=True)
            await asyncio.gather(listening.close(), sender.finish())
            # What was accepted since the last page was claimed is ours too.
            await sender.look()
            await control.stop()

    def _http(self, address: HostPort, hostname: str | None, watch: Watch) -> StatusServer:
        return StatusServer(
            address,
            watch.snapshot,
            watch.foresee,
            self._metrics.registry,
            self._events,
            coming=watch.coming,
            names=[hostname] if hostname else [],
            bounds=VisitorBounds(most_visitors(raise_limit())),
        )

    def _set_aside(self) -> Callable[[str, str], None]:
        """Return what the spool calls in its own thread, with a damaged file's name and its damage."""
        loop = asyncio.get_running_loop()

        def tell(name: str, why: str) -> None:
            self._metrics.corrupt_found()
            self._events.corrupt(queue_id=name, reason=why)

        def pass_on(name: str, why: str) -> None:
            # The log belongs to the loop.
            loop.call_soon_threadsafe(tell, name, why)

        return pass_on


async def _keep_looking(watches: Watches) -> None:
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        for each in watches:
            await each.look(is_asked=False)


def _look_when_asked(watches: Watches) -> None:
    pending: set[asyncio.Task[None]] = set()

    async def look_at_all() -> None:
        for each in watches:
            await each.look(is_asked=True)

    def begin() -> None:
        reloading()
        looking = asyncio.create_task(look_at_all())
        pending.add(looking)
        looking.add_done_callback(pending.discard)
        looking.add_done_callback(lambda _: notify("READY=1"))

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, begin)


async def _practise(practice: Practice, clock: Clock) -> PracticeSmarthost:
    smarthost = PracticeSmarthost(
        practice.address,
        practice.user,
        await asyncio.to_thread(read_password_file, practice.password_file),
        PracticeBehaviour(practice.limit, practice.cut_off_ns, keep=practice.keep),
        clock=clock,
    )
    await smarthost.start()
    return smarthost


async def _keep_watchdog() -> None:
    period_seconds = watchdog_seconds()
    while period_seconds is not None:
        notify("WATCHDOG=1")
        await asyncio.sleep(period_seconds)
