"""Standard error that nobody waits for: order, and what is lost."""

import contextlib
import os
from collections.abc import Iterator
from typing import TextIO, cast

import pytest

from relay.telemetry.events import Events
from relay.telemetry.stderr import LogStream
from tests.fakes.clock import FakeClock


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for fd in (reading, writing):
        with contextlib.suppress(OSError):  # a test closed it
            os.close(fd)


def test_what_nobody_reads_is_dropped_and_counted(pipe: tuple[int, int]) -> None:
    stream = LogStream(pipe[1], most_held_bytes=100_000)
    events = Events(cast("TextIO", stream), "text", FakeClock())
    for number in range(3000):
        stream.write(f"{number:099}\n")
    lost = stream.lines_lost

    with open(pipe[0], closefd=False) as reader:
        kept = [int(reader.readline()) for _ in range(3000 - lost)]
        assert stream.drain()

    assert kept == sorted(set(kept))
    assert lost > 1000
    assert events.take_lines_lost() == lost


def test_a_reader_that_is_gone_costs_lines_and_nothing_else(pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    stream = LogStream(pipe[1])
    stream.write("one\ntwo\n")

    assert stream.drain()
    assert stream.lines_lost == 2
