"""The door of the room: what may start now, when to ask again, and what can be asked meanwhile.

Guarantees: in any window of any limit the upstream never sees more than N, wherever between a
transaction's start and its end it counts (the proof is in `window`); through crashes, clock steps and
edits, and together with every other process that uses the same history.  What `reserve` grants is durable
before it returns, so before the first byte of MAIL.  An account without limits is recorded too: the first
limit that an edit gives it judges all that went before.

Assumes that its caller
- starts nothing without a grant, and asks the upstream for no more than it grants;
- ends each transaction within its duration, from which on it counts as ended.  One that is settled later is
  charged once more from its real end, which is the most that can still be done;
- settles when the reply was seen, or the upstream hung up before the final dot.  Where the
  transaction may go on unheard, it does not settle, and the slot ends at its deadline;
- backs off on HistoryError, and sends nothing meanwhile: the account cannot be judged.

An end becomes durable with the next decision or `flush`; one that a crash takes wastes the slot until its
deadline + T, and nothing else.

Threads: every method may be called from any.  `reserve`, `flush`, `replan` and `close` take turns and may
wait for the disk and for other processes; `settle` and the questions of `View` are memory only.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import NamedTuple, TypeVar

from relay.clock import Clock
from relay.throttle import admission
from relay.throttle.admission import Grant, Place, Request, TooLarge, Wait
from relay.throttle.audit import Audit, audit
from relay.throttle.book import LimitBook
from relay.throttle.events import Ended, Event, Slot
from relay.throttle.history import History, Transaction
from relay.throttle.limit import Limit
from relay.throttle.limit_state import Limited, LimitState, Usage

TRANSACTION_NS = 30 * 60 * 1_000_000_000
"""The longest transaction: 10 minutes for the reply to the final dot (RFC 5321, 4.5.3.2.6), and the rest."""

Answer = TypeVar("Answer")


class Reservation(NamedTuple):
    """Permission for one transaction: durable, and already charged."""

    slot: Slot
    reserved_at_ns: int
    """Boottime."""
    duration_ns: int
    """How long after that the transaction must have ended, one way or the other."""
    chosen: Sequence[int] = ()
    """Indices into the recipients that were asked for, ascending."""

    @property
    def recipients(self) -> int:
        """How many it may name, at least 1; fewer than asked for where a limit has less room."""
        return self.slot.recipients

    @property
    def deadline_ns(self) -> int:
        """Return the last instant of it, boottime."""
        return self.reserved_at_ns + self.duration_ns


@dataclass(slots=True)
class Shared:
    """What the questions of several threads share."""

    book: LimitBook = field(default_factory=LimitBook)
    mutex: Lock = field(default_factory=Lock)
    ahead_ns: int = 0
    """How far the clock of the history was ahead of boottime at the last transaction, at the most."""
    own: set[int] = field(default_factory=set)
    """Slots in flight that this process reserved: those of others may belong to the dead."""


class View:
    """What can be asked of an account's limits and of its past: the questions of `admission`, now.

    Answers come from memory, so they know other processes as of the last decision; none waits for
    the disk.  A room of None is for any number.  An instant at which something opens is boottime, and
    never later than the truth: other processes can only make it later, and `reserve` will say so.
    """

    def __init__(self, shared: Shared, clock: Clock) -> None:
        self.shared, self._clock = shared, clock

    def room(self) -> int | None:
        """Return None for any number; keys may keep the messages back."""
        return self._ask(admission.room)

    def full(self, place: Place | None = None) -> list[str]:
        return self._ask(lambda states, now_ns: admission.full(states, place, now_ns))

    def opens_at_ns(self, recipients: int = 1) -> int:
        """Boottime at which a message of a byte to so many may go unsplit; now, if it may already."""
        opens_ns = self._ask(lambda states, now_ns: admission.opens_at(states, recipients, now_ns))
        return opens_ns - self.shared.ahead_ns

    def room_for_connections(self) -> tuple[int | None, int, str]:
        room, opens_ns, label = self._ask(admission.room_for_connections)
        return room, opens_ns - self.shared.ahead_ns, label

    def room_at(self, place: Place) -> tuple[int, int]:
        room, opens_ns = self._ask(lambda states, now_ns: admission.room_at(states, place, now_ns))
        return room, opens_ns - self.shared.ahead_ns

    def room_in(self, lane: str) -> tuple[int | None, int]:
        room, opens_ns = self._ask(lambda states, now_ns: admission.room_in(states, lane, now_ns))
        return room, opens_ns - self.shared.ahead_ns

    def usage(self) -> list[Usage]:
        """Keep the order of the limits; take no longer for many keys."""
        usages = self._ask(lambda states, now_ns: [state.usage(now_ns) for state in states])
        ahead_ns = self.shared.ahead_ns
        if not ahead_ns:
            return usages
        return [replace(usage, opens_at_ns=usage.opens_at_ns - ahead_ns) for usage in usages]

    def limited(self, transaction_ns: int) -> tuple[Limited, ...]:
        with self.shared.mutex:
            return self.shared.book.limited(transaction_ns, self.shared.own, self._now_ns())

    def limited_under(
        self, limits: Sequence[Limit], guard_ns: int | None, transaction_ns: int
    ) -> tuple[Limited, ...]:
        """Return what `limited` would after a `replan`, and change nothing."""
        with self.shared.mutex:
            now_ns, own = self._now_ns(), self.shared.own
            return self.shared.book.limited_under(limits, guard_ns, transaction_ns, own, now_ns)

    def leaves_in_ns(self, span_ns: int) -> int | None:
        """Nanoseconds until the oldest end of the last `span_ns` is that old; None without one.

        An upstream that speaks of such a window may be counting it.
        """
        with self.shared.mutex:
            return self.shared.book.leaves_in_ns(span_ns, self._now_ns())

    def audit(self) -> Audit:
        """Count anew what each limit held at most."""
        with self.shared.mutex:
            self._now_ns()
            slots, limits = self.shared.book.slots(), self.shared.book.judged
        return audit(slots, limits)

    def has_others(self) -> bool:
        """Whether another process has something in flight, whose end only the history will tell."""
        with self.shared.mutex:
            return not self.shared.book.in_flight.keys() <= self.shared.own

    def _ask(self, question: Callable[[Sequence[LimitState], int], Answer]) -> Answer:
        with self.shared.mutex:
            return question(self.shared.book.limits, self._now_ns())

    def _now_ns(self) -> int:
        """Return the present instant by the history's clock, as far as that is known."""
        now_ns = self._clock.boottime_ns() + self.shared.ahead_ns
        self.shared.book.expire(now_ns)
        return now_ns


