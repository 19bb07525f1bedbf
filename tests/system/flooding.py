"""Strangers that flood a listener, in their own process: `python -m tests.system.flooding KIND PORT`.

Each connection comes from another address of 127/8, as a botnet's would; when it is
closed, another takes its place at once.  Writes a line once the flood is at its full
number, and ends with its stdin.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import count

from tests.system.waiting import HANG_S

Flooding = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_GUESS = b"AUTH PLAIN " + b64encode(b"\0mjd\0guess") + b"\r\n"
_CLIENT_HELLO_BEGUN = bytes.fromhex("1603010200")
_NUMBERS = count()


async def _idle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:  # noqa: ARG001 - a Flooding
    """Say nothing."""
    await reader.read()


async def _noop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send NOOP without end, ahead of the replies."""
    while True:
        writer.write(b"NOOP\r\n" * 1000)
        await writer.drain()
        if not await reader.read(65536):
            return


async def _come_again(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say hello, and leave for another connection."""
    writer.write(b"EHLO flood\r\n")
    await reader.readline()


async def _handshake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Begin a TLS handshake, and say no more."""
    writer.write(b"EHLO flood\r\nSTARTTLS\r\n")
    await reader.readuntil(b"220 2.0.0 ")
    writer.write(_CLIENT_HELLO_BEGUN)
    await reader.read()


async def _trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a line octet by octet, and never its end."""
    lost = asyncio.ensure_future(reader.read())
    while not lost.done():
        writer.write(b"N")
        await writer.drain()
        await asyncio.sleep(0.01)


async def _guess(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Guess passwords."""
    writer.write(b"EHLO flood\r\n")
    while True:
        writer.write(_GUESS)
        if not await reader.read(4096):
            return


KINDS: dict[str, tuple[int, Flooding]] = {
    "idle": (200, _idle),
    "noop": (50, _noop),
    "come-again": (50, _come_again),
    "handshake": (200, _handshake),
    "trickle": (50, _trickle),
    "guess": (50, _guess),
}
"""How many connections at once, and what each does."""


@contextmanager
def flood(kind: str, port: int) -> Iterator[None]:
    """Flood a listener on 127.0.0.1 while in it; at its full number on entry."""
    command = [sys.executable, "-m", "tests.system.flooding", kind, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as flooder:
        assert flooder.stdout is not None
        try:
            assert flooder.stdout.readline() == b"full\n", f"the flood {kind!r} ended by itself"
            yield
            assert flooder.poll() is None, f"the flood {kind!r} ended by itself"
        finally:
            flooder.kill()
            flooder.wait(HANG_S)


async def _connections(port: int, flooding: Flooding, greeted: asyncio.Semaphore) -> None:
    """Hold one connection after the other."""
    while True:
        number = next(_NUMBERS) % (100 * 62_500)
        source = f"127.{number // 62_500 + 1}.{number // 250 % 250}.{number % 250 + 1}"
        writer = None
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
            await reader.readline()
            greeted.release()
            await flooding(reader, writer)
        if writer is not None:
            writer.transport.abort()
        await asyncio.sleep(0)


async def _run(kind: str, port: int) -> None:
    number, flooding = KINDS[kind]
    greeted = asyncio.Semaphore(0)
    holders = [asyncio.create_task(_connections(port, flooding, greeted)) for _ in range(number)]
    for _ in range(number):
        await greeted.acquire()
    sys.stdout.write("full\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for holder in holders:
        holder.cancel()


if __name__ == "__main__":
    # A flood has processors of its own elsewhere; here it should take none from the relay and its client.
    os.nice(10)
    asyncio.run(_run(sys.argv[1], int(sys.argv[2])))
