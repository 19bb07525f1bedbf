"""Runs the listeners: those in this process, and listener processes, which it restarts.

A listener process shares only the spool with the sender.  Its death breaks its own open sessions, whose
clients keep their messages; RESTART_SECONDS later another process takes its place.  The listening socket is
bound here and inherited, so that no connection is refused meanwhile.
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
from typing import TYPE_CHECKING, Any

from relay.clock import Clock
from relay.daemon.capacity import EACH_CLIENT, fitted, listener_processes
from relay.daemon.listener_observer import ListenerObserver
from relay.daemon.spool_intake import SpoolIntake
from relay.listener.listener_files import ListenerFiles
from relay.listener.quotas import Quotas
from relay.listener.server import Listener, bind
from relay.mail.formats import described
from relay.policy.model import Listen, Policy
from relay.telemetry.events import Events, Level, LogStyle

if TYPE_CHECKING:
    # Listener processes import this module, and need no prometheus_client.
    from relay.telemetry.metrics import Metrics

CLOSE_SECONDS = 10.0
"""Time for content in flight at a stop."""
BIND_AGAIN_SECONDS = 0.1
RESTART_SECONDS = 1.0
"""Between the end of a listener process and the start of the next."""
MOST_COUNTS_BYTES = 16 * 1024 * 1024
"""Of one line of counts from a listener process."""
TELL_SECONDS = 1.0
"""Between two messages to listeners about the owners that reached their quota."""


@dataclass(frozen=True, slots=True)
class Start:
    """The values that a relay, and each of its listener processes, is started with."""

    path: Path
    text: bytes
    policy: Policy
    hostname: str
    style: LogStyle
    level: Level


@dataclass(eq=False, slots=True)
class _Listening:
    """One `listen` of the policy."""

    index: int
    listen: Listen
    bound: socket.socket | None = None
    files: ListenerFiles = field(default_factory=ListenerFiles)
    listener: Listener | None = None
    """If it runs in this process."""
    orders: set[asyncio.StreamWriter] = field(default_factory=set)
    """The stdin of each of its processes."""

    @property
    def name(self) -> str:
        return str(self.listen.address)


class Listening:
    def __init__(
        self,
        start: Start,
        intake: SpoolIntake,
        events: Events,
        metrics: "Metrics",
        *,
        clock: Clock,
        limit: int,
    ) -> None:
        """`limit` is RLIMIT_NOFILE of each process; a policy that allows more clients is logged."""
        self._start, self._intake = start, intake
        self._events, self._metrics = events, metrics
        self._clock, self._limit = clock, limit
        self._all = [_Listening(index, listen) for index, listen in enumerate(start.policy.listen)]
        self._here = [each for each in self._all if listener_processes(each.listen) == 0]
        self._keepers: list[asyncio.Task[None]] = []
        self._is_closing = False
        alone = [(f"listener {each.name}", [each]) for each in self._all if each not in self._here]
        for where, together in [("relay", self._here), *alone]:
            needed = EACH_CLIENT * sum(each.listen.max_connections for each in together)
            if needed > limit:
                fit = limit // EACH_CLIENT
                events.tell(
                    "descriptors_short", where=where, descriptors=limit, needed=needed, connections=fit
                )

    async def bind(self) -> None:
        """Bind every address.  Raises OSError, with the address in `filename`.

        Listener processes of a killed sender may still hold an address: wait CLOSE_SECONDS for their end.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + CLOSE_SECONDS
        for each in self._all:
            while each.bound is None:
                try:
                    each.bound = bind(each.listen)
                except OSError as error:
                    if each in self._here or error.errno != errno.EADDRINUSE or loop.time() > until:
                        raise OSError(error.errno, error.strerror, each.name) from error
                    await asyncio.sleep(BIND_AGAIN_SECONDS)

    async def start(self) -> None:
        self._metrics.know("listener", [each.name for each in self._all])
        observer = ListenerObserver(self._events, self._metrics, self._clock)
        listens = fitted([each.listen for each in self._here], self._limit)
        for each, listen in zip(self._here, listens, strict=True):
            each.listener = Listener(
                listen, self._start.hostname, self._intake, observer, files=each.files, clock=self._clock
            )
            await each.listener.start(each.bound)
        for each in self._all:
            count = listener_processes(each.listen)
            self._keepers += [asyncio.create_task(self._keep_running(each)) for _ in range(count)]
            protocol = "SMTP with TLS" if each.listen.tls == "implicit" else "SMTP"
            self._events.tell("listening", listener=each.name, protocol=protocol)
        self._keepers.append(asyncio.create_task(self._intake.keep_looking_for_room()))

    def use(self, index: int, files: ListenerFiles) -> None:
        """Use other users and another certificate, here, and in processes that run or start later."""
        each = self._all[index]
        each.files = files
        if each.listener is not None:
            each.listener.use(files)
        for orders in each.orders:
            _send_order(orders, files.to_order())

    async def tell_owners(self, owners: Callable[[], Iterable[tuple[tuple[str, str], int]]]) -> None:
        """Tell listeners that have quotas, each TELL_SECONDS, which owners reached theirs."""
        asked = [(each, quotas) for each in self._all if (quotas := Quotas(each.listen)).has_limits]
        while asked:
            for each, quotas in asked:
                full = quotas.owners_at_limit(owners())
                if each.listener is not None:
                    each.listener.quotas.full = full
                for orders in each.orders:
                    # A suspended process reads no orders: more of them would fill our memory.
                    if not orders.transport.get_write_buffer_size():
                        _send_order(orders, {"full": [*full]})
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

    async def _keep_running(self, listening: _Listening) -> None:
        is_again = False
        while True:
            try:
                process = await self._start_process(listening)
            except OSError as error:
                self._events.shortage(where=f"listener {listening.name}", error=described(error))
            else:
                if is_again:
                    self._events.tell("listener_restarted", listener=listening.name, pid=process.pid)
                is_again = True
                code = await self._run_process(listening, process)
                status = f"signal {-code}" if code < 0 else f"exit status {code}"
                self._events.tell("listener_died", listener=listening.name, pid=process.pid, status=status)
            await asyncio.sleep(RESTART_SECONDS)

    async def _start_process(self, listening: _Listening) -> Process:
        fd = listening.bound.fileno() if listening.bound is not None else -1
        module = (sys.executable, "-m", "relay.daemon.listener_process")
        return await asyncio.create_subprocess_exec(
            *module, str(fd), stdin=PIPE, stdout=PIPE, pass_fds=[fd], limit=MOST_COUNTS_BYTES
        )

    async def _run_process(self, listening: _Listening, process: Process) -> int:
        """Send the first order, and add up the counts until the process ends; return its exit status."""
        orders, counted, start = process.stdin, process.stdout, self._start
        if orders is None or counted is None:
            raise AssertionError("a process without pipes")
        first = {"policy": start.text.decode("utf-8"), "path": str(start.path), "listen": listening.index}
        first |= {"hostname": start.hostname, "style": start.style, "level": start.level}
        _send_order(orders, first | {"files": listening.files.to_order()})
        listening.orders.add(orders)
        try:
            await self._add_counts(process.pid, counted)
        finally:
            # The end of stdin is the order to stop: the process finishes content in flight, and exits.
            listening.orders.discard(orders)
            orders.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS + 2):
                    await self._add_counts(process.pid, counted)
                    await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()
            self._metrics.drop_process(listening.name, str(process.pid))
        return await process.wait()

    async def _add_counts(self, pid: int, counted: asyncio.StreamReader) -> None:
        """Add counts until the end of stdout, or a broken line, as a killed process leaves."""
        with contextlib.suppress(ValueError):
            async for line in counted:
                self._metrics.add(json.loads(line), str(pid))


def _send_order(orders: asyncio.StreamWriter, order: dict[str, Any]) -> None:
    with contextlib.suppress(OSError, RuntimeError):  # the process has ended
        orders.write(json.dumps(order).encode() + b"\n")
