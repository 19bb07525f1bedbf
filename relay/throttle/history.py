"""Where the events of one account are kept, in one order for all relays that send through it.

The seam `History`.  A transaction excludes every other writer, on whatever hosts they are.  In it memory
first learns the `news`, then decides by them, then has its events made durable, and only then applies
them.  So nothing assumes that memory is the truth, or that it knows anything: a transaction may give all
events there are (`is_whole`) at any time, and memory then begins anew.

A history that cannot be read or written raises HistoryError, and the account sends nothing: it cannot be
judged.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from relay.throttle.events import Event

NOTHING_SENT = "nothing is sent through this account"


class HistoryError(Exception):
    """The history cannot be read or written, so nothing may be sent: the account fails closed.

    The text is for the operator: which file or database, what is wrong, what to do.
    """


class Transaction(Protocol):
    now_ns: int
    """By the clock of the history.  No event of it is later, and no later transaction is earlier."""
    ahead_ns: int
    """How far that clock may be ahead of this host's boottime, at the most: 0 where it is the same."""
    news: Sequence[Event]
    """What was committed since the last transaction of this process, its own commits left out."""
    is_whole: bool
    """`news` is all that there is, and what memory has is to be forgotten."""
    is_empty: bool
    """Nothing was ever committed."""

    @property
    def is_long(self) -> bool:
        """Whether `replace` in the place of `commit` would make the history much shorter."""

    def commit(self, events: Sequence[Event]) -> None:
        """Make events durable, all or none.  Raises HistoryError: then it is unknown whether they are.

        At most one of `commit` and `replace` takes effect in a transaction: after a `replace` that returned
        False, `commit` follows.
        """

    def replace(self, events: Sequence[Event]) -> bool:
        """Make these events durable in the place of all that there are; False where that has no room.

        Raises HistoryError: then either may be in force.
        """


class History(Protocol):
    """One thread at a time."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Wait for other writers, then exclude them.  Raises HistoryError."""

    def close(self) -> None: ...
