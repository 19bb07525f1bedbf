"""Taking mail: listeners in this process, and listener processes that are kept alive.

A listener process shares nothing with the sender but the spool.  Its death costs its own open
sessions, whose clients keep their messages; it is restarted after a pause, which grows while it
keeps dying.  The listening socket is bound here and inherited, so that no connection is refused meanwhile.
"""

import asyncio
import contextlib
import errno
import json
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relay.daemon.capacity import EACH_CLIENT, fitted, listener_processes
from relay.daemon.spool_intake import SpoolIntake
from relay.listener.listener_files import ListenerFiles
from relay.listener.quotas import Quotas
from relay.listener.server import Listener, bind
from relay.policy.model import Listen, Policy, Tls
from relay.telemetry.events import Events, LogStyle
from relay.telemetry.listener_counts import ListenerCounts, ListenerObserver

CLOSE_SECONDS = 10.0
"""How long content in flight may take at a stop."""
BIND_AGAIN_SECONDS = 0.1
RESTART_FIRST_SECONDS = 0.5
RESTART_LONGEST_SECONDS = 30.0
MOST_LINE_BYTES = 1024 * 1024
"""Of counts."""
TELL_SECONDS = 1.0
"""How often listeners with quotas are told who has how much in the queue."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a relay was started with: its listener processes are told the same."""

    path: Path
    text: bytes
    policy: Policy
    hostname: str
    style: LogStyle
    python: str = sys.executable


@dataclass(eq=False, slots=True)
class _Listening:
    """One `listen` of the policy."""

    index: int
    listen: Listen
    bound: socket.socket | None = None
    files: ListenerFiles | None = None
    listener: Listener | None = None
    """In this process."""
    processes: set[Process] = field(default_factory=set)

    @property
    def name(self) -> str:
        return str(self.listen.address)

    def order(self, order: dict[str, Any], *, is_replaced: bool = False) -> None:
        """Order processes; `is_replaced`: by the next such order, so not while earlier ones are unread."""
        for process in self.processes:
            # A process that is stopped reads none, and they would fill the memory.
            if not (is_replaced and process.stdin and process.stdin.transport.get_write_buffer_size()):
                _order(process, order)


