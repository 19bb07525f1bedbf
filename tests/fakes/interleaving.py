"""Runs two calls on one PostgreSQL server, and holds each before any of its statements in turn."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg

from tests.fakes.cut_line import CutLine

ALL = 1_000
"""More statements than any call has."""
MOMENT_S = 0.005
"""How long a call may move before the server is asked whether it waits for a lock."""
Call = Callable[[], object]
Pair = tuple[Call, Call]
BLOCKED = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


class Held:
    """Lets a number of statements pass a line and holds the next one."""

    def __init__(self, line: CutLine) -> None:
        self._changed = threading.Condition()
        self._let, self.sent, self._is_over = ALL, 0, True
        self._calling = threading.Thread()
        line.before = self._wait

    def begin(self, call: Call, statements: int) -> None:
        self._let, self.sent, self._is_over = statements, 0, False
        self._calling = threading.Thread(target=self._run, args=(call,))
        self._calling.start()

    def has_stopped(self) -> bool:
        """Return whether the call is held or over; wait for that a moment."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_over or self.sent > self._let, MOMENT_S)

    def go_on(self) -> None:
        with self._changed:
            self._let = ALL
            self._changed.notify_all()

    def join(self) -> None:
        self._calling.join()

    def _run(self, call: Call) -> None:
        try:
            call()
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def _wait(self) -> None:
        with self._changed:
            self.sent += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.sent <= self._let)


def interleaved(lines: tuple[CutLine, CutLine], url: str, pair: Callable[[], Pair]) -> Iterator[None]:
    """Yield after each pair of points at which the two calls can be held.

    `pair` makes both calls anew. The first call runs until it is held. The second runs until it is held or
    waits for a lock of the first. Then the first ends, or runs until it waits for a lock, then the second.
    """
    one, other = map(Held, lines)
    with ExitStack() as closing:
        watching = closing.enter_context(psycopg.connect(url, autocommit=True))

        def moved(held: Held) -> None:
            while not held.has_stopped() and watching.execute(BLOCKED).fetchone() is None:
                pass

        for first in itertools.count():
            for second in itertools.count():
                calls = pair()
                for held, call, statements in zip((one, other), calls, (first, second), strict=True):
                    held.begin(call, statements)
                    moved(held)
                one.go_on()
                moved(one)
                other.go_on()
                one.join()
                other.join()
                yield
                if other.sent <= second:
                    break
            if one.sent <= first:
                break
