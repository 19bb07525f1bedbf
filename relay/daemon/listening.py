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
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relay.daemon.descriptors import EACH_CLIENT, fitted
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
MOST_LINE_BYTES = 1024 * 1024
"""Of counts."""
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


class Listening:
    def __init__(
        self, start: Start, intake: SpoolIntake, events: Events, counts: ListenerCounts, limit: int
    ) -> None:
        """`limit` of descriptors, of each process; tell where the policy allows more clients than that."""
        self._start = start
        self._listens = start.policy.listen
        self._intake = intake
        self._events = events
        self._counts = counts
        self._observer = ListenerObserver(events, counts)
        self._sockets: list[socket.socket] = []
        self._listeners: dict[int, Listener] = {}
        self._processes: dict[int, set[Process]] = {}
        self._files: dict[int, ListenerFiles] = {}
        """All by the place of their `listen` in the policy."""
        self._keepers: list[asyncio.Task[None]] = []
        self._is_closing = False
        here = [listen for listen in self._listens if listener_processes(listen) == 0]
        self._fitted = {listen.address: each for listen, each in zip(here, fitted(here, limit), strict=True)}
        elsewhere = [[listen] for listen in self._listens if listener_processes(listen)]
        for where, listens in (
            ("relay", here),
            *((f"listener {each[0].address}", each) for each in elsewhere),
        ):
            needed = EACH_CLIENT * sum(listen.max_connections for listen in listens)
            if needed > limit:
                events.descriptors_short(
                    where=where, descriptors=limit, needed=needed, connections=limit // EACH_CLIENT
                )

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
                files = self._files.get(index)
                listener = Listener(
                    self._fitted[listen.address],
                    self._start.hostname,
                    self._intake,
                    self._observer,
                    files=files,
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
            _order(process, files.to_order())

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
                    # A process that is stopped reads none, and they would fill the memory.
                    if process.stdin is not None and not process.stdin.transport.get_write_buffer_size():
                        _order(process, {"held": [[*owner, held[owner]] for owner in held]})
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
        pause_seconds = RESTART_FIRST_SECONDS
        has_run = False
        while True:
            began_at = asyncio.get_running_loop().time()
            try:
                process = await self._start_process(index, bound)
            except OSError as error:
                # No descriptor, no memory: the next one may find some.
                self._events.fault(where=f"listener {listen.address}", error=error)
            else:
                if has_run:
                    self._events.listener_restarted(listener=str(listen.address), pid=process.pid)
                has_run = True
                try:
                    status = await self._attend(process)
                finally:
                    self._processes[index].discard(process)
                self._counts.drop_source(str(process.pid))
                if self._is_closing:
                    return
                self._events.listener_died(listener=str(listen.address), pid=process.pid, status=status)
            is_long = asyncio.get_running_loop().time() - began_at > RESTART_LONGEST_SECONDS
            pause_seconds = (
                RESTART_FIRST_SECONDS if is_long else min(pause_seconds * 2, RESTART_LONGEST_SECONDS)
            )
            await asyncio.sleep(pause_seconds)

    async def _start_process(self, index: int, bound: socket.socket) -> Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "relay.daemon.listener_process"),
            stdin=PIPE,
            stdout=PIPE,
            pass_fds=[bound.fileno()],
            limit=MOST_LINE_BYTES,
        )
        files = self._files.get(index)
        orders = {
            "policy": self._start.text.decode("utf-8"),
            "path": str(self._start.path),
            "listen": index,
            "fd": bound.fileno(),
            "hostname": self._start.hostname,
            "style": self._start.style,
            "files": files and files.to_order(),
        }
        _order(process, orders)
        self._processes.setdefault(index, set()).add(process)
        return process

    async def _attend(self, process: Process) -> str:
        """Return how it ended."""
        try:
            with contextlib.suppress(ValueError):
                await self._collect(process)
                return _end_of(await process.wait())
            # A line too long to be counts: whatever it has become, another one does better.
            process.kill()
            return _end_of(await process.wait())
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError, ValueError):
                async with asyncio.timeout(CLOSE_SECONDS + 2):
                    # Its order to stop: it finishes content in flight and goes.
                    _end_orders(process)
                    await self._collect(process)
                    await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()
            raise
        finally:
            _end_orders(process)

    async def _collect(self, process: Process) -> None:
        if process.stdout is None:
            raise AssertionError("a process without its output")
        async for line in process.stdout:
            # What a dying process wrote half of is nothing that counts.
            with contextlib.suppress(ValueError):
                self._counts.add_delta(json.loads(line), str(process.pid))


def _end_of(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit status {code}"


def _order(process: Process, order: dict[str, Any]) -> None:
    with contextlib.suppress(OSError, RuntimeError):  # it has ended
        if process.stdin is not None:
            process.stdin.write(json.dumps(order).encode() + b"\n")


def _end_orders(process: Process) -> None:
    with contextlib.suppress(OSError, RuntimeError):  # it has ended, and its end was noticed
        if process.stdin is not None:
            process.stdin.close()
