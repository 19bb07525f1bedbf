"""Standard error that nobody waits for: order, gaps, whole lines, and bounded last words."""

import contextlib
import errno
import os
import threading
from collections.abc import Iterator

import pytest

from relay.telemetry.stderr import UnwaitingStream


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for fd in (reading, writing):
        with contextlib.suppress(OSError):  # a test closed it
            os.close(fd)


def read_lines(reading: int, count: int) -> list[str]:
    content = b""
    while content.count(b"\n") < count:
        content += os.read(reading, 65536)
    return content.decode().split("\n")[:-1]


def test_a_gap_stands_where_the_lines_would(pipe: tuple[int, int]) -> None:
    stream = UnwaitingStream(pipe[1], most_held_bytes=100_000)
    stream.tell_gap = lambda count: f"gap {count}"
    line = "x" * 99
    for number in range(3000):
        stream.write(f"{number:05}{line[5:]}\n")
    lost, told, number = stream.lines_lost, 0, 0
    reader = open(pipe[0], closefd=False)  # noqa: SIM115 - the fixture closes the pipe
    while number < 3000:
        said = reader.readline()
        if said.startswith("gap "):
            told += int(said[4:])
            number += int(said[4:])
        else:
            assert int(said[:5]) == number
            number += 1
    stream.write("later\n")

    assert told == lost > 1000
    assert reader.readline() == "later\n"


def test_lines_of_several_threads_stay_whole(pipe: tuple[int, int]) -> None:
    stream = UnwaitingStream(pipe[1])

    def tell(name: str) -> None:
        for _ in range(50):
            stream.write(f"{name * 500}\n")

    threads = [threading.Thread(target=tell, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    lines = read_lines(pipe[0], 150)
    for thread in threads:
        thread.join()

    assert sorted(lines) == sorted([name * 500 for name in "abc"] * 50)


def test_text_without_an_end_waits_for_it(pipe: tuple[int, int]) -> None:
    stream = UnwaitingStream(pipe[1])
    stream.write("one ")
    stream.write("line\nhalf")
    assert read_lines(pipe[0], 1) == ["one line"]
    assert stream.drain()
    assert read_lines(pipe[0], 1) == ["half"]


def test_whoever_shares_it_may_have_made_it_nonblocking(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    stream = UnwaitingStream(pipe[1])
    for number in range(2000):
        stream.write(f"{number:0100}\n")

    assert [int(line) for line in read_lines(pipe[0], 2000)] == list(range(2000))
    assert stream.lines_lost == 0


def test_a_line_that_was_cut_does_not_swallow_the_next(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write = os.write
    script: list[int | OSError] = [3, OSError(errno.ENOSPC, "full")]

    def write(fd: int, content: memoryview) -> int:
        if fd != pipe[1] or not script:
            return real_write(fd, content)
        step = script.pop(0)
        if isinstance(step, OSError):
            raise step
        return real_write(fd, content[:step])

    monkeypatch.setattr("relay.telemetry.stderr.os.write", write)
    stream = UnwaitingStream(pipe[1])
    stream.write("broken\n")
    assert stream.drain()
    stream.write("whole\n")

    assert read_lines(pipe[0], 2) == ["bro", "whole"]
    assert stream.lines_lost == 1


def test_a_reader_that_is_gone_costs_lines_and_nothing_else(pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    stream = UnwaitingStream(pipe[1])
    stream.write("one\ntwo\n")

    assert stream.drain()
    assert stream.lines_lost == 2


def test_last_words_wait_for_a_bounded_time(pipe: tuple[int, int]) -> None:
    stream = UnwaitingStream(pipe[1])
    stream.write("x" * 100_000 + "\n")

    assert not stream.drain(0.01)
    read_lines(pipe[0], 1)
    assert stream.drain()


def test_a_gap_that_cannot_be_worded_is_told_all_the_same(pipe: tuple[int, int]) -> None:
    def fail(_count: int) -> str:
        raise RuntimeError

    stream = UnwaitingStream(pipe[1], most_held_bytes=0)
    stream.tell_gap = fail
    stream.write("never\n")

    assert "1 log lines were dropped" in read_lines(pipe[0], 1)[0]
