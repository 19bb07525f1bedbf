"""A program of ours in a process of its own, with its standard input and output in our hands.

Guarantees: it has the priority that this process had when its `Starter` was made, whatever
was given up since.  A start that is cancelled leaves nothing running.
Does not: start it again, or know what it says.
"""

import asyncio
import contextlib
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO


class Child:
    """A program that was started.  Its `output` ends when it does."""

    def __init__(self, process: "subprocess.Popen[bytes]", output: asyncio.StreamReader) -> None:
        self.pid = process.pid
        self.output = output
        self._process = process

    @property
    def has_ended(self) -> bool:
        """Return whether it was seen to have ended."""
        return self._process.returncode is not None

    def end_orders(self) -> None:
        """End its standard input."""
        with contextlib.suppress(OSError):  # it has ended
            _pipe(self._process.stdin).close()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    async def wait(self) -> int:
        """Return its exit status, or of a signal that ended it the negative number, once it has ended."""
        return await asyncio.to_thread(self._process.wait)


class Starter:
    """Starts programs from a thread of its own: a program has the priority of the thread that starts it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="start")
        # Now, not with the first program: a thread has the priority of the one that starts it, too.
        self._thread.submit(lambda: None).result()

    async def start(self, command: Sequence[str], orders: bytes, fds: Sequence[int]) -> Child:
        """Start a program that inherits some descriptors, and give it its orders.  Raises OSError."""
        loop = asyncio.get_running_loop()
        starting = loop.run_in_executor(self._thread, _start, command, fds)
        output = asyncio.StreamReader()
        try:
            process = await asyncio.shield(starting)
            # Long ones wait until it reads them.
            await asyncio.to_thread(_tell, process, orders)
            await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(output), _pipe(process.stdout))
        except BaseException:
            await asyncio.wait([starting])
            if starting.exception() is None:
                await asyncio.to_thread(_end, starting.result())
            raise
        return Child(process, output)

    def close(self) -> None:
        """Start nothing more."""
        self._thread.shutdown()


def _start(command: Sequence[str], fds: Sequence[int]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=fds)  # noqa: S603 - ours


def _tell(process: "subprocess.Popen[bytes]", orders: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # it has ended, and whoever waits for that sees it
        _pipe(process.stdin).write(orders)
        _pipe(process.stdin).flush()


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    with contextlib.suppress(OSError):  # what was not read of its orders
        _pipe(process.stdin).close()
    _pipe(process.stdout).close()
    process.wait()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise AssertionError("a process was started without its pipes")
    return pipe
