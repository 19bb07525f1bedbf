"""The daemon: puts the rooms together, runs until told to stop, and says how it ended.

Starting is recovering and stopping is finishing what is in flight, so there is no state
that only a clean stop leaves behind (crash-only).  Exit codes are sysexits: 0 after
SIGTERM, 69 when an address is taken, 74 when the disk cannot be trusted (a restart reads
it again), 75 when another sender holds the spool, 78 for the policy.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from relay import __version__
from relay.clock import SystemClock
from relay.control.operator import Operator
from relay.control.socket import ControlServer
from relay.daemon.descriptors import Budget, listener_budget, most_visitors, raise_limit, sender_budget
from relay.daemon.listening import Listening
from relay.daemon.loops import start_threads, tell_unhandled
from relay.daemon.notify import Recovering, notify, reloading, stopping, watchdog_seconds
from relay.daemon.policy_watch import PolicyWatch, digest
from relay.daemon.priority import give_way
from relay.daemon.reload import Reload
from relay.policy.model import Policy
from relay.policy.secrets import read_password_file
from relay.policy.source import inspected_policy, policy_bytes
from relay.practice.smarthost import PracticeSmarthost
from relay.sender.late_mail import LateMail
from relay.sender.sender import Sender
from relay.spool.durable import RealDisk
from relay.spool.interface import SpoolFault
from relay.spool.maildir.engine import MaildirSpool
from relay.spool.maildir.trigger import Trigger
from relay.spool.mounts import doubt_about
from relay.status.collector import collect
from relay.status.http import StatusServer
from relay.status.snapshot import Condition, PolicyStatus
from relay.status.watch import Watch
from relay.telemetry.event_table import Level
from relay.telemetry.events import Events
from relay.telemetry.listener_counts import ListenerCounts
from relay.telemetry.metrics import Metrics
from relay.telemetry.redaction import Redaction
from relay.telemetry.stderr import drain
from relay.telemetry.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Rooms:
    """What a relay consists of, put together but not started."""

    policy: Policy
    text: bytes
    sender: Sender
    watch: Watch
    listening: Listening
    metrics: Metrics


class Daemon:
    """One relay, from its policy to its exit code."""

    def __init__(
        self,
        policy_path: Path,
        style: Literal["text", "json"],
        on_ready: Callable[[Policy], None],
        *,
        level: Level = Level.INFO,
    ) -> None:
        """`on_ready` is called once mail is taken."""
        self._path = policy_path
        self._style = style
        self._level = level
        self._on_ready = on_ready
        self._clock = SystemClock()
        self._recovering = Recovering(self._clock)
        self._disk = RealDisk()
        self._redaction = Redaction()
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._why = "told to"
        self._exit_code = os.EX_OK
        self._events = Events(sys.stderr, style, self._clock, redaction=self._redaction)

    async def run(self) -> int:
        """Serve until stopped; return the exit code.  Raises PolicyError, SpoolBusy, OSError, ValueError."""
        policy, text = _read(self._path)
        hostname = policy.hostname or socket.getfqdn()
        self._events = Events(
            sys.stderr,
            self._style,
            self._clock,
            redaction=self._redaction,
            hostname=hostname,
            level=self._level,
        )
        self._events.collect(self._loop.call_soon)
        tell_unhandled(self._events)
        self._events.started(version=__version__, hostname=hostname, path=str(self._path))
        counts = ListenerCounts([str(listen.address) for listen in policy.listen])
        metrics = Metrics(self._clock)
        metrics.know_upstreams(policy.upstreams)
        spool = MaildirSpool(
            str(policy.spool), self._disk, self._clock, lambda name, why: self._set_aside(metrics, name, why)
        )
        if (doubt := doubt_about(str(policy.spool))) is not None:
            self._events.spool_failed(error=f"messages may not survive a loss of power: {doubt}")
        listening = Listening(
            policy,
            text,
            self._path,
            hostname=hostname,
            disk=self._disk,
            clock=self._clock,
            events=self._events,
            counts=counts,
            style=self._style,
            budget=self._count_descriptors(policy),
        )
        try:
            await listening.bind()
            if listening.has_processes:
                # Before the sender's threads are there, which have the priority of this one.
                give_way()
            start_threads()
            sender = Sender(
                spool,
                Trigger(str(policy.spool), self._disk),
                policy=policy,
                hostname=hostname,
                disk=self._disk,
                telemetry=Telemetry(self._events, metrics, self._redaction, self._clock),
                on_fault=lambda error: self._fail(metrics, error),
            )
            status = PolicyStatus(digest(text), self._clock.wall_ns())
            watch = Watch(sender, policy, hostname, self._clock, status)
            collect(metrics, watch.snapshot, counts, self._events, self._clock)
            await self._serve(Rooms(policy, text, sender, watch, listening, metrics))
        finally:
            self._events.flush()
        return self._exit_code

    def _count_descriptors(self, policy: Policy) -> Budget:
        """Have as many descriptors as we may, and say so where the policy allows more clients than that."""
        limit = raise_limit()
        ours = sender_budget(policy, limit)
        others = (
            (f"listener {each.address}", listener_budget(each, limit))
            for each in policy.listen
            if each.processes
        )
        for where, budget in (("relay", ours), *others):
            if budget.is_short:
                self._events.descriptors_short(
                    where=where, descriptors=limit, needed=budget.needed, connections=budget.clients
                )
        return ours

    async def _serve(self, rooms: Rooms) -> None:
        policy, sender, watch, metrics = rooms.policy, rooms.sender, rooms.watch, rooms.metrics
        async with contextlib.AsyncExitStack() as ends:
            practice = await _practise(policy, self._clock)
            if practice is not None:
                ends.push_async_callback(practice.close)
            # Before anything is sent: what cannot start must not cut off a transaction each time.
            http = await self._open_http(policy, watch, metrics)
            if http is not None:
                ends.push_async_callback(http.stop)
            self._listen_for_stop()
            # Its lock is let go last: the control socket's name belongs to whoever holds it.
            ends.callback(sender.close)
            ends.push_async_callback(sender.finish)
            try:
                await sender.start(self._recovering)
            except SpoolFault as fault:
                self._fail(metrics, fault)
            else:
                await self._run(rooms)
        self._events.stopped(queued=sender.queued)

    async def _run(self, rooms: Rooms) -> None:
        """Take mail, relay and answer until told to stop; on return nothing is in flight."""
        policy, sender, watch = rooms.policy, rooms.sender, rooms.watch
        operator = Operator(
            sender.scheduler,
            sender.spool_thread,
            sender.settling,
            self._events,
            watch=watch,
            wake=sender.wake,
            resume=sender.upstreams.resume,
            shield=sender.upstreams.shield,
            on_fault=sender.fail,
        )
        control = ControlServer(policy.spool, operator, self._events)
        file, guard = self._policy_file(rooms), sender.upstreams.guard
        late = LateMail(
            sender.scheduler,
            sender.settling,
            self._clock,
            foresee=lambda: watch.listing().messages,
            pausing=sender.upstreams.default_pausing,
        )
        chores = [
            asyncio.create_task(chore) for chore in (guard(file.watch), _keep_watchdog(), guard(late.run))
        ]
        self._listen_for_edits(file)
        try:
            await control.start()
            await rooms.listening.start()
            self._tell_ready(rooms)
            await self._stop.wait()
            watch.condition, watch.refusing_because = Condition.STOPPING, f"stopping: {self._why}"
            stopping(sender.in_flight)
            self._events.stopping(reason=self._why, in_flight=sender.in_flight)
        finally:
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, return_exceptions=True)
            await asyncio.gather(rooms.listening.close(), sender.finish())
            with contextlib.suppress(SpoolFault, OSError):
                # What was accepted since the last one was taken is ours too.
                await sender.look()
            await control.stop()

    def _policy_file(self, rooms: Rooms) -> PolicyWatch:
        """Return what follows the policy, and has its edits take effect."""
        edits = Reload(
            self._path,
            rooms.policy,
            sender=rooms.sender,
            watch=rooms.watch,
            events=self._events,
            metrics=rooms.metrics,
            clock=self._clock,
        )
        return PolicyWatch(
            self._path,
            rooms.policy,
            rooms.text,
            on_policy=edits.apply,
            on_meanwhile=edits.hold,
            on_refused=edits.refuse,
            on_waiting=edits.wait,
            clock=self._clock,
        )

    def _tell_ready(self, rooms: Rooms) -> None:
        self._recovering.end()
        watch = rooms.watch
        watch.condition, watch.refusing_because = Condition.RUNNING, ""
        watch.started_at_ns = self._clock.wall_ns()
        notify("READY=1", "STATUS=relaying")
        self._on_ready(rooms.policy)

    async def _open_http(self, policy: Policy, watch: Watch, metrics: Metrics) -> StatusServer | None:
        if policy.http is None:
            return None
        names = [policy.hostname] if policy.hostname else []
        server = StatusServer(
            policy.http,
            watch.snapshot,
            watch.foresee,
            metrics.registry,
            self._events,
            names=names,
            most=most_visitors(raise_limit()),
        )
        await server.start()
        return server

    def _listen_for_stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._told_to_stop, signal.Signals(number).name)
        # Until the policy is watched: an edit made meanwhile is seen as soon as it is.
        self._loop.add_signal_handler(signal.SIGHUP, lambda: None)

    def _listen_for_edits(self, file: PolicyWatch) -> None:
        pending: set[asyncio.Task[None]] = set()

        def look() -> None:
            reloading()
            looking = asyncio.create_task(file.look(is_asked=True))
            pending.add(looking)
            looking.add_done_callback(pending.discard)
            looking.add_done_callback(lambda _: notify("READY=1"))

        self._loop.add_signal_handler(signal.SIGHUP, look)

    def _told_to_stop(self, name: str) -> None:
        if self._stop.is_set():
            # Asked twice: whatever is in flight is repeated, nothing is lost.
            self._events.flush()
            drain(sys.stderr)
            os._exit(128 + signal.Signals[name])
        self._why = name
        # A recovery may be killed at any instant: a stop does not wait longer for it than the manager does.
        self._recovering.end()
        self._stop.set()

    def _fail(self, metrics: Metrics, error: BaseException) -> None:
        """End because of something that only a restart can make good; the first such counts."""
        if self._stop.is_set() and self._exit_code != os.EX_OK:
            return
        if isinstance(error, (SpoolFault, OSError)):
            metrics.spool_failed()
            self._events.spool_failed(error=str(error))
            self._exit_code, self._why = os.EX_IOERR, "the spool failed"
        else:
            metrics.fault()
            self._events.fault(where="sender", error=error)
            self._exit_code, self._why = os.EX_SOFTWARE, "a fault in the sender"
        self._stop.set()

    def _set_aside(self, metrics: Metrics, name: str, why: str) -> None:
        # Called in the spool's thread: the log belongs to the loop.
        self._loop.call_soon_threadsafe(self._tell_corrupt, metrics, name, why)

    def _tell_corrupt(self, metrics: Metrics, name: str, why: str) -> None:
        metrics.corrupt_found()
        self._events.corrupt(queue_id=name, reason=why)


async def _practise(policy: Policy, clock: SystemClock) -> PracticeSmarthost | None:
    """Start the embedded smarthost, if the policy wants one."""
    practice = policy.practice
    if practice is None:
        return None
    smarthost = PracticeSmarthost(
        practice.address,
        practice.user,
        await asyncio.to_thread(read_password_file, practice.password_file),
        practice.limit,
        practice.cut_off_ns,
        keep=practice.keep,
        clock=clock,
    )
    await smarthost.start()
    return smarthost


async def _keep_watchdog() -> None:
    """Give signs of life for as long as the loop turns."""
    period_seconds = watchdog_seconds()
    while period_seconds is not None:
        notify("WATCHDOG=1")
        await asyncio.sleep(period_seconds)


def _read(path: Path) -> tuple[Policy, bytes]:
    """Return the policy and its text.  Raises PolicyError."""
    text = policy_bytes(path)
    return inspected_policy(text, path), text
