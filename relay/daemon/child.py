"""A program of ours in a process of its own, with its standard input and output in our hands.

Guarantees: the program has the priority that this process had when its `Starter` was made.
A cancelled start leaves nothing running.  Only the starter's own thread is used, so a start
does not wait for the loop's threads.
Assumes: Linux 5.3 (pidfd_open).  Does not: restart the program, or read its output.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Sequence

from relay.spool.disk.threads import started


class Child:
    """A program that was started.  To be closed once it has ended."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        pidfd: int,
        output: asyncio.StreamReader,
        orders: asyncio.StreamWriter,
    ) -> None:
        self.pid = process.pid
        self._process = process
        self._pidfd = pidfd
        self._output = output
        self._orders = orders

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    async def lines(self) -> AsyncIterator[bytes]:
        """End when the program ends or closes its output.  Raises ValueError for a line too long."""
        # Reset: it ended with orders that it had not read.
        with contextlib.suppress(ConnectionError):
            async for line in self._output:
                yield line

    def order(self, line: bytes) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # it has ended
            self._orders.write(line)

    def tell(self, line: bytes) -> None:
        """Order what a later line takes the place of: not while it has yet to read an earlier one."""
        # A program that is stopped reads none, and they would fill the memory.
        with contextlib.suppress(OSError, RuntimeError):  # it has ended
            if self._orders.transport.get_write_buffer_size() == 0:
                self._orders.write(line)

    def end_orders(self) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # it has ended, and its end was noticed
            self._orders.write_eof()

    def kill(self) -> None:
        self._process.kill()

    async def wait(self) -> int:
        """Return its exit status, or the negative number of the signal that ended it."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def note() -> None:
            if not ended.done():  # it stays readable
                ended.set_result(None)

        loop.add_reader(self._pidfd, note)
        try:
            await ended
        finally:
            loop.remove_reader(self._pidfd)
        return self._process.wait()

    def close(self) -> None:
        self._orders.transport.abort()
        os.close(self._pidfd)


class Starter:
    """Starts programs from a thread of its own: a program has the priority of the thread that starts it."""

    def __init__(self) -> None:
        # Start the thread now: it inherits the priority of the thread that starts it.
        self._thread = started(1, "start")

    async def start(self, command: Sequence[str], orders: bytes, fds: Sequence[int]) -> Child:
        """Let a program inherit descriptors, and give it its orders.  Raises OSError."""
        starting = asyncio.ensure_future(self._start(command, orders, fds))
        try:
            # It takes a moment, and what is done of it by half cannot be undone.
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait([starting])
            if starting.exception() is None:
                child = starting.result()
                child.kill()
                await child.wait()
                child.close()
            raise

    def close(self) -> None:
        self._thread.shutdown()

    async def _start(self, command: Sequence[str], orders: bytes, fds: Sequence[int]) -> Child:
        # A socket, not pipes: uvloop closes the descriptor of a pipe, and then its file object does
        # so again, when that number may be another file's.
        ours, theirs = socket.socketpair()
        with theirs:
            starting = asyncio.get_running_loop().run_in_executor(
                self._thread, _start, command, theirs.fileno(), fds
            )
            try:
                process, pidfd = await starting
            except OSError:
                ours.close()
                raise
        output, writer = await asyncio.open_unix_connection(sock=ours)
        writer.write(orders)
        return Child(process, pidfd, output, writer)


def _start(command: Sequence[str], theirs: int, fds: Sequence[int]) -> "tuple[subprocess.Popen[bytes], int]":
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, pass_fds=fds)  # noqa: S603 - ours
    try:
        return process, os.pidfd_open(process.pid)
    except OSError:
        process.kill()
        process.wait()
        raise
