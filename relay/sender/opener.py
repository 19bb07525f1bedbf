"""How a connection to an upstream is opened: with its slot reserved first.

Guarantees: no connection is begun before its slot is on disk, whatever becomes of it; the
slot ends when the connection is ready for mail, or will not be.  An upstream counts a
connection somewhere in between.
"""

import asyncio
from collections.abc import Awaitable, Callable

from relay.clock import SECOND_NS, Clock
from relay.policy.model import Upstream
from relay.sender.throttle_thread import ThrottleThread
from relay.smtp.reply import Phase
from relay.throttle.decision import Wait
from relay.upstream.connection import Account, Connection, UpstreamUnavailable, open_connection
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict

OPENING_SECONDS = 1800
"""The longest that opening may take: 5 minutes for the greeting, 5 for EHLO (RFC 5321, 4.5.3.2), and more."""


class NoRoomToConnect(Exception):  # noqa: N818 - a state, not an error of ours
    """A limit on connections leaves no room now; the gate knows until when."""


class Opener:
    """Opens connections to one upstream."""

    def __init__(
        self,
        throttle: ThrottleThread,
        account: Callable[[], Awaitable[Account]],
        clock: Clock,
        *,
        on_open: Callable[[Connection], None],
    ) -> None:
        """`account` is asked for each connection, and may raise UpstreamUnavailable.

        `on_open` is told of each new connection.
        """
        self._throttle = throttle
        self._account = account
        self._clock = clock
        self._on_open = on_open

    async def open(self) -> Connection:
        """Return a connection that is ready for MAIL.

        Raises UpstreamUnavailable, NoMeans, NoRoomToConnect, and HistoryError before anything was begun.
        """
        account = await self._account()
        reservation = await self._throttle.reserve_connection(OPENING_SECONDS * SECOND_NS)
        if isinstance(reservation, Wait):
            raise NoRoomToConnect(reservation.limit_label)
        try:
            async with asyncio.timeout(OPENING_SECONDS):
                connection = await open_connection(account, self._clock)
        except TimeoutError:
            text = f"it was not ready for mail within {OPENING_SECONDS} s"
            raise UpstreamUnavailable(Answer(Verdict.PAUSE, Phase.CONNECT, None, text)) from None
        finally:
            self._throttle.ended(reservation)
        self._on_open(connection)
        return connection


def account_of(upstream: Upstream) -> tuple[object, ...]:
    """Return what a connection depends on: another one means other connections."""
    return (upstream.host, upstream.port, upstream.tls, upstream.ca_file, upstream.auth, upstream.pipelining)
