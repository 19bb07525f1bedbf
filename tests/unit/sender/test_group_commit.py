"""Calls in a thread of their own, each with its own end, one after the other; and many values in one call."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from relay.sender.host import Batch, CallThread


async def test_each_call_has_its_own_result_or_error() -> None:
    thread = CallThread("calls")

    def fail() -> int:
        raise OSError("no room")

    first, second, third = thread.call(lambda: 1), thread.call(fail), thread.call(lambda: 3)

    assert await first == 1
    with pytest.raises(OSError, match="no room"):
        await second
    assert await third == 3
    thread.close()


async def test_a_call_cancelled_before_its_turn_is_not_made() -> None:
    thread, gate, made = CallThread("calls"), threading.Event(), list[str]()

    def wait() -> None:
        gate.wait()
        made.append("first")

    first = thread.call(wait)
    second = thread.call(lambda: made.append("second"))

    second.cancel()
    gate.set()
    await first
    thread.close()

    assert made == ["first"]


async def test_a_call_whose_caller_is_gone_is_made_to_its_end() -> None:
    thread, began, gate, made = CallThread("calls"), threading.Event(), threading.Event(), list[str]()
    wrong: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: wrong.append(context))

    def wait() -> None:
        began.set()
        gate.wait()
        made.append("first")

    first = thread.call(wait)
    await asyncio.to_thread(began.wait)

    first.cancel()
    gate.set()
    assert await thread.call(lambda: 2) == 2

    assert (made, wrong) == (["first"], [])
    thread.close()


async def test_a_closed_thread_has_done_all_and_takes_no_more() -> None:
    thread, made = CallThread("calls"), list[int]()
    for number in range(10):
        thread.call(lambda number=number: made.append(number))  # type: ignore[misc]  # a default binds it

    thread.close()

    assert made == list(range(10))
    with pytest.raises(RuntimeError, match="closed"):
        thread.call(lambda: 1)


async def test_what_comes_in_one_turn_of_the_loop_is_one_call() -> None:
    thread, made = CallThread("calls"), list[list[int]]()

    def commit(values: Sequence[int]) -> list[int | BaseException]:
        made.append(list(values))
        return list(values)

    batch: Batch[int, int] = Batch(commit, thread)
    assert await asyncio.gather(*(batch.submit(number) for number in range(10))) == list(range(10))
    assert made == [list(range(10))]
    thread.close()