class Throttle(View):
    def __init__(
        self,
        history: History,
        limits: Sequence[Limit],
        guard_ns: int | None,
        clock: Clock,
        *,
        transaction_ns: int = TRANSACTION_NS,
        book: LimitBook | None = None,
    ) -> None:
        """`guard_ns` None: 1 % of each period, at most a second."""
        super().__init__(Shared(book or LimitBook()), clock)
        self._history = history
        self._transaction_ns = transaction_ns
        self._turn = Lock()
        self._ends: list[tuple[Reservation, int]] = []
        self._must_write = False
        """A commit failed.  Nothing may be sent before one succeeds, even if the history can be read."""
        self._has_begun = False
        self.shared.book.judge_by(limits, guard_ns)

    def reserve(self, requests: Sequence[Request]) -> list[Reservation | Wait | TooLarge]:
        """Decide requests in their order, all in one transaction with one commit.

        Once a request has to wait for what all need, so do all behind it: no small message overtakes a
        large one.  A request that waits in a `place` of its own, or is too large to go at all, keeps back
        none.  Raises HistoryError.
        """
        book, transaction_ns = self.shared.book, self._transaction_ns

        def decide() -> list[Grant | Wait | TooLarge]:
            answers: list[Grant | Wait | TooLarge] = []
            wait: Wait | None = None
            for request in requests:
                answer = wait or book.decide(request, transaction_ns)
                if isinstance(answer, Wait) and answer.place is None:
                    wait = answer
                answers.append(answer)
            return answers

        return self._transact(decide)

    def reserve_connection(self, opening_ns: int) -> Reservation | Wait:
        """`opening_ns`: the longest opening.  Settle once it is ready or failed.  Raises HistoryError."""
        (answer,) = self._transact(lambda: [self.shared.book.decide_connection(opening_ns)])
        if isinstance(answer, TooLarge):
            raise TypeError("a connection has no size")
        return answer

    def settle(self, reservation: Reservation, ended_at_ns: int) -> None:
        """Note an end (boottime), in memory: from then on the upstream counts nothing more of it."""
        ended_at_ns = max(reservation.reserved_at_ns, min(ended_at_ns, self._clock.boottime_ns()))
        with self.shared.mutex:
            self._ends.append((reservation, ended_at_ns))
            # The questions know it at once.
            self.shared.book.propose([_end_of(reservation, ended_at_ns, self.shared.ahead_ns)])

    def flush(self) -> None:
        """Learn what others recorded, and make ends durable.  Raises HistoryError.

        To be called at the start, for the questions to know the past, and at the end.  After a commit that
        failed it commits in any case: a history that can be read and not written is not sound.
        """
        self._transact(list)

    def replan(
        self, limits: Sequence[Limit], guard_ns: int | None, *, transaction_ns: int | None = None
    ) -> None:
        """Judge the same history by new numbers; `transaction_ns` None: as before.

        What was reserved keeps its deadline.
        """
        with self._turn, self.shared.mutex:
            if transaction_ns is not None:
                self._transaction_ns = transaction_ns
            self.shared.book.judge_by(limits, guard_ns)

    def has_begun(self) -> bool:
        """Return True once, if there was no history and one was begun: nothing before it is known."""
        has_begun, self._has_begun = self._has_begun, False
        return has_begun

    def close(self) -> None:
        """`flush` first."""
        with self._turn:
            self._history.close()

    def _transact(
        self, decide: Callable[[], Sequence[Grant | Wait | TooLarge]]
    ) -> list[Reservation | Wait | TooLarge]:
        """Learn, decide, commit, and only then apply."""
        shared = self.shared
        with self._turn, self._history.transaction() as transaction:
            try:
                with shared.mutex:
                    ends = self._learn(transaction)
                    answers = decide()
                    events = list(shared.book.draft)
                self._commit(transaction, events)
            except BaseException:
                with shared.mutex:
                    self._propose_ends()
                raise
            with shared.mutex:
                shared.book.apply(events)
                shared.own.update(answer.slot.id for answer in answers if isinstance(answer, Grant))
                shared.own &= shared.book.in_flight.keys()
                del self._ends[:ends]
                self._propose_ends()
            return [_answer(each, transaction) for each in answers]

    def _learn(self, transaction: Transaction) -> int:
        """Bring memory to what is durable, and propose the ends so far; return how many those are."""
        shared, book = self.shared, self.shared.book
        shared.ahead_ns = transaction.ahead_ns
        # Ahead of what is learned, so that what is past its windows by now is not counted.
        book.advance(transaction.now_ns)
        if transaction.is_whole:
            book.reset(transaction.news)
        elif transaction.news:
            book.apply(transaction.news)
        self._propose_ends()
        book.advance(transaction.now_ns)
        return len(self._ends)

    def _propose_ends(self) -> None:
        """Have the draft hold the ends that are not durable yet, and nothing else."""
        self.shared.book.drop()
        self.shared.book.propose(_end_of(*each, self.shared.ahead_ns) for each in self._ends)

    def _commit(self, transaction: Transaction, events: Sequence[Event]) -> None:
        if not events and not self._must_write:
            return
        self._must_write = True
        is_replaced = transaction.is_long and transaction.replace(self._whole(events))
        if not is_replaced:
            transaction.commit(events)
        self._must_write = False
        self._has_begun |= transaction.is_empty

    def _whole(self, events: Iterable[Event]) -> list[Event]:
        with self.shared.mutex:
            return [*self.shared.book.events(), *events]


def _answer(answer: Grant | Wait | TooLarge, transaction: Transaction) -> Reservation | Wait | TooLarge:
    match answer:
        case Grant(slot, chosen):
            at_ns = slot.started_at_ns - transaction.ahead_ns
            return Reservation(slot, at_ns, slot.until_ns - slot.started_at_ns, chosen)
        case Wait() if transaction.ahead_ns:
            return replace(answer, until_ns=answer.until_ns - transaction.ahead_ns)
        case _:
            return answer


def _end_of(reservation: Reservation, ended_at_ns: int, ahead_ns: int) -> Event:
    at_ns, slot = ended_at_ns + ahead_ns, reservation.slot
    if at_ns <= slot.until_ns:
        return Ended(slot.id, at_ns)
    # It outlived its deadline: the same slot once more, from its real end.
    return slot.ended(at_ns)
