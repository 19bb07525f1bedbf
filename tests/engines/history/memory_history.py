"""An account's history in memory, shared by the senders of one test, fast enough for millions of events.

As a database does, it numbers its commits and stores instants of its own clock, which is ahead of the host's.
"""

import contextlib
from collections.abc import Iterator, Sequence
from threading import Lock

from relay.throttle.history import Event, HistoryError, moved
from tests.fakes.clock import FakeClock


class Kept:
    """The state that all connections share, as a database holds it."""

    def __init__(self, clock: FakeClock, ahead_ns: int = 0, slack_ns: int = 0) -> None:
        self.clock, self.ahead_ns, self.slack_ns = clock, ahead_ns, slack_ns
        """How long the clock's reading takes; its host cannot tell when within that span it was read."""
        self.commits: list[Sequence[Event]] = []
        self.replaced = 0
        """Index of the first commit that counts; a replacement moves it."""
        self.is_failing: str = ""
        """`before` or `after`: the next commit fails at that point of the commit."""
        self.lock = Lock()
        self.transactions = 0


class MemoryHistory:
    def __init__(self, kept: Kept, *, replaces_above: int = 1 << 30) -> None:
        self._kept, self._replaces_above = kept, replaces_above
        self._cursor: int | None = None
        self.now_ns = 0
        self.news: Sequence[Event] = ()
        self.is_whole = self.is_long = False

    @contextlib.contextmanager
    def transaction(self) -> "Iterator[MemoryHistory]":
        kept = self._kept
        with kept.lock:
            kept.transactions += 1
            self.now_ns = kept.clock.boottime_ns() - kept.slack_ns
            self.is_whole = self._cursor is None or self._cursor <= kept.replaced > 0
            first = kept.replaced if self.is_whole else self._cursor
            self.news = [moved(event, -kept.ahead_ns) for commit in kept.commits[first:] for event in commit]
            self._cursor = len(kept.commits)
            self.is_long = len(kept.commits) - kept.replaced > self._replaces_above
            yield self

    def commit(self, events: Sequence[Event]) -> None:
        self._append(events, self._kept.replaced)

    def replace(self, events: Sequence[Event]) -> None:
        self._append(events, len(self._kept.commits))

    def close(self) -> None:
        self._cursor = None

    def _append(self, events: Sequence[Event], first: int) -> None:
        kept = self._kept
        self._fail("before")
        kept.replaced = first
        kept.commits.append([moved(event, kept.ahead_ns + kept.slack_ns) for event in events])
        self._cursor = len(kept.commits)
        self._fail("after")

    def _fail(self, when: str) -> None:
        if self._kept.is_failing == when:
            self._kept.is_failing, self._cursor = "", None
            raise HistoryError("the connection was lost")
