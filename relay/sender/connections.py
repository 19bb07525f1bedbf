"""Connections to an upstream: each opened with its slot, and ready before a message's slot is reserved.

A slot is occupied from its reservation, so nothing slow may stand between it and MAIL:
the connection is opened, secured and logged in first, and waits in the pool (`relay.upstream.pool`).

Guarantees: no connection is begun before its own slot is on disk; the slot ends when the
connection is ready for mail, or will not be.  An upstream counts a connection somewhere in between.
"""

import asyncio
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
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict

OPENING_SECONDS = 1800
"""The longest that opening may take: 5 minutes for the greeting, 5 for EHLO (RFC 5321, 4.5.3.2), and more."""
ENOUGH_NS = 30 * SECOND_NS
"""After a refused connection, while others work: open no more for at least this long."""
MEANS_RETRY_NS = SECOND_NS


class NoRoomToConnect(Exception):  # noqa: N818 - a state, not an error of ours
    """A limit on connections leaves no room now."""

    def __init__(self, wait: Wait) -> None:
        super().__init__(wait.limit_label)
        self.wait = wait


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
    on_step: OnStep = lambda _, __: None,
) -> Connection:
    """Open a connection that is ready for MAIL; `on_step` is told as by `open_connection`.

    Where a token is refused, another one is tried, once.
    Raises UpstreamUnavailable, NoRoomToConnect, and HistoryError before anything was begun.
    """
    is_second = False
    while True:
        # Waiting for a token comes first: no slot is reserved meanwhile.
        account = await logins.account()
        if account.token is not None:
            on_step("token", "an access token is at hand")
        try:
            connection = await _open(throttle, account, clock, on_step)
        except UpstreamUnavailable as unavailable:
            answer = unavailable.answer
            is_refusal = answer.phase is Phase.AUTH and answer.verdict is Verdict.STOP
            if not is_refusal or not logins.refused(account) or is_second:
                raise
            on_step("login", f"{answer.text}: with another token again")
            is_second = True
        else:
            logins.worked(account)
            on_open(connection)
            return connection


async def _open(throttle: ThrottleThread, account: Account, clock: Clock, on_step: OnStep) -> Connection:
    reservation = await throttle.reserve_connection(OPENING_SECONDS * SECOND_NS)
    if isinstance(reservation, Wait):
        raise NoRoomToConnect(reservation)
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


class Openings:
    """What becomes of each connection that is opened: told, counted, and how long no other is tried."""

    def __init__(
        self,
        upstream: str,
        telemetry: Telemetry,
        *,
        on_unavailable: Callable[[Answer], None],
        on_no_room: Callable[[Wait], None],
    ) -> None:
        """`on_unavailable` is told why the upstream is of no use: none is open, or it refused us.

        `on_no_room` is told which limit on connections leaves no room.
        """
        self._upstream = upstream
        self._events, self._metrics, self._clock = telemetry
        self._on_unavailable, self._on_no_room = on_unavailable, on_no_room
        self.certificate_ends_at_ns: int | None = None
        """Wall clock: when the upstream's certificate ends, as of the last connection under TLS."""

    def opened(self, connection: Connection) -> None:
        self._metrics.count("relay_upstream_connects_total", self._upstream, "ready")
        self.certificate_ends_at_ns = connection.certificate_ends_at_ns
        self._events.tell(
            "upstream_connected", upstream=self._upstream, relay=connection.name, tls=connection.tls
        )

    def failed(self, error: Exception, *, is_any_open: bool) -> int:
        """Return for how many nanoseconds no other is tried; raise HistoryError where that is what failed."""
        match error:
            case HistoryError():
                raise error
            case NoRoomToConnect():
                self._on_no_room(error.wait)
                return max(0, error.wait.until_ns - self._clock.boottime_ns())
            case UpstreamUnavailable() if is_lack_of_means(error.__cause__):
                # The upstream had no part in it.
                self._events.shortage(where=f"upstream {self._upstream}", error=str(error))
                return MEANS_RETRY_NS
            case UpstreamUnavailable():
                answer = error.answer
            case _:
                # Whatever it is, mail must not silently stop.
                self._events.fault(where=f"upstream {self._upstream}", error=error)
                self._metrics.count("relay_faults_total")
                text = clean(f"no connection could be opened: {error}")
                answer = Answer(Verdict.PAUSE, Phase.CONNECT, None, text)
        self._metrics.connect_failed(self._upstream, answer)
        if is_any_open and answer.verdict is not Verdict.STOP:
            asked_ns = 0 if answer.ruling is None else answer.ruling.wait_ns or 0
            return max(ENOUGH_NS, asked_ns)
        # Also where it refused the account while others work: each further try may lock it.
        self._on_unavailable(answer)
        return 0
