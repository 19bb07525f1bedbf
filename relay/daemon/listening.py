"""Taking mail: listeners in this process, and listener processes that are kept alive.

A listener process shares nothing with the sender but the spool.  Its death costs its own open
sessions, whose clients keep their messages; it is restarted after a pause, which grows while it
keeps dying.  It is a fresh interpreter, not a fork of one that has threads and a loop; the listening
socket is bound here and inherited, so that no connection is refused meanwhile.
"""

import asyncio
import contextlib
import errno
import json
import socket
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from relay.daemon.child import Child, Starter
from relay.daemon.descriptors import Budget
from relay.daemon.processes import listener_processes
from relay.daemon.spool_intake import SpoolIntake
from relay.listener.listener_files import ListenerFiles
from relay.listener.quotas import Quotas
from relay.listener.server import Listener, bind
from relay.policy.model import Listen, Policy, Tls
from relay.sender.host import Host
from relay.spool.engines import open_intake
from relay.telemetry.events import Events, LogStyle
from relay.telemetry.listener_counts import ListenerCounts, ListenerObserver

CLOSE_SECONDS = 10.0
"""How long content in flight may take at a stop."""
BIND_AGAIN_SECONDS = 0.1
RESTART_FIRST_SECONDS = 0.5
RESTART_LONGEST_SECONDS = 30.0
LOOK_SECONDS = 2.0
"""How old the free space may be by which a declared size is judged."""
LOOK_WHEN_FULL_SECONDS = 0.2
"""How long clients are still refused when there is room again."""
TELL_SECONDS = 1.0
"""How often listeners with quotas are told who has how much in the queue."""


def spool_intake(policy: Policy, host: Host, events: Events) -> SpoolIntake:
    return SpoolIntake(
        open_intake(policy, host.disk, host.clock),
        host.trigger(str(policy.spool), host.disk),
        lambda error: events.spool_failed(error=f"accept: {error.strerror or error}"),
        host.workers,
    )


async def look_for_room(intake: SpoolIntake) -> None:
    while True:
        await intake.look_for_room()
        await asyncio.sleep(LOOK_WHEN_FULL_SECONDS if intake.is_full else LOOK_SECONDS)


@dataclass(frozen=True, slots=True)
class Start:
    """What a relay was started with: its listener processes are told the same."""

    path: Path
    text: bytes
    policy: Policy
    hostname: str
    style: LogStyle
    python: str = sys.executable


