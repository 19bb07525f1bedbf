"""The interface of the package: `Throttle` decides what may start now, `View` answers questions meanwhile.

`open_history` opens the history of an account, and `recorded_book` reads it for a command.

Guarantees: in any window of any limit the upstream never sees more than N (the proof is in `limit`).
This holds through crashes, clock steps and edits, and for all processes that use the same history together.
What `reserve` grants is durable before it returns, so before the first byte of MAIL.  An account without
limits is recorded too: the first limit that an edit adds judges all mail before it.

Assumes that its caller
- starts nothing without a grant, and asks the upstream for no more than the grant says;
- ends each transaction by its deadline, when it counts as ended.  A transaction that is settled later is
  charged again, from its real end;
- settles when it saw the reply, or when the upstream hung up before the final dot.  It does not settle a
  transaction that the upstream may continue unheard: that slot ends at its deadline;
- backs off on HistoryError and sends nothing meanwhile, because the account cannot be judged.

Memory knows an end at once.  It becomes durable with the next decision or `flush`.  If a crash loses an end,
its slot stays occupied until the deadline + T, and nothing else is lost.

Threads: any thread may call any method.  The methods that reserve, `flush`, `replan` and `close` exclude each
other, and may wait for the disk and for other processes.  `settle` and the methods of `View` use memory only.
"""

import contextlib
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from relay.clock import Clock
from relay.policy.model import HistoryPlace
from relay.spool.disk.durable import Disk
from relay.throttle.admission import Admission, Request, Reservation, Wait
from relay.throttle.book import Book, book_of
from relay.throttle.file_history import DamagedHistory, FileHistory, read_events, refusal
from relay.throttle.history import Ended, Event, History, Slot
from relay.throttle.limit import Limit, Usage

if TYPE_CHECKING:
    from relay.spool.database.account import RowState

__all__ = ["Reservation", "Throttle", "View", "open_history", "recorded_book"]

Answer = TypeVar("Answer")


