"""Programs of ours in processes of their own: what they are told and say, how they end, who goes first."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from relay.daemon.child import Child, Starter
from tests.system.waiting import HANG_S

LONG = b"x" * 1_000_000
"""More than a pipe holds."""
ECHO = "import sys; sys.stdout.write(sys.stdin.read()[::-1])"


async def started(starter: Starter, program: str, orders: bytes = b"") -> Child:
    """Return a Python program that was started."""
    return await starter.start([sys.executable, "-S", "-c", program], orders, [])


async def output_of(child: Child) -> bytes:
    """Return all that a program says until it ends."""
    async with asyncio.timeout(HANG_S):
        return b"".join([line async for line in child.lines()])


async def test_a_program_has_its_orders_and_ends_with_them() -> None:
    starter = Starter()
    child = await started(starter, ECHO, b"sredro")

    seen = [child.has_ended]
    child.end_orders()

    assert await output_of(child) == b"orders"
    assert await child.wait() == 0
    assert [*seen, child.has_ended] == [False, True]
    child.close()
    starter.close()


async def test_a_program_that_reads_no_orders_has_ended() -> None:
    starter = Starter()
    child = await started(starter, "raise SystemExit(3)", LONG)

    assert await output_of(child) == b""
    assert await child.wait() == 3
    child.tell(b"news\n")
    child.end_orders()
    child.close()
    child.tell(b"news\n")
    await asyncio.sleep(0)
    child.tell(b"news\n")
    starter.close()


async def test_a_program_that_is_killed_ended_by_that_signal() -> None:
    starter = Starter()
    child = await started(starter, "import signal; signal.pause()")

    child.kill()

    assert await child.wait() == -signal.SIGKILL
    child.end_orders()
    child.close()
    starter.close()


async def test_what_cannot_be_started_raises_and_the_next_one_starts(tmp_path: Path) -> None:
    starter = Starter()
    with pytest.raises(FileNotFoundError):
        await starter.start([str(tmp_path / "none")], b"", [])

    child = await started(starter, "print('here')")
    assert await output_of(child) == b"here\n"
    await child.wait()
    child.close()
    starter.close()
