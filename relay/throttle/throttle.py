"""The door of the room: what may start now, and when to ask again.

Guarantees: in any window of any limit the upstream never sees more than N, wherever between
a transaction's start and its end it counts (the proof is in `window`); through crashes,
clock steps and edits, and together with every other process that uses the same history.
What `reserve` grants is durable before it returns, so before the first byte of MAIL.

Asks of its caller:
- to start nothing without a grant, and to ask for no more than it grants;
- that no transaction outlives `Reservation.deadline_ns`, by boottime: from then on it
  counts as ended.  One that did, and is settled later, is charged once more from its
  real end, which is the most that can still be done;
- to `settle` when the reply was seen or the connection is closed.  A settlement is known
  at once and becomes durable with the next group; one that a crash takes wastes the
  slot until deadline + T, and nothing else;
- to back off on HistoryError, and send nothing meanwhile: it is an account that cannot
  be judged, not a message that failed.

An account without limits has no history and touches no disk; the first limit that an
edit gives it starts counting then.

Threads: every method may be called from any.  `reserve`, `flush`, `replan` and `close` take
turns and may wait for the disk and for other processes; `settle`, `opens_at` and `usage`
are memory only, and do for an event loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from relay.clock import Clock
from relay.spool.durable import Disk
from relay.throttle.history import History
from relay.throttle.record import Charged, Ended, Record
from relay.throttle.slots import Limit, Slots, Usage, Wait

TRANSACTION_NS = 30 * 60 * 1_000_000_000
"""The longest transaction: 10 minutes for the reply to the final dot (RFC 5321, 4.5.3.2.6), and the rest."""
UNRECORDED = 0
"""The id of a reservation that no limit asked for."""


@dataclass(frozen=True, slots=True)
class Request:
    """One message that is ready to go to so many recipients."""

    recipients: int

    def __post_init__(self) -> None:
        if self.recipients < 1:
            raise ValueError("a transaction has at least one recipient")


@dataclass(frozen=True, slots=True)
class Reservation:
    """Permission for one transaction: durable, and already charged."""

    id: int
    recipients: int
    """How many it may name, at least 1; fewer than asked for where a limit on recipients has less room."""
    reserved_at_ns: int
    deadline_ns: int
    """Boottime at which the transaction must have ended, one way or the other."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of a transaction: its reply was seen, or its connection is closed."""

    reservation: Reservation
    ended_at_ns: int
    """Boottime."""


class Throttle:
    """The limits of one account, over its history."""

    def __init__(
        self,
        history_path: Path,
        limits: Sequence[Limit],
        guard_ns: int | None,
        disk: Disk,
        clock: Clock,
        *,
        transaction_ns: int = TRANSACTION_NS,
    ) -> None:
        """Touch no disk yet.  `guard_ns` None: 1 % of each period, at most a second."""
        self._clock = clock
        self._transaction_ns = transaction_ns
        self._slots = Slots()
        self._history = History(history_path, disk, clock, self._slots)
        self._turn = Lock()
        self._has_limits = bool(limits)
        self._slots.judge_by(limits, guard_ns)

    def reserve(self, requests: Sequence[Request]) -> list[Reservation | Wait]:
        """Decide requests in their order, all in one critical section with one sync.

        Once one has to wait, so do all behind it: no small message overtakes a large
        one.  Raises HistoryError, and then nothing is granted.
        """
        with self._turn:
            if not self._has_limits:
                now_ns = self._clock.boottime_ns()
                deadline_ns = now_ns + self._transaction_ns
                return [Reservation(UNRECORDED, each.recipients, now_ns, deadline_ns) for each in requests]
            with self._history.locked() as now_ns:
                answers, granted = self._decide(requests, now_ns)
                self._write(granted, now_ns)
            return answers

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Take note of ends; memory only."""
        now_ns = self._clock.boottime_ns()
        for settlement in settlements:
            reservation = settlement.reservation
            if reservation.id == UNRECORDED:
                continue
            ended_at_ns = max(reservation.reserved_at_ns, min(settlement.ended_at_ns, now_ns))
            if ended_at_ns <= reservation.deadline_ns:
                self._slots.settle(Ended(reservation.id, ended_at_ns))
            else:
                self._slots.settle(Charged(ended_at_ns, 1, reservation.recipients))

    def flush(self) -> None:
        """Learn what others recorded, and make settlements durable.  Raises HistoryError.

        To be called at the start, for `usage` and `opens_at` to know the past, and at the end.
        """
        with self._turn:
            if self._has_limits or self._slots.unwritten():
                with self._history.locked() as now_ns:
                    self._write([], now_ns)

    def opens_at(self, recipients: int) -> int:
        """Return the boottime at which a message to so many may go unsplit; now, if it may already.

        From memory, and never later than the truth: other processes can only make it
        later, and `reserve` will say so.  For any part of it, ask with 1.
        """
        return self._slots.opens_at(recipients, self._clock.boottime_ns())

    def usage(self) -> list[Usage]:
        """Return how full each limit is, in their order, as far as memory knows."""
        return self._slots.usage(self._clock.boottime_ns())

    def replan(self, limits: Sequence[Limit], guard_ns: int | None) -> None:
        """Judge the same history by new numbers, from the next `reserve` on."""
        with self._turn:
            self._has_limits = bool(limits)
            self._slots.judge_by(limits, guard_ns)

    def close(self) -> None:
        """Let go of the file; `flush` first."""
        with self._turn:
            self._history.close()

    def _decide(
        self, requests: Sequence[Request], now_ns: int
    ) -> tuple[list[Reservation | Wait], list[Record]]:
        answers: list[Reservation | Wait] = []
        granted: list[Record] = []
        wait: Wait | None = None
        for request in requests:
            if wait is not None:
                answers.append(wait)
                continue
            answer = self._slots.reserve(request.recipients, self._transaction_ns, now_ns)
            if isinstance(answer, Wait):
                wait = answer
                answers.append(wait)
            else:
                granted.append(answer)
                answers.append(Reservation(answer.id, answer.recipients, now_ns, answer.deadline_ns))
        return answers, granted

    def _write(self, granted: list[Record], now_ns: int) -> None:
        ended = self._slots.unwritten()
        if ended or granted:
            self._history.append(now_ns, [*ended, *granted])
            self._slots.written(len(ended))
