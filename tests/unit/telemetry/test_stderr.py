"""Standard error that nobody waits for: order, gaps, whole lines, and bounded last words."""

import contextlib
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

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
    # Told without a line behind it: nothing may come for hours.
    said = reader.readline()
    assert said == f"gap {3000 - number}\n"
    assert lost > 1000
    stream.write("later\n")
    assert reader.readline() == "later\n"


def test_words_without_an_end_are_written_at_the_end_and_bounded(pipe: tuple[int, int]) -> None:
    stream = LogStream(pipe[1])
    stream.write("x" * 70_000)
    with open(pipe[0], closefd=False) as reader:
        assert len(reader.readline()) == 70_001
        stream.write("last words")
        assert stream.drain()
        assert reader.readline() == "last words\n"


def test_a_line_behind_a_torn_one_begins_as_a_line(tmp_path: Path) -> None:
    """A full disk takes a part of a line."""
    path = tmp_path / "log"
    with path.open("wb") as file:
        stream = LogStream(file.fileno())
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (12, before[1]))
        try:
            stream.write("first\nsecond line\n")
            assert stream.drain()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, ignored)
        stream.write("third\n")
        assert stream.drain()
    assert path.read_text().splitlines() == ["first", "second", "third"]
    assert stream.lines_lost == 1


def test_a_reader_that_is_gone_costs_lines_and_nothing_else(pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    stream = LogStream(pipe[1])
    stream.write("one\ntwo\n")

    assert stream.drain()
    assert stream.lines_lost == 2
