"""Standard error that nobody waits for: order, gaps, whole lines, and bounded last words."""

import contextlib
import os
from collections.abc import Iterator

import pytest

from relay.telemetry.stderr import LogStream


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for fd in (reading, writing):
        with contextlib.suppress(OSError):  # a test closed it
            os.close(fd)


def test_a_gap_stands_where_the_lines_would(pipe: tuple[int, int]) -> None:
    stream = LogStream(pipe[1], most_held_bytes=100_000)
    stream.tell_gap = "gap {}".format
    line = "x" * 99
    for number in range(3000):
        stream.write(f"{number:05}{line[5:]}\n")
    lost, number, seen = stream.lines_lost, 0, 0
    reader = open(pipe[0], closefd=False)  # noqa: SIM115 - the fixture closes the pipe

    def next_line() -> str:
        nonlocal number
        while (said := reader.readline()).startswith("gap "):
            number += int(said[4:])
        return said

    while seen < 3000 - lost:
        assert int(next_line()[:5]) == number
        number, seen = number + 1, seen + 1
    stream.write("later\n")

    assert next_line() == "later\n"
    assert number == 3000
    assert lost > 1000


def test_a_reader_that_is_gone_costs_lines_and_nothing_else(pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    stream = LogStream(pipe[1])
    stream.write("one\ntwo\n")

    assert stream.drain()
    assert stream.lines_lost == 2
