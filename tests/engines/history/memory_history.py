"""An account's history in memory, shared by the senders of one test, fast enough for millions of events.

As a database does, it numbers its commits and has its own clock, which is ahead of the host's.
"""

import contextlib
from collections.abc import Iterator, Sequence
from random import Random
from threading import Lock

from relay.throttle.history import Event, HistoryError
from tests.fakes.clock import FakeClock


class Kept:
    """The state that all connections share, as a database holds it."""

    def __init__(
        self,
        clock: FakeClock,
        random: Random | None = None,
        ahead_ns: int = 0,
        *,
        slack_ns: int = 0,
        refuses_to_replace: bool = True,
    ) -> None:
        self.clock, self.random, self.ahead_ns = clock, random or Random(0), ahead_ns
        self.slack_ns = slack_ns
        """How far the reported `ahead_ns` exceeds the true lead; models a network's round trip."""
        self.commits: list[Sequence[Event]] = []
        self.replaced = 0
        """Index of the first commit that counts; a replacement moves it."""
        self.is_failing: str = ""
        """`before` or `after`: the next commit fails at that point of the commit."""
        self.lock = Lock()
        self.transactions = 0
        self.refuses_to_replace = refuses_to_replace
        """If true, one replacement in five is refused, as if there were no room."""


class MemoryHistory:
    def __init__(self, kept: Kept, *, replaces_above: int = 1 << 30) -> None:
        self._kept, self._replaces_above = kept, replaces_above
        self._cursor: int | None = None
        self.now_ns = self.ahead_ns = 0
        self.news: Sequence[Event] = ()
        self.is_whole = self.is_long = False

    @contextlib.contextmanager
    def transaction(self) -> "Iterator[MemoryHistory]":
        kept = self._kept
        with kept.lock:
            kept.transactions += 1
            self.now_ns = kept.clock.boottime_ns() + kept.ahead_ns
            self.ahead_ns = kept.ahead_ns + kept.slack_ns
            self.is_whole = self._cursor is None or self._cursor <= kept.replaced > 0
            first = kept.replaced if self.is_whole else self._cursor
            self.news = [event for commit in kept.commits[first:] for event in commit]
            self._cursor = len(kept.commits)
            self.is_long = len(kept.commits) - kept.replaced > self._replaces_above
            yield self

    def commit(self, events: Sequence[Event]) -> None:
        self._fail("before")
        self._kept.commits.append(tuple(events))
        self._cursor = len(self._kept.commits)
        self._fail("after")

    def replace(self, events: Sequence[Event]) -> bool:
        if self._kept.refuses_to_replace and self._kept.random.random() < 0.2:
            return False
        self._fail("before")
        self._kept.replaced = len(self._kept.commits)
        self._kept.commits.append(tuple(events))
        self._cursor = len(self._kept.commits)
        self._fail("after")
        return True

    def close(self) -> None:
        self._cursor = None

    def _fail(self, when: str) -> None:
        if self._kept.is_failing == when:
            self._kept.is_failing, self._cursor = "", None
            raise HistoryError("the connection was lost")