class Listening:
    def __init__(
        self,
        start: Start,
        intake: SpoolIntake,
        events: Events,
        counts: ListenerCounts,
        limit: int,
        *,
        restart_first_seconds: float = RESTART_FIRST_SECONDS,
    ) -> None:
        """`limit` of descriptors, of each process; tell where the policy allows more clients than that."""
        self._start = start
        self._intake = intake
        self._events = events
        self._counts = counts
        self._limit = limit
        self._restart_first_seconds = restart_first_seconds
        self._all = [_Listening(index, listen) for index, listen in enumerate(start.policy.listen)]
        self._here = [each for each in self._all if listener_processes(each.listen) == 0]
        self._keepers: list[asyncio.Task[None]] = []
        self._is_closing = False
        shared = [("relay", self._here)]
        alone = [(f"listener {each.name}", [each]) for each in self._all if each not in self._here]
        for where, together in shared + alone:
            needed = EACH_CLIENT * sum(each.listen.max_connections for each in together)
            if needed > limit:
                events.descriptors_short(
                    where=where, descriptors=limit, needed=needed, connections=limit // EACH_CLIENT
                )

    async def bind(self) -> None:
        """Bind every address.  Raises OSError, with the address in `filename`."""
        for each in self._all:
            try:
                each.bound = await _bind(each.listen, is_shared=each not in self._here)
            except OSError as error:
                raise OSError(error.errno, error.strerror, each.name) from error

    async def start(self) -> None:
        observer = ListenerObserver(self._events, self._counts)
        listens = fitted([each.listen for each in self._here], self._limit)
        for each, listen in zip(self._here, listens, strict=True):
            each.listener = Listener(listen, self._start.hostname, self._intake, observer, files=each.files)
            await each.listener.start(each.bound)
        for each in self._all:
            count = listener_processes(each.listen)
            self._keepers += [asyncio.create_task(self._keep(each)) for _ in range(count)]
            protocol = "SMTP with TLS" if each.listen.tls is Tls.IMPLICIT else "SMTP"
            self._events.listening(listener=each.name, protocol=protocol)
        self._keepers.append(asyncio.create_task(self._intake.keep_looking_for_room()))

    def use(self, index: int, files: ListenerFiles) -> None:
        """Go by other users and another certificate, now and in processes to come."""
        each = self._all[index]
        each.files = files
        if each.listener is not None:
            each.listener.use(files)
        each.order(files.to_order())

    async def tell_owners(self, owners: Callable[[], Iterable[tuple[tuple[str, str], int]]]) -> None:
        """Tell who has how much in the queue, again and again, where some listener asks."""
        asked = [(each, quotas) for each in self._all if (quotas := Quotas(each.listen)).is_any]
        while asked:
            for each, quotas in asked:
                held = quotas.worth_telling(owners())
                if each.listener is not None:
                    each.listener.quotas.told(held)
                each.order({"held": [[*owner, held[owner]] for owner in held]}, is_replaced=True)
            await asyncio.sleep(TELL_SECONDS)

    async def close(self) -> None:
        """Let content in flight finish; a second call does nothing."""
        if self._is_closing:
            return
        self._is_closing = True
        for keeper in self._keepers:
            keeper.cancel()
        listeners = [each.listener.close(CLOSE_SECONDS) for each in self._all if each.listener is not None]
        await asyncio.gather(*listeners, *self._keepers, return_exceptions=True)
        for each in self._all:
            if each.bound is not None:
                each.bound.close()
        self._intake.close()

    async def _keep(self, of: _Listening) -> None:
        loop = asyncio.get_running_loop()
        pause_seconds = self._restart_first_seconds
        is_again = False
        while True:
            began_at = loop.time()
            try:
                await self._run(of, is_again=is_again)
                is_again = True
            except OSError as error:
                # No descriptor, no memory: the next one may find some.
                self._events.fault(where=f"listener {of.name}", error=error)
            is_long = loop.time() - began_at > RESTART_LONGEST_SECONDS
            pause_seconds = (
                self._restart_first_seconds if is_long else min(pause_seconds * 2, RESTART_LONGEST_SECONDS)
            )
            await asyncio.sleep(pause_seconds)

    async def _run(self, of: _Listening, *, is_again: bool) -> None:
        """Start a process, and tell of its end.  Raises OSError where it cannot start."""
        fd = of.bound.fileno() if of.bound is not None else -1
        process = await asyncio.create_subprocess_exec(
            *(self._start.python, "-m", "relay.daemon.listener_process"),
            stdin=PIPE,
            stdout=PIPE,
            pass_fds=[fd],
            limit=MOST_LINE_BYTES,
        )
        if is_again:
            self._events.listener_restarted(listener=of.name, pid=process.pid)
        _order(
            process,
            {
                "policy": self._start.text.decode("utf-8"),
                "path": str(self._start.path),
                "listen": of.index,
                "fd": fd,
                "hostname": self._start.hostname,
                "style": self._start.style,
                "files": of.files and of.files.to_order(),
            },
        )
        of.processes.add(process)
        try:
            code = await self._attend(process)
        except asyncio.CancelledError:
            # The end of its orders is the order to stop: it finishes content in flight and goes.
            _end_orders(process)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS + 2):
                    await self._attend(process)
            if process.returncode is None:
                process.kill()
                await process.wait()
            raise
        finally:
            of.processes.discard(process)
        _end_orders(process)
        self._counts.drop_source(str(process.pid))
        status = f"signal {-code}" if code < 0 else f"exit status {code}"
        self._events.listener_died(listener=of.name, pid=process.pid, status=status)

    async def _attend(self, process: Process) -> int:
        """Collect what a process counts, to its end; return how it ended."""
        if process.stdout is None:
            raise AssertionError("a process without its output")
        try:
            async for line in process.stdout:
                # What a dying process wrote half of is nothing that counts.
                with contextlib.suppress(ValueError):
                    self._counts.add_delta(json.loads(line), str(process.pid))
        except ValueError:
            # A line too long to be counts: whatever it has become, another one does better.
            process.kill()
        return await process.wait()


async def _bind(listen: Listen, *, is_shared: bool) -> socket.socket:
    """Bind an address; where listener processes of a killed sender hold it, wait for their end."""
    until = asyncio.get_running_loop().time() + CLOSE_SECONDS
    while True:
        try:
            return bind(listen)
        except OSError as error:
            if not is_shared or error.errno != errno.EADDRINUSE or asyncio.get_running_loop().time() > until:
                raise
        await asyncio.sleep(BIND_AGAIN_SECONDS)


def _order(process: Process, order: dict[str, Any]) -> None:
    with contextlib.suppress(OSError, RuntimeError):  # it has ended
        if process.stdin is not None:
            process.stdin.write(json.dumps(order).encode() + b"\n")


def _end_orders(process: Process) -> None:
    with contextlib.suppress(OSError, RuntimeError):  # it has ended, and its end was noticed
        if process.stdin is not None:
            process.stdin.close()
