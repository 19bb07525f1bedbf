"""Calls in a thread of their own, one after the other; and many values in one call, each with its own end."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from relay.sender.host import Batch, CallThread


async def test_what_comes_in_one_turn_of_the_loop_is_one_call_and_each_has_its_own_end() -> None:
    thread, made = CallThread("calls"), list[list[int]]()

    def commit(values: Sequence[int]) -> list[int | BaseException]:
        made.append(list(values))
        return [OSError("no room") if value == 3 else value for value in values]

    batch: Batch[int, int] = Batch(commit, thread)
    ends = await asyncio.gather(*(batch.submit(number) for number in range(10)), return_exceptions=True)
    assert isinstance(ends.pop(3), OSError)
    assert ends == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert made == [list(range(10))]
    thread.close()


async def test_what_was_submitted_is_done_though_its_caller_is_gone_and_others_hear_of_theirs() -> None:
    thread, gate, made = CallThread("calls"), threading.Event(), list[int]()

    def commit(values: Sequence[int]) -> list[int | BaseException]:
        gate.wait()
        made.extend(values)
        return list(values)

    batch: Batch[int, int] = Batch(commit, thread)
    gone, other = batch.submit(1), batch.submit(2)
    await asyncio.sleep(0)
    gone.cancel()
    gate.set()
    assert await other == 2
    assert made == [1, 2]
    thread.close()
    with pytest.raises(RuntimeError):
        await batch.submit(3)
