"""One attempt on its connection, with its slot reserved: from MAIL to what came of it.

Guarantees: no MAIL and no final dot is sent past the reservation's deadline, by a clock that counts suspend.
The connection goes back to its pool or ends, and the slot ends with the transaction; or, where the upstream
may go on with it unheard, at its deadline.
"""

import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Self

from relay.clock import SECOND_NS, Clock
from relay.mail.dsn import NOTHING_ASKED
from relay.mail.text import clean
from relay.sender.attempt import Attempt
from relay.sender.spool_thread import SpoolThread
from relay.sender.throttle_thread import ThrottleThread
from relay.smtp.dot_stuffing import UnsendableContent
from relay.smtp.reply import Phase
from relay.throttle.throttle import Reservation
from relay.upstream.connection import Connection
from relay.upstream.pool import Pool
from relay.upstream.transaction import Transaction
from relay.verdicts.outcome import Answer, Outcome, is_any_relayed, of_full_session
from relay.verdicts.verdict import Verdict

SUSPENDED_NS = SECOND_NS
"""Of a deadline a host that is awake hears sooner than so long after it."""


class Overslept(Exception):  # noqa: N818 - what this host did
    """A reservation's deadline is past though no timer said so: the host was suspended."""


class WholeContent:
    """Content that is in memory, in one part.  No generator: the loop keeps account of each of these."""

    def __init__(self, content: bytes, check: Callable[[], None]) -> None:
        self._content: bytes | None = content
        self._check = check

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        content, self._content = self._content, None
        if content is None:
            self._check()
            raise StopAsyncIteration
        return content


class Carrier:
    """The transactions of one account."""

    def __init__(
        self, spool_thread: SpoolThread, throttle: ThrottleThread, pool: Pool[Connection], clock: Clock
    ) -> None:
        self._spool_thread, self._throttle, self._pool, self._clock = spool_thread, throttle, pool, clock
        self.transaction_ns = 0
        """How long a transaction takes: an average in which the last ones count most."""

    async def carry(self, attempt: Attempt, reservation: Reservation) -> Outcome:
        """Run a transaction.  Raises what reading the content raises."""
        connection, is_over = attempt.connection, True
        try:
            outcome = self._by_session(connection, await self._speak(attempt, reservation))
            is_over = outcome.is_over
        except BaseException as error:
            # The connection has ended.  Of a transaction that was cut off the upstream may have the content.
            is_over = isinstance(error, Exception)
            raise
        finally:
            attempt.ended_ns = self._clock.boottime_ns()
            # Else the upstream may count it yet: its slot ends by itself, at the deadline.  But what a host
            # had not sent when it was suspended beyond that, it sends when it wakes, and it is counted then.
            if is_over or attempt.ended_ns > reservation.deadline_ns + SUSPENDED_NS:
                self._throttle.ended(reservation)
            attempt.conn_use = max(1, connection.transactions)
            if connection.is_usable:
                self._pool.release(connection)
            else:
                self._pool.discard(connection)
        if is_any_relayed(outcome):
            known_ns, took_ns = self.transaction_ns, attempt.took_ns
            self.transaction_ns = known_ns + (took_ns - known_ns) // 8 if known_ns else took_ns
        return outcome

    def _by_session(self, connection: Connection, outcome: Outcome) -> Outcome:
        """Return an outcome as it counts where its session is full; learn how many messages one takes."""
        if is_any_relayed(outcome):
            connection.relayed += 1
        elif (untried := of_full_session(outcome)) is not None:
            if connection.relayed:
                self._pool.expect_most(connection.transactions - 1)
                return untried
            # The first message of a session is refused so too: no session was full.
            self._pool.expect_any()
        return outcome

    async def _speak(self, attempt: Attempt, reservation: Reservation) -> Outcome:
        """Speak with the upstream; on an exception the connection has ended too."""
        connection, envelope = attempt.connection, attempt.sent_envelope
        # It ends before its slot may be given to another.
        longest_ns = reservation.deadline_ns - self._clock.boottime_ns()
        transaction = Transaction(
            envelope.reverse_path,
            tuple([envelope.recipients[index] for index in attempt.indices]),
            attempt.shape,
            partial(self._content, attempt, reservation),
            longest_ns=longest_ns,
            dsn=envelope.dsn.for_some(attempt.indices) if attempt.passes_dsn else NOTHING_ASKED,
        )
        try:
            if longest_ns <= 0:
                raise Overslept
            return await connection.transact(transaction)
        except Overslept:
            connection.abort()
            # Nothing was relayed, and it says nothing of the message: no attempt.
            answer = Answer(Verdict.LATER, Phase.MAIL, None, "this host was suspended in a transaction")
        except UnsendableContent as error:
            answer = Answer(Verdict.BOUNCE, Phase.DATA, None, clean(str(error)), own_status="5.6.0")
        return Outcome((answer,) * len(attempt.indices))

    def _content(self, attempt: Attempt, reservation: Reservation) -> AsyncIterator[bytes]:
        """Yield the content; its last part, which the final dot follows at once, only in time."""
        content, rewritten = attempt.message.content, attempt.rewritten
        if content is not None:
            content = content if rewritten is None else rewritten.content(content)
            return WholeContent(content, partial(self._let_dot_follow, attempt, reservation))
        return self._parts(attempt, reservation)

    async def _parts(self, attempt: Attempt, reservation: Reservation) -> AsyncIterator[bytes]:
        async with contextlib.aclosing(self._spool_thread.content(attempt.queued.queue_id)) as chunks:
            rewritten = attempt.rewritten
            skip_bytes = 0 if rewritten is None else rewritten.replaced_bytes
            if rewritten is not None:
                self._check_in_time(reservation)
                yield rewritten.front
            async for chunk in chunks:
                self._check_in_time(reservation)
                yield chunk[skip_bytes:] if skip_bytes else chunk
                skip_bytes = max(0, skip_bytes - len(chunk))
        self._let_dot_follow(attempt, reservation)

    def _let_dot_follow(self, attempt: Attempt, reservation: Reservation) -> None:
        self._check_in_time(reservation)
        attempt.is_content_out = True

    def _check_in_time(self, reservation: Reservation) -> None:
        """Raise Overslept where the slot may be given to another by now.

        The timers of the loop stand still while the host is suspended; this clock does not.
        """
        if self._clock.boottime_ns() >= reservation.deadline_ns:
            raise Overslept
