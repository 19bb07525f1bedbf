"""The door of the room: what may start now, when to ask again, and what can be asked meanwhile.

Guarantees: in any window of any limit the upstream never sees more than N (the proof is in `limit_state`);
through crashes, clock steps and edits, and together with every other process that uses the same history.
What `reserve` grants is durable before it returns, so before the first byte of MAIL.  An account without
limits is recorded too: the first limit that an edit gives it judges all that went before.

Assumes that its caller
- starts nothing without a grant, and asks the upstream for no more than it grants;
- ends each transaction within its duration, from which on it counts as ended; one that is settled later is
  charged once more from its real end;
- settles when the reply was seen, or the upstream hung up before the final dot; where the transaction may go
  on unheard, the slot ends at its deadline;
- backs off on HistoryError, and sends nothing meanwhile: the account cannot be judged.

An end is known here at once and becomes durable with the next decision or `flush`; one that a crash takes
wastes the slot until its deadline + T, and nothing else.

Threads: every method may be called from any.  `reserve`, `flush`, `replan` and `close` take turns and may
wait for the disk and for other processes; `settle` and the questions of `View` are memory only.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Lock
from typing import TypeVar

from relay.clock import Clock
from relay.throttle.admission import Admission, Request, Reservation, TooLarge, Wait
from relay.throttle.audit import Audit, audit
from relay.throttle.book import Book
from relay.throttle.history import Ended, Event, History, HistoryTransaction, Slot
from relay.throttle.limit import Limit
from relay.throttle.limit_state import Limited, Usage

__all__ = ["TRANSACTION_NS", "Reservation", "Throttle", "View"]

TRANSACTION_NS = 30 * 60 * 1_000_000_000
"""The longest transaction: 10 minutes for the reply to the final dot (RFC 5321, 4.5.3.2.6), and the rest."""

Answer = TypeVar("Answer")


class View:
    """What can be asked of an account's limits and of its past.

    Answers come from memory, so they know other processes as of the last decision; none waits for
    the disk.  An instant at which something opens is boottime, and never later than the truth: other
    processes can only make it later, and `reserve` will say so.
    """

    def __init__(self, book: Book, clock: Clock) -> None:
        self.book, self.mutex, self._clock = book, Lock(), clock
        self.ahead_ns = self.least_ahead_ns = 0
        """How far the history's clock was ahead of boottime at the last transaction, at most and at least."""

    def usage(self) -> list[Usage]:
        """Keep the order of the limits.

        The fullest key of very many is looked for without the lock, for which a decision would wait: another
        one may become fuller meanwhile.
        """
        now_ns = self._look(lambda book: book.now_ns)
        keys = {state.label: state.fullest_key(now_ns) for state in self.book.limits}
        usages = self._look(
            lambda book: [state.usage(book.now_ns, keys.get(state.label)) for state in book.limits]
        )
        return [replace(usage, opens_at_ns=self._boottime_of(usage.opens_at_ns)) for usage in usages]

    def limited(
        self, transaction_ns: int, limits: Sequence[Limit] | None = None, guard_ns: int | None = None
    ) -> tuple[Limited, ...]:
        """Return what occupies each limit; with `limits`, each of those after a `replan`."""
        return self._look(lambda book: book.limited(transaction_ns, limits, guard_ns))

    def leaves_in_ns(self, span_ns: int) -> int | None:
        """Nanoseconds until the oldest end of the last `span_ns` is that old; None without one.

        An upstream that speaks of such a window may be counting it.
        """
        return self._look(lambda book: book.leaves_in_ns(span_ns))

    def audit(self) -> Audit:
        """Count anew what each limit held at most."""
        return audit(*self._look(lambda book: (book.slots(), book.judged)))

    def _boottime_of(self, at_ns: int) -> int:
        return at_ns - self.ahead_ns

    def _look(self, question: Callable[[Book], Answer]) -> Answer:
        """Ask as of now, by the history's clock as far as that is known: never too late."""
        with self.mutex:
            self.book.advance(self._clock.boottime_ns() + self.least_ahead_ns)
            return question(self.book)


