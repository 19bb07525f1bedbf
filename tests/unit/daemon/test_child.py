"""Programs of ours in processes of their own: what they are told and say, how they end, who goes first."""

import asyncio
import errno
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from relay.daemon.child import Child, Starter
from relay.daemon.loops import STEPS, give_way
from tests.proofs.peers.processes import children_of
from tests.proofs.peers.waiting import HANG_S, wait_until

LONG = b"x" * 1_000_000
"""More than a pipe holds."""
ECHO = "import sys; sys.stdout.write(sys.stdin.read()[::-1])"
PRIORITY = "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"


async def started(starter: Starter, program: str, orders: bytes = b"") -> Child:
    """Return a Python program that was started."""
    return await starter.start([sys.executable, "-S", "-c", program], orders, [])


async def output_of(child: Child) -> bytes:
    """Return all that a program says until it ends."""
    async with asyncio.timeout(HANG_S):
        return b"".join([line async for line in child.lines()])


def descriptors() -> list[Path]:
    """Return what this process has open."""
    return sorted(Path("/proc/self/fd").iterdir())


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


async def test_a_program_inherits_the_descriptors_that_it_is_given(tmp_path: Path) -> None:
    starter = Starter()
    with (tmp_path / "inherited").open("wb") as file:
        program = f"import os; os.write({file.fileno()}, b'from there')"
        child = await starter.start([sys.executable, "-S", "-c", program], b"", [file.fileno()])
        assert await child.wait() == 0

    assert (tmp_path / "inherited").read_bytes() == b"from there"
    child.end_orders()
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


async def test_a_program_that_is_stopped_fills_no_memory_with_news() -> None:
    starter = Starter()
    count = "import sys; sys.stdout.write(str(len(sys.stdin.read())))"
    child = await started(starter, count, b"first\n")
    os.kill(child.pid, signal.SIGSTOP)
    for _ in range(100):
        child.tell(LONG)
        await asyncio.sleep(0)
    child.order(b"last\n")
    os.kill(child.pid, signal.SIGCONT)
    child.end_orders()

    # What the socket took at once, and the first that it did not.
    assert len(b"first\nlast\n") + len(LONG) <= int(await output_of(child)) <= 10 * len(LONG)
    assert await child.wait() == 0
    child.close()
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


async def test_a_program_whose_end_cannot_be_seen_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_left(_pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    starter = Starter()
    before = children_of(os.getpid()), len(descriptors())
    monkeypatch.setattr(os, "pidfd_open", none_left)

    with pytest.raises(OSError, match="Too many open files"):
        await started(starter, "import signal; signal.pause()")

    assert (children_of(os.getpid()), len(descriptors())) == before
    starter.close()


async def test_a_start_that_is_cancelled_leaves_nothing_running(tmp_path: Path) -> None:
    starter = Starter()
    before = set(children_of(os.getpid()))
    # Whatever of it is done by then; it never reads its orders.
    for turns in range(12):
        starting = asyncio.create_task(started(starter, "import signal; signal.pause()", LONG))
        if turns == 0:
            await asyncio.to_thread(wait_until, lambda: set(children_of(os.getpid())) > before)
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        if not starting.cancelled():  # it was through
            child = starting.result()
            child.kill()
            assert await child.wait() == -signal.SIGKILL
            child.close()
        assert set(children_of(os.getpid())) == before
    failing = asyncio.create_task(starter.start([str(tmp_path / "none")], b"", []))
    await asyncio.sleep(0)
    failing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await failing
    starter.close()


@pytest.mark.parametrize("new_event_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_programs_that_end_leave_no_descriptor(
    new_event_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def lives() -> list[int]:
        starter = Starter()
        seen = []
        for _ in range(5):
            child = await started(starter, "print('here')", LONG)
            assert await output_of(child) == b"here\n"
            await child.wait()
            child.close()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            seen.append(len(descriptors()))
        starter.close()
        return seen

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        first, *others = runner.run(lives())

    assert others == [first] * 4


def test_giving_way_spares_what_the_starter_starts() -> None:
    seen: dict[str, int] = {}

    async def relaying() -> None:
        starter = Starter()
        seen["before"] = os.getpriority(os.PRIO_PROCESS, 0)
        give_way()
        seen["after"] = os.getpriority(os.PRIO_PROCESS, 0)
        seen["thread"] = await asyncio.to_thread(os.getpriority, os.PRIO_PROCESS, 0)
        later = Starter()
        for name, each in (("listener", starter), ("other", later)):
            child = await started(each, PRIORITY)
            seen[name] = int(await output_of(child))
            await child.wait()
            child.close()
            each.close()

    # In a thread, which is all that gives way: the tests that follow should not.
    thread = threading.Thread(target=lambda: asyncio.run(relaying()))
    thread.start()
    thread.join()

    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert seen["before"] == before == seen["listener"]
    assert seen["after"] == seen["thread"] == seen["other"] == min(before + STEPS, 19)


def test_where_nobody_may_give_way_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(_which: int, _who: int, _priority: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", forbidden)
    before = os.getpriority(os.PRIO_PROCESS, 0)

    give_way()

    assert os.getpriority(os.PRIO_PROCESS, 0) == before
