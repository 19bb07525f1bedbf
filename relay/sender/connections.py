"""Connections to an upstream: each opened with its slot, and ready before a message's slot is reserved.

A slot is occupied from its reservation, so nothing slow may stand between it and MAIL:
the connection is opened, secured and logged in first.  An unused one goes back to the pool.

Guarantees: no connection is begun before its own slot is on disk; the slot ends when the
connection is ready for mail, or will not be.  An upstream counts a connection somewhere in between.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from relay.clock import SECOND_NS, Clock
from relay.mail.text import clean
from relay.policy.model import Upstream
from relay.sender.throttle_thread import ThrottleThread
from relay.smtp.reply import Phase
from relay.spool.disk.os_errors import is_lack_of_means
from relay.telemetry.telemetry import Telemetry
from relay.throttle.admission import Wait
from relay.throttle.history import HistoryError
from relay.upstream.connection import (
    Account,
    Connection,
    OnStep,
    UpstreamUnavailable,
    open_connection,
)
from relay.upstream.pool import Pool
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict

OPENING_SECONDS = 1800
"""The longest that opening may take: 5 minutes for the greeting, 5 for EHLO (RFC 5321, 4.5.3.2), and more."""
ENOUGH_NS = 30 * SECOND_NS
"""After a refused connection, while others work: open no more for at least this long."""
MEANS_RETRY_NS = SECOND_NS


class NoRoomToConnect(Exception):  # noqa: N818 - a state, not an error of ours
    """A limit on connections leaves no room now; the throttle knows until when."""


class Logins(Protocol):
    """What connections of one upstream log in with."""

    async def account(self) -> Account:
        """Raise UpstreamUnavailable where there is none."""

    def refused(self, account: Account) -> bool:
        """Hear of each refusal; return whether another token is worth a second login."""

    def worked(self, account: Account) -> None: ...


async def open_with_slot(
    throttle: ThrottleThread,
    logins: Logins,
    clock: Clock,
    on_open: Callable[[Connection], None],
    on_step: OnStep | None = None,
) -> Connection:
    """Open a connection that is ready for MAIL; `on_step` is told as by `open_connection`.

    Raises UpstreamUnavailable, NoRoomToConnect, and HistoryError before anything was begun.
    """
    # Waiting for a token comes first: no slot is reserved meanwhile.
    account = await logins.account()
    if account.token is not None and on_step is not None:
        on_step("token", "an access token is at hand")
    try:
        connection = await _open(throttle, account, clock, on_step)
    except UpstreamUnavailable as unavailable:
        if not _is_refusal(unavailable) or not logins.refused(account):
            raise
        if on_step is not None:
            on_step("login", f"{unavailable.answer.text}: with another token again")
        account = await logins.account()
        connection = await _open_again(throttle, logins, account, clock, on_step)
    logins.worked(account)
    on_open(connection)
    return connection


def _is_refusal(unavailable: UpstreamUnavailable) -> bool:
    """Return whether it is the login that was refused."""
    return unavailable.answer.phase is Phase.AUTH and unavailable.answer.verdict is Verdict.STOP


async def _open_again(
    throttle: ThrottleThread, logins: Logins, account: Account, clock: Clock, on_step: OnStep | None
) -> Connection:
    """Open with a token in the place of a refused one: the last attempt of this login."""
    try:
        return await _open(throttle, account, clock, on_step)
    except UpstreamUnavailable as unavailable:
        if _is_refusal(unavailable):
            logins.refused(account)
        raise


async def _open(
    throttle: ThrottleThread, account: Account, clock: Clock, on_step: OnStep | None
) -> Connection:
    reservation = await throttle.reserve_connection(OPENING_SECONDS * SECOND_NS)
    if isinstance(reservation, Wait):
        raise NoRoomToConnect(reservation.limit_label)
    try:
        async with asyncio.timeout(OPENING_SECONDS):
            return await open_connection(account, clock, on_step=on_step)
    except TimeoutError:
        text = f"it was not ready for mail within {OPENING_SECONDS} s"
        raise UpstreamUnavailable(Answer(Verdict.PAUSE, Phase.CONNECT, None, text)) from None
    finally:
        throttle.ended(reservation)


def account_of(upstream: Upstream) -> tuple[object, ...]:
    """Return what a connection depends on: a change of it calls for other connections."""
    where = (upstream.host, upstream.port, upstream.source_address)
    shown = (upstream.tls, upstream.ca_file, upstream.tls_certificate, upstream.tls_key)
    return (*where, *shown, upstream.auth, upstream.pipelining)


class ReadyConnections:
    def __init__(
        self,
        upstream: str,
        pool: Pool[Connection],
        telemetry: Telemetry,
        *,
        on_change: Callable[[], None],
        on_unavailable: Callable[[Answer], None],
    ) -> None:
        """`on_change` is called when there is one more, or none to be had.

        `on_unavailable` is told why the upstream cannot be used: it refused the account, or no
        connection is left.
        """
        self._upstream = upstream
        self._pool = pool
        self._events, self._metrics, self._clock = telemetry
        self._on_change = on_change
        self._on_unavailable = on_unavailable
        self._opening: set[asyncio.Task[None]] = set()
        self._is_stopped = False
        self._ready: deque[Connection] = deque()
        self._enough_until_ns = 0
        self._has_means = True
        """False for MEANS_RETRY_NS after a lack of descriptors or memory."""
        self._failure: HistoryError | None = None
        self.certificate_ends_at_ns: int | None = None
        """Wall clock: when the upstream's certificate ends, as of the last connection under TLS."""

    @property
    def is_opening(self) -> bool:
        return bool(self._opening)

    def take(self, most: int, *, openings: int | None) -> list[Connection]:
        """Return up to `most` ready connections, and have more opened if there are fewer.

        `openings` is how many may be opened, None for any number.  Raises HistoryError where
        that could not be decided for one.
        """
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        connections: list[Connection] = []
        while self._ready and len(connections) < most:
            if (connection := self._ready.popleft()).is_usable:
                connections.append(connection)
            else:
                self._pool.discard(connection)
        while len(connections) < most and (idle := self._pool.try_acquire()) is not None:
            connections.append(idle)
        if len(connections) < most and openings != 0:
            wanted = self._wanted(most - len(connections) - len(self._opening))
            for _ in range(wanted if openings is None else min(wanted, openings)):
                self._opening.add(asyncio.create_task(self._open()))
        return connections

    def _wanted(self, lacking: int) -> int:
        now_ns = self._clock.boottime_ns()
        # By the pool's own count: one that is on its way from a transaction to who waits for it is open.
        is_enough = self._pool.open > 0 and now_ns < self._enough_until_ns
        if self._is_stopped or is_enough or not self._has_means:
            return 0
        # The first has to log in before others try: some lock an account after a few wrong passwords.
        return lacking if self._pool.open else min(lacking, 1 - len(self._opening))

    def give_back(self, connection: Connection) -> None:
        """Take back a connection on which nothing was begun."""
        self._pool.release(connection, was_used=False)

    def let_go(self) -> None:
        """Give back all unused connections."""
        while self._ready:
            self._pool.release(self._ready.popleft(), was_used=False)

    def stop(self) -> None:
        self._is_stopped = True
        for opening in self._opening:
            opening.cancel()
        self.let_go()

    async def _open(self) -> None:
        try:
            connection = await self._pool.acquire()
        except UpstreamUnavailable as unavailable:
            if self._is_stopped:
                return
            if is_lack_of_means(unavailable.__cause__):
                # The upstream had no part in it.
                self._events.shortage(where=f"upstream {self._upstream}", error=str(unavailable))
                self._has_means = False
                asyncio.get_running_loop().call_later(MEANS_RETRY_NS / SECOND_NS, self._try_again)
                return
            self._do_without(unavailable.answer)
        except NoRoomToConnect:
            pass  # who looks again finds out until when
        except HistoryError as failure:
            self._failure = failure
        except Exception as error:  # noqa: BLE001 - whatever it is, mail must not silently stop
            self._events.fault(where=f"upstream {self._upstream}", error=error)
            self._metrics.fault()
            text = clean(f"no connection could be opened: {error}")
            self._do_without(Answer(Verdict.PAUSE, Phase.CONNECT, None, text))
        else:
            if self._is_stopped:
                self._pool.release(connection)
                return
            if connection.transactions == 0:
                self._metrics.connected(self._upstream)
                self.certificate_ends_at_ns = connection.certificate_ends_at_ns
                self._events.upstream_connected(
                    upstream=self._upstream, relay=connection.name, tls=connection.tls
                )
            self._ready.append(connection)
        finally:
            self._opening.discard(asyncio.current_task())
        # Told last: who looks again must not count on this one still coming.
        self._on_change()

    def _try_again(self) -> None:
        # By the timer alone: by the clock it may be a little early, and then nobody would look again.
        self._has_means = True
        self._on_change()

    def _do_without(self, answer: Answer) -> None:
        """Open no more for a while, or for as long as the upstream asks.

        Unless it refused the account: each further try with that password may lock it.
        """
        self._metrics.connect_failed(self._upstream, answer)
        if self._pool.open and answer.verdict is not Verdict.STOP:
            asked_ns = 0 if answer.ruling is None else answer.ruling.wait_ns or 0
            self._enough_until_ns = self._clock.boottime_ns() + max(ENOUGH_NS, asked_ns)
        else:
            self._on_unavailable(answer)
