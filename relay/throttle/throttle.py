"""The door of the room: what may start now, when to ask again, and what can be asked meanwhile.

Guarantees: in any window of any limit, and in any period of a calendar, the upstream never sees more
than N, wherever between a transaction's start and its end it counts (the proofs are in `window` and
`wall`); through crashes, clock steps and edits, and together with every other process that uses the same
history.  What `reserve` grants is durable before it returns, so before the first byte of MAIL.  An
account without limits is recorded too: the first limit that an edit gives it judges all that went before.

Assumes that its caller
- starts nothing without a grant, and asks the upstream for no more than it grants;
- ends each transaction by `Reservation.deadline_ns` (boottime), from which on it counts as ended.  A
  transaction that is settled later is charged once more from its real end, which is the most that
  can still be done;
- settles when the reply was seen, or the upstream hung up before the final dot.  Where the
  transaction may go on unheard, it does not settle, and the slot ends at its deadline;
- backs off on HistoryError, and sends nothing meanwhile: the account cannot be judged.

A settlement is known at once and becomes durable with the next group; one that a crash takes wastes
the slot until deadline + T, and nothing else.

Threads: every method may be called from any.  `reserve`, `flush`, `replan` and `close` take turns and
may wait for the disk and for other processes; `settle` and the questions of `View` are memory only.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from relay.clock import Clock
from relay.spool.disk.durable import Disk
from relay.throttle import admission
from relay.throttle.admission import Grant, Place, TooLarge, Wait
from relay.throttle.admission import Request as Request  # noqa: PLC0414 - part of the door
from relay.throttle.bounds import BOUNDS, HistoryBounds
from relay.throttle.gauge import Gauge, Limited, Usage
from relay.throttle.history import History
from relay.throttle.history_check import audit_file
from relay.throttle.history_format import Charged, Ended, Record
from relay.throttle.limit import Limit
from relay.throttle.limit_hints import Tally
from relay.throttle.peaks import Audit
from relay.throttle.slots import Answer, Slots

TRANSACTION_NS = 30 * 60 * 1_000_000_000
"""The longest transaction: 10 minutes for the reply to the final dot (RFC 5321, 4.5.3.2.6), and the rest."""


class Reservation(NamedTuple):
    """Permission for one transaction: durable, and already charged."""

    id: int
    recipients: int
    """How many it may name, at least 1; fewer than asked for where a limit has less room."""
    reserved_at_ns: int
    deadline_ns: int
    """Boottime at which the transaction must have ended, one way or the other."""
    chosen: Sequence[int] = ()
    """Indices into the recipients that were asked for, ascending."""
    messages: int = 1
    connections: int = 0
    size_bytes: int = 0


class View:
    """What can be asked of an account's limits and of its past: the questions of `admission`, now.

    Answers come from memory, so they know other processes as of the last decision; none waits for
    the disk.  A room of None is for any number.  An instant at which something opens is boottime, and
    never later than the truth: other processes can only make it later, and `reserve` will say so.
    """

    def __init__(self, slots: Slots, clock: Clock) -> None:
        self.slots, self._clock = slots, clock

    def _ask(self, question: Callable[[Sequence[Gauge], int], Answer]) -> Answer:
        return self.slots.ask(question, self._clock.boottime_ns(), self._clock.wall_ns())

    def room(self) -> int | None:
        """Return None for any number; keys may keep the messages back."""
        return self._ask(admission.room)

    def full(self) -> list[str]:
        return self._ask(admission.full)

    def opens_at_ns(self, recipients: int = 1) -> int:
        """Boottime at which a message of a byte to so many may go unsplit; now, if it may already."""
        return self._ask(lambda gauges, now_ns: admission.opens_at(gauges, recipients, now_ns))

    def room_for_connections(self) -> tuple[int | None, int, str]:
        return self._ask(admission.room_for_connections)

    def room_at(self, place: Place) -> tuple[int, int]:
        return self._ask(lambda gauges, now_ns: admission.room_at(gauges, place, now_ns))

    def full_at(self, place: Place) -> list[str]:
        return self._ask(lambda gauges, now_ns: admission.full_at(gauges, place, now_ns))

    def room_in(self, lane: str) -> tuple[int | None, int]:
        return self._ask(lambda gauges, now_ns: admission.room_in(gauges, lane, now_ns))

    def usage(self) -> list[Usage]:
        return self._ask(admission.usage)

    def limited(self, transaction_ns: int) -> tuple[Limited, ...]:
        self.slots.time_is(self._clock.boottime_ns(), self._clock.wall_ns())
        return self.slots.limited(transaction_ns, self._clock.boottime_ns())

    def limited_under(
        self, limits: Sequence[Limit], guard_ns: int | None, transaction_ns: int
    ) -> tuple[Limited, ...]:
        """Return what `limited` would after a `replan`, and change nothing."""
        return self.slots.limited_under(limits, guard_ns, transaction_ns, self._clock.boottime_ns())

    def leaves_in_ns(self, span_ns: int) -> int | None:
        """Nanoseconds until the oldest end of the last `span_ns` is that old; None without one.

        An upstream that speaks of such a window may be counting it.
        """
        return self.slots.leaves_in_ns(span_ns, self._clock.boottime_ns())

    def tally(self, span_ns: int) -> Tally:
        return self.slots.tally(span_ns, self._clock.boottime_ns())

    def peak(self, span_ns: int) -> Tally:
        return self.slots.peak(span_ns, self._clock.boottime_ns())


class Throttle(View):
    def __init__(
        self,
        history_path: Path,
        limits: Sequence[Limit],
        guard_ns: int | None,
        disk: Disk,
        clock: Clock,
        *,
        transaction_ns: int = TRANSACTION_NS,
        bounds: HistoryBounds = BOUNDS,
    ) -> None:
        """Touch no disk yet.  `guard_ns` None: 1 % of each period, at most a second."""
        super().__init__(Slots(bounds), clock)
        self._transaction_ns = transaction_ns
        self._history = History(history_path, disk, clock, self.slots, bounds)
        self._turn = Lock()
        self._path = history_path
        self._disk = disk
        self._has_begun = False
        self._limits = tuple(limits)
        self.slots.judge_by(limits, guard_ns)

    def reserve(self, requests: Sequence[Request]) -> list[Reservation | Wait | TooLarge]:
        """Decide requests in their order, all in one critical section with one sync.

        Once a request has to wait for what all need, so do all behind it: no small message overtakes a
        large one.  A request that waits in a `place` of its own, or is too large to go at all, keeps back
        none.  Raises HistoryError.
        """
        with self._turn:
            with self._history.locked() as now_ns:
                answers, granted = self._decide(requests, now_ns)
                self._write(granted, now_ns)
            return answers

    def reserve_connection(self, opening_ns: int) -> Reservation | Wait:
        """`opening_ns`: the longest opening.  Settle once it is ready or failed.  Raises HistoryError."""
        with self._turn:
            with self._history.locked() as now_ns:
                answer = self.slots.reserve_connection(opening_ns, now_ns)
                self._write([] if isinstance(answer, Wait) else [answer], now_ns)
            if isinstance(answer, Wait):
                return answer
            return Reservation(answer.id, 0, now_ns, answer.deadline_ns, (), 0, 1)

    def settle(self, reservation: Reservation, ended_at_ns: int) -> None:
        """Note an end (boottime), in memory: from then on the upstream counts nothing more of it."""
        ended_at_ns = max(reservation.reserved_at_ns, min(ended_at_ns, self._clock.boottime_ns()))
        if ended_at_ns <= reservation.deadline_ns:
            self.slots.settle(Ended(reservation.id, ended_at_ns))
            return
        # It outlived its deadline.  With the start of its reservation it is the same transaction, not
        # another; whose it was is not told apart.
        counts = reservation.messages, reservation.recipients, reservation.connections
        self.slots.settle(Charged(ended_at_ns, *counts, reservation.id, bytes=reservation.size_bytes))

    def flush(self) -> None:
        """Learn what others recorded, and make settlements durable.  Raises HistoryError.

        To be called at the start, for the questions to know the past, and at the end.  After an append
        that failed it appends in any case: a history that can be read and not written is not sound.
        """
        with self._turn, self._history.locked() as now_ns:
            self._write([], now_ns)

    def replan(
        self, limits: Sequence[Limit], guard_ns: int | None, *, transaction_ns: int | None = None
    ) -> None:
        """Judge the same history by new numbers; `transaction_ns` None: as before.

        What was reserved keeps its deadline.
        """
        with self._turn:
            self._limits = tuple(limits)
            if transaction_ns is not None:
                self._transaction_ns = transaction_ns
            self.slots.judge_by(limits, guard_ns)

    def has_begun(self) -> bool:
        """Return True once, if there was no history and one was begun: nothing before it is known."""
        has_begun, self._has_begun = self._has_begun, False
        return has_begun

    def audit(self) -> Audit:
        """Count anew what every limit held at most, from the file and without its lock.

        Raises HistoryError, and OSError where there is no file or it is not ours.
        """
        return audit_file(self._path, self._limits, self._disk)

    def close(self) -> None:
        """`flush` first."""
        with self._turn:
            self._history.close()

    def _decide(
        self, requests: Sequence[Request], now_ns: int
    ) -> tuple[list[Reservation | Wait | TooLarge], list[Record]]:
        answers: list[Reservation | Wait | TooLarge] = []
        granted: list[Record] = []
        wait: Wait | None = None
        for request in requests:
            if wait is not None:
                answers.append(wait)
                continue
            answer = self.slots.reserve(request, self._transaction_ns, now_ns)
            if isinstance(answer, Wait):
                wait = answer if answer.place is None else None
                answers.append(answer)
            elif isinstance(answer, TooLarge):
                answers.append(answer)
            else:
                granted.append(answer.reserved)
                answers.append(_reservation(answer, now_ns))
        return answers, granted

    def _write(self, granted: list[Record], now_ns: int) -> None:
        ended = self.slots.unwritten()
        if ended or granted or self._history.is_doubtful:
            self._has_begun |= self._history.append(now_ns, [*ended, *granted])
            self.slots.written(len(ended))


def _reservation(grant: Grant, now_ns: int) -> Reservation:
    reserved = grant.reserved
    return Reservation(
        reserved.id,
        reserved.recipients,
        now_ns,
        reserved.deadline_ns,
        grant.chosen,
        size_bytes=reserved.bytes or 0,
    )