class Throttle(View):
    def __init__(
        self,
        history: History,
        limits: Sequence[Limit],
        guard_ns: int | None,
        clock: Clock,
        *,
        transaction_ns: int = TRANSACTION_NS,
        book: Book | None = None,
    ) -> None:
        """`guard_ns` None: 1 % of each period, at most a second."""
        super().__init__(book or Book(), clock)
        self._history = history
        self._transaction_ns = transaction_ns
        self._turn = Lock()
        self._ends: list[Event] = []
        """What is known here and not durable yet."""
        self._must_write = False
        """A commit failed.  Nothing may be sent before one succeeds, even if the history can be read."""
        self._has_begun = False
        self.book.judge_by(limits, guard_ns)

    def reserve(self, requests: Sequence[Request]) -> list[Admission]:
        """Decide requests in their order, all in one transaction with one commit.

        Once a request has to wait for what all need, so do all behind it: no small message overtakes a
        large one.  A request that waits in a `place` of its own, or is too large to go at all, keeps back
        none.  Raises HistoryError.
        """
        return self._transact(lambda book: book.decide(requests, self._transaction_ns))

    def reserve_connection(self, opening_ns: int) -> Reservation | Wait:
        """`opening_ns`: the longest opening.  Settle once it is ready or failed.  Raises HistoryError."""
        (answer,) = self._transact(lambda book: [book.decide_connection(opening_ns)])
        if isinstance(answer, TooLarge):
            raise TypeError("a connection has no size")
        return answer

    def settle(self, reservation: Reservation, ended_at_ns: int) -> None:
        """Note an end (boottime), in memory: from then on the upstream counts nothing more of it."""
        ended_at_ns = max(reservation.reserved_at_ns, min(ended_at_ns, self._clock.boottime_ns()))
        slot = reservation.slot
        with self.mutex:
            at_ns = ended_at_ns + self.ahead_ns
            # One that outlived its deadline is the same slot once more, from its real end.
            end = Ended(slot.id, at_ns) if at_ns <= slot.until_ns else slot.ended(at_ns)
            self._ends.append(end)
            self.book.apply([end])

    def flush(self) -> None:
        """Learn what others recorded, and make ends durable.  Raises HistoryError.

        To be called at the start, for the questions to know the past, and at the end.  After a commit that
        failed it commits in any case: a history that can be read and not written is not sound.
        """
        self._transact(lambda _: [])

    def replan(
        self, limits: Sequence[Limit], guard_ns: int | None, *, transaction_ns: int | None = None
    ) -> None:
        """Judge the same history by new numbers; `transaction_ns` None: as before.

        What was reserved keeps its deadline.
        """
        with self._turn, self.mutex:
            self._transaction_ns = self._transaction_ns if transaction_ns is None else transaction_ns
            self.book.judge_by(limits, guard_ns)

    def has_begun(self) -> bool:
        """Return True once, if there was no history and one was begun: nothing before it is known."""
        has_begun, self._has_begun = self._has_begun, False
        return has_begun

    def close(self) -> None:
        """`flush` first."""
        with self._turn:
            self._history.close()

    def _transact(self, decide: Callable[[Book], Sequence[Admission]]) -> list[Admission]:
        """Learn, decide, commit, and only then apply."""
        mutex, book = self.mutex, self.book
        with self._turn, self._history.transaction() as transaction:
            try:
                with mutex:
                    self._learn(transaction)
                    answers = decide(book)
                    ends, granted = list(self._ends), list(book.granted)
                self._commit(transaction, ends, granted)
            except BaseException:
                with mutex:
                    book.forget()
                raise
            with mutex:
                book.forget()
                book.apply(granted)
                del self._ends[: len(ends)]
        return [self._here(each) for each in answers]

    def _here(self, answer: Admission) -> Admission:
        """Tell an answer in this host's time."""
        match answer:
            case Reservation():
                return answer._replace(ahead_ns=self.ahead_ns)
            case Wait():
                return replace(answer, until_ns=self._boottime_of(answer.until_ns))
            case TooLarge():
                return answer

    def _learn(self, transaction: HistoryTransaction) -> None:
        """Bring memory to what is durable, and the ends that are not."""
        self.ahead_ns = transaction.ahead_ns
        # What a network's round trip may have added to the other one.
        passed_ns = transaction.now_ns - self._clock.boottime_ns()
        self.least_ahead_ns = min(transaction.ahead_ns, passed_ns) if transaction.ahead_ns else 0
        if transaction.is_whole:
            self.book.reset([*transaction.news, *self._ends], transaction.now_ns)
        else:
            self.book.apply(transaction.news)
            self.book.advance(transaction.now_ns)

    def _commit(
        self, transaction: HistoryTransaction, ends: Sequence[Event], granted: Sequence[Slot]
    ) -> None:
        if not ends and not granted and not self._must_write:
            return
        self._must_write = True
        if not (transaction.is_long and transaction.replace([*self._look(Book.events), *granted])):
            transaction.commit([*ends, *granted])
        self._must_write = False
        self._has_begun |= transaction.is_empty