class Listening:
    def __init__(
        self,
        start: Start,
        intake: SpoolIntake,
        events: Events,
        counts: ListenerCounts,
        budget: Budget,
        *,
        restart_first_seconds: float = RESTART_FIRST_SECONDS,
    ) -> None:
        self._start = start
        self._listens = start.policy.listen
        self._intake = intake
        self._events = events
        self._counts = counts
        self._budget = budget
        self._restart_first_seconds = restart_first_seconds
        self._observer = ListenerObserver(events, counts)
        self._sockets: list[socket.socket] = []
        self._listeners: dict[int, Listener] = {}
        self._processes: dict[int, set[Child]] = {}
        self._files: dict[int, ListenerFiles] = {}
        """All by the place of their `listen` in the policy."""
        self._keepers: list[asyncio.Task[None]] = []
        self._is_closing = False
        self._starter = Starter()

    @property
    def has_processes(self) -> bool:
        return any(listener_processes(listen) for listen in self._listens)

    async def bind(self) -> None:
        """Bind every address.  Raises OSError, with the address in `filename`."""
        for listen in self._listens:
            try:
                self._sockets.append(await self._bind(listen))
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(listen.address)) from error

    async def start(self) -> None:
        for index, (listen, bound) in enumerate(zip(self._listens, self._sockets, strict=True)):
            if listener_processes(listen) == 0:
                listener = Listener(
                    self._budget.fitted(listen),
                    self._start.hostname,
                    self._intake,
                    self._observer,
                    ceiling=self._budget.ceiling,
                    files=self._files.get(index),
                )
                await listener.start(bound)
                self._listeners[index] = listener
            for _ in range(listener_processes(listen)):
                self._keepers.append(asyncio.create_task(self._keep(index, listen, bound)))
            protocol = "SMTP with TLS" if listen.tls is Tls.IMPLICIT else "SMTP"
            self._events.listening(listener=str(listen.address), protocol=protocol)
        self._keepers.append(asyncio.create_task(look_for_room(self._intake)))

    def use(self, index: int, files: ListenerFiles) -> None:
        """Go by other users and another certificate, now and in processes to come."""
        self._files[index] = files
        if (listener := self._listeners.get(index)) is not None:
            listener.use(files)
        for process in self._processes.get(index, ()):
            _give(process, files)

    async def tell_owners(self, owners: Callable[[], Iterable[tuple[tuple[str, str], int]]]) -> None:
        """Tell who has how much in the queue, again and again, where some listener asks."""
        quotas = {index: Quotas(listen) for index, listen in enumerate(self._listens)}
        asked = {index: of_listen for index, of_listen in quotas.items() if of_listen.is_any}
        while asked:
            for index, of_listen in asked.items():
                held = of_listen.worth_telling(owners())
                if (listener := self._listeners.get(index)) is not None:
                    listener.quotas.told(held)
                for process in self._processes.get(index, ()):
                    process.tell(
                        json.dumps({"held": [[*owner, held[owner]] for owner in held]}).encode() + b"\n"
                    )
            await asyncio.sleep(TELL_SECONDS)

    async def close(self) -> None:
        """Let content in flight finish; a second call does nothing."""
        if self._is_closing:
            return
        self._is_closing = True
        for keeper in self._keepers:
            keeper.cancel()
        listeners = (listener.close(CLOSE_SECONDS) for listener in self._listeners.values())
        await asyncio.gather(*listeners, *self._keepers, return_exceptions=True)
        for bound in self._sockets:
            bound.close()
        self._starter.close()
        self._intake.close()

    async def _bind(self, listen: Listen) -> socket.socket:
        """Bind an address; where listener processes of a killed sender hold it, wait for their end."""
        until = asyncio.get_running_loop().time() + CLOSE_SECONDS
        while True:
            try:
                return bind(listen)
            except OSError as error:
                may_be_ours = error.errno == errno.EADDRINUSE and listener_processes(listen) > 0
                if not may_be_ours or asyncio.get_running_loop().time() > until:
                    raise
            await asyncio.sleep(BIND_AGAIN_SECONDS)

    async def _keep(self, index: int, listen: Listen, bound: socket.socket) -> None:
        pause_seconds = self._restart_first_seconds
        has_run = False
        while True:
            began_at = asyncio.get_running_loop().time()
            try:
                files = self._files.get(index)
                process = await self._start_process(index, bound, files)
            except OSError as error:
                # No descriptor, no memory: the next one may find some.
                self._events.fault(where=f"listener {listen.address}", error=error)
            else:
                if has_run:
                    self._events.listener_restarted(listener=str(listen.address), pid=process.pid)
                has_run = True
                processes = self._processes.setdefault(index, set())
                processes.add(process)
                if (later := self._files.get(index)) is not files and later is not None:
                    _give(process, later)
                try:
                    status = await self._attend(process)
                finally:
                    processes.discard(process)
                self._counts.drop_source(str(process.pid))
                if self._is_closing:
                    return
                self._events.listener_died(listener=str(listen.address), pid=process.pid, status=status)
            is_long = asyncio.get_running_loop().time() - began_at > RESTART_LONGEST_SECONDS
            pause_seconds = (
                self._restart_first_seconds if is_long else min(pause_seconds * 2, RESTART_LONGEST_SECONDS)
            )
            await asyncio.sleep(pause_seconds)

    async def _start_process(self, index: int, bound: socket.socket, files: ListenerFiles | None) -> Child:
        orders = {
            "policy": self._start.text.decode("utf-8"),
            "path": str(self._start.path),
            "listen": index,
            "fd": bound.fileno(),
            "hostname": self._start.hostname,
            "style": self._start.style,
            "files": files and files.to_order(),
        }
        command = [self._start.python, "-m", "relay.daemon.listener_process"]
        return await self._starter.start(command, json.dumps(orders).encode() + b"\n", [bound.fileno()])

    async def _attend(self, process: Child) -> str:
        """Return how it ended."""
        try:
            await self._collect(process)
            code = await process.wait()
        except asyncio.CancelledError:
            # Its end of file is its order to stop: it finishes content in flight and goes.
            process.end_orders()
            await self._drain(process)
            raise
        except ValueError:
            # A line too long to be counts: whatever it has become, another one does better.
            process.kill()
            code = await process.wait()
        process.close()
        return f"signal {-code}" if code < 0 else f"exit status {code}"

    async def _collect(self, process: Child) -> None:
        async for line in process.lines():
            # What a dying process wrote half of is nothing that counts.
            with contextlib.suppress(ValueError):
                self._counts.add_delta(json.loads(line), str(process.pid))

    async def _drain(self, process: Child) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS + 2):
                await self._collect(process)
                await process.wait()
        if not process.has_ended:
            process.kill()
            await process.wait()
        process.close()


def _give(process: Child, files: ListenerFiles) -> None:
    process.order(json.dumps(files.to_order()).encode() + b"\n")
