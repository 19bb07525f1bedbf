"""Two calls on one PostgreSQL server, each held before any of its statements while the other one goes on."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg

from tests.fakes.cut_line import CutLine

ALL = 1_000
"""More than any call has."""
Call = Callable[[], object]
Pair = tuple[Call, Call]
BLOCKED = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


class Held:
    """Lets so many statements of a line through, and no more."""

    def __init__(self, line: CutLine) -> None:
        self._changed = threading.Condition()
        self._let, self.sent = ALL, 0
        self._calling = threading.Thread()
        line.before = self._wait

    @property
    def is_moving(self) -> bool:
        return self._calling.is_alive() and self.sent <= self._let

    def begin(self, call: Call, statements: int) -> None:
        self._let, self.sent = statements, 0
        self._calling = threading.Thread(target=call)
        self._calling.start()

    def go_on(self) -> None:
        with self._changed:
            self._let = ALL
            self._changed.notify_all()

    def join(self) -> None:
        self._calling.join()

    def _wait(self) -> None:
        with self._changed:
            self.sent += 1
            self._changed.wait_for(lambda: self.sent <= self._let)


def interleaved(lines: tuple[CutLine, CutLine], url: str, pair: Callable[[], Pair]) -> Iterator[None]:
    """Yield after each pair of points at which two calls can be held.

    `pair` makes both anew.  The first call goes as far as it is let, then the second, until it is held or has
    to wait for the first; then the first goes on to its end, or until it has to wait, and then the second.
    """
    one, other = map(Held, lines)
    with ExitStack() as closing:
        watching = closing.enter_context(psycopg.connect(url, autocommit=True))

        def moved(held: Held) -> None:
            while held.is_moving and watching.execute(BLOCKED).fetchone() is None:
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