class View:
    """Answers questions about an account's limits and its past.

    Answers come from memory and never wait for the disk.  They know other processes as of the last decision.
    Instants at which room opens are boottime and never too late: other processes can only delay them, and
    `reserve` then says so.
    """

    def __init__(self, book: Book, clock: Clock) -> None:
        self.book, self.mutex, self._clock = book, Lock(), clock

    def usage(self, transaction_ns: int = 0, *, of_all: bool = False) -> list[Usage]:
        """Return the usage of each limit, in the order of the limits.

        `of_all`: of a limit with keys, return what counts for every key, not the usage of its fullest key.
        The openings are as if each transaction in flight took `transaction_ns`.
        The search for the fullest of very many keys holds no lock, because a decision would wait for it.
        Another key may become fuller meanwhile.
        """
        now_ns, states = self._clock.boottime_ns(), () if of_all else self.book.limits
        keys = {state.limit.label: state.fullest_key(now_ns) for state in states}
        return self._look(lambda book: book.usage(transaction_ns, keys))

    def judged_by(self, limits: Sequence[Limit]) -> "View":
        """Return a view of the same past by other limits."""
        slots = self._look(Book.slots)
        return View(book_of(slots, self._clock.boottime_ns(), limits), self._clock)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever recorded, as of the last decision or `flush`."""
        return self.book.last_id == 0

    def oldest_leaves_in_ns(self, span_ns: int) -> int | None:
        """Return the time in ns until the oldest end within the last `span_ns` is that old, or None.

        An upstream that names such a window may be counting it.
        """
        return self._look(lambda book: book.oldest_leaves_in_ns(span_ns))

    def _look(self, question: Callable[[Book], Answer]) -> Answer:
        with self.mutex:
            self.book.advance(self._clock.boottime_ns())
            return question(self.book)


class Throttle(View):
    def __init__(
        self,
        history: History,
        limits: Sequence[Limit],
        clock: Clock,
        *,
        transaction_ns: int,
        book: Book | None = None,
    ) -> None:
        super().__init__(book or Book(), clock)
        self._history = history
        self._transaction_ns = transaction_ns
        self._turn = Lock()
        self._ends: list[Event] = []
        """Known here, and not durable yet."""
        self._must_write = False
        """A commit failed.  Nothing may be sent before a commit succeeds, even if the history can be read."""
        self.book.judge_by(limits)

    def reserve(self, requests: Sequence[Request]) -> list[Admission]:
        """Decide requests in their order, all in one transaction with one commit.

        Once a request waits for a limit on all messages, all later ones wait too: no small message overtakes
        a large one.  A request that waits for its own key (`place`), or that is too large, keeps no other
        back.  Raises HistoryError.
        """
        return self._transact(lambda book: book.decide(requests, self._transaction_ns))

    def reserve_connection(self, opening_ns: int) -> Reservation | Wait:
        """Reserve an opening of at most `opening_ns`; settle it when it is over.  Raises HistoryError."""
        return self._transact(lambda book: book.decide_connection(opening_ns))

    def settle(self, reservation: Reservation, ended_at_ns: int) -> None:
        """Note an end (boottime) in memory; from then on the upstream counts no more of the slot."""
        slot = reservation.slot
        at_ns = max(slot.started_at_ns, min(ended_at_ns, self._clock.boottime_ns()))
        # A slot that outlived its deadline is charged again under its id, from its real end.
        end = Ended(slot.id, at_ns) if at_ns <= slot.until_ns else slot.ended(at_ns)
        with self.mutex:
            self._ends.append(end)
            self.book.apply([end])

    def flush(self) -> None:
        """Learn what others recorded, and make ends durable.  Raises HistoryError.

        Call it at the start, so that `View` knows the past, and at the end.  After a failed commit it always
        commits: a history that can be read and not written is not sound.
        """
        self._transact(lambda _: None)

    def replan(self, limits: Sequence[Limit], *, transaction_ns: int | None = None) -> None:
        """Judge the same history by new limits.  Without `transaction_ns` the present one stays.

        Slots that are reserved keep their deadline.
        """
        with self._turn, self.mutex:
            self._transaction_ns = self._transaction_ns if transaction_ns is None else transaction_ns
            self.book.judge_by(limits)

    def close(self) -> None:
        """Close the history; call `flush` first."""
        with self._turn:
            self._history.close()

    def _transact(self, decide: Callable[[Book], Answer]) -> Answer:
        """Learn, decide, commit, and only then apply."""
        mutex, book = self.mutex, self.book
        with self._turn, self._history.transaction() as transaction:
            try:
                with mutex:
                    if transaction.is_whole:
                        book.reset([*transaction.news, *self._ends], transaction.now_ns)
                    else:
                        book.apply(transaction.news)
                        book.advance(transaction.now_ns)
                    answer = decide(book)
                    ends, granted = list(self._ends), list(book.granted)
                self._commit(transaction, ends, granted)
            except BaseException:
                with mutex:
                    book.forget()
                raise
            with mutex:
                book.keep()
                del self._ends[: len(ends)]
        return answer

    def _commit(self, transaction: History, ends: Sequence[Event], granted: Sequence[Slot]) -> None:
        if not ends and not granted and not self._must_write:
            return
        self._must_write = True
        if transaction.is_long:
            transaction.replace([*self._look(Book.events), *granted])
        else:
            transaction.commit([*ends, *granted])
        self._must_write = False


def open_history(
    place: HistoryPlace, disk: Disk, clock: Clock, on_state: "Callable[[RowState], None]" = lambda _: None
) -> History:
    """Touch neither disk nor network yet.  Only a database calls `on_state`."""
    if place.database is None:
        return FileHistory(place.path, disk, clock)
    from relay.spool.database.account import account_of  # noqa: PLC0415 - it needs an extra
    from relay.throttle.postgresql_history import HighWaterMark, PostgresqlHistory  # noqa: PLC0415 - as above

    account = account_of(place.database, place.account, place.host)
    return PostgresqlHistory(account, HighWaterMark(f"{place.path}.mark", disk), clock, on_state=on_state)


def recorded_book(place: HistoryPlace, disk: Disk, clock: Clock) -> Book:
    """Return what a relay that starts now would know of the account's past, without limits.

    Raises PermissionError, and HistoryError if such a relay would send nothing.
    """
    if place.database is not None:
        with contextlib.closing(open_history(place, disk, clock)) as history, history.transaction():
            return book_of(history.news, history.now_ns, ())
    try:
        return book_of(read_events(place.path, disk, clock), clock.boottime_ns(), ())
    except DamagedHistory as damage:
        raise refusal(str(place.path), damage) from damage
