"""Opens connections to an upstream: each with its slot, and ready before a message's slot is reserved.

A message's slot is occupied from its reservation, so nothing slow may stand between that and MAIL: the
connection is opened, secured and logged in first, and waits in the pool (`relay.upstream.pool`).

Guarantees: no connection begins before its own slot is on disk.  That slot ends when the connection is
ready for mail, or has failed.  An upstream counts a connection somewhere in between.
"""

import asyncio
from collections.abc import Callable

from relay.clock import SECOND_NS, Clock
from relay.sender.logins import Logins
from relay.sender.throttle_thread import ThrottleThread
from relay.smtp.reply import Phase
from relay.throttle.admission import Wait
from relay.upstream.connection import Connection, OnStep, UpstreamServer, UpstreamUnavailable, open_connection
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Judge, Verdict

OPENING_SECONDS = 1800
"""The longest that opening may take: 5 minutes for the greeting, 5 for EHLO (RFC 5321, 4.5.3.2), and more."""


class NoRoomToConnect(Exception):  # noqa: N818 - a state, not an error of ours
    """A limit on connections has no room now, or the account was paused meanwhile."""

    def __init__(self, why: str, until_ns: int) -> None:
        super().__init__(why)
        self.until_ns = until_ns


async def open_with_slot(
    throttle: ThrottleThread,
    logins: Logins,
    judge: Judge,
    clock: Clock,
    *,
    may_begin: Callable[[], bool] = lambda: True,
    on_step: OnStep = lambda _, __: None,
) -> Connection:
    """Return a connection that is ready for MAIL; `on_step` is called as by `open_connection`.

    `may_begin` is asked once the slot is reserved: another host may have been refused meanwhile.  If a
    token that had worked is refused, the login is tried once more with another token.
    Raises UpstreamUnavailable, NoRoomToConnect, and HistoryError before the connection begins.
    """
    # The token comes first: no slot is reserved while it is fetched.
    login, refused = await logins.current_server(judge), None
    if login.token is not None:
        on_step("token", "access token available")
    while True:
        try:
            connection = await _open(throttle, login, clock, may_begin, on_step)
        except UpstreamUnavailable as unavailable:
            answer = unavailable.answer
            is_refused = answer.phase is Phase.AUTH and answer.verdict is Verdict.STOP
            if not (is_refused and logins.refused(login)) or refused is not None:
                raise
            refused, login = login, await logins.current_server(judge)
            if login.token == refused.token:
                raise
            on_step("login", f"{answer.text}: retrying with another token")
        else:
            logins.worked(login)
            return connection


async def _open(
    throttle: ThrottleThread,
    login: UpstreamServer,
    clock: Clock,
    may_begin: Callable[[], bool],
    on_step: OnStep,
) -> Connection:
    reservation = await throttle.call(
        lambda throttle: throttle.reserve_connection(OPENING_SECONDS * SECOND_NS)
    )
    if isinstance(reservation, Wait):
        raise NoRoomToConnect(reservation.limit.reason, reservation.until_ns)
    if not may_begin():
        throttle.ended(reservation)
        raise NoRoomToConnect("the account is paused", reservation.reserved_at_ns)
    try:
        async with asyncio.timeout(OPENING_SECONDS):
            return await open_connection(login, clock, on_step=on_step)
    except TimeoutError:
        text = f"the connection was not ready for mail within {OPENING_SECONDS} s"
        raise UpstreamUnavailable(Answer(Verdict.PAUSE, Phase.CONNECT, None, text)) from None
    finally:
        throttle.ended(reservation)
