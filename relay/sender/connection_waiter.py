"""Connections that are ready before a slot is reserved for them.

A slot is occupied from its reservation, so nothing slow may stand between it and MAIL:
the connection is opened, secured and logged in first.  What was opened for nothing goes
back to the pool.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from relay.clock import SECOND_NS, Clock
from relay.mail.text import clean
from relay.sender.opener import NoRoomToConnect
from relay.smtp.reply import Phase
from relay.telemetry.events import Events
from relay.telemetry.metrics import Metrics
from relay.throttle.history_format import HistoryError
from relay.upstream.connection import Connection, NoMeans, UpstreamUnavailable
from relay.upstream.pool import Pool
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict

ENOUGH_NS = 30 * SECOND_NS
"""How long at least no more connections are tried after the upstream refused one while others work."""
MEANS_RETRY_NS = SECOND_NS


class ReadyConnections:
    """Has connections of one upstream opened, and hands them out once they are ready."""

    def __init__(
        self,
        upstream: str,
        pool: Pool[Connection],
        events: Events,
        metrics: Metrics,
        clock: Clock,
        *,
        on_change: Callable[[], None],
        on_unavailable: Callable[[Answer], None],
    ) -> None:
        """`on_change` is called when there is one more, or none to be had; the latter with its reason."""
        self._upstream = upstream
        self._pool = pool
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._on_change = on_change
        self._on_unavailable = on_unavailable
        self._opening: set[asyncio.Task[None]] = set()
        self._is_stopped = False
        self._ready: deque[Connection] = deque()
        self._enough_until_ns = 0
        self._has_means_at_ns = 0
        """When it is tried again, after we had no descriptor or memory for a connection."""
        self._failure: HistoryError | None = None

    @property
    def is_opening(self) -> bool:
        """Whether a connection is on its way, which will be told of."""
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
        # By the pool's own count: one that is on its way from a transaction to who waits for it is open.
        can_spare = self._pool.open > 0 and self._clock.boottime_ns() < self._enough_until_ns
        is_enough = self._is_stopped or can_spare or self._clock.boottime_ns() < self._has_means_at_ns
        wanted = 0 if is_enough else most - len(connections) - len(self._opening)
        if self._pool.open == 0:
            # The first has to log in before others try: some lock an account after a few wrong passwords.
            wanted = min(wanted, 1 - len(self._opening))
        for _ in range(wanted if openings is None else min(wanted, openings)):
            opening = asyncio.create_task(self._open())
            self._opening.add(opening)
        return connections

    def let_go(self) -> None:
        """Give back what was opened for nothing."""
        while self._ready:
            self._pool.release(self._ready.popleft())

    def stop(self) -> None:
        """Open nothing more."""
        self._is_stopped = True
        for opening in self._opening:
            opening.cancel()
        self.let_go()

    def spare(self, asked_ns: int) -> None:
        """Do with the connections that there are, for a while, or for as long as the upstream asks."""
        self._enough_until_ns = self._clock.boottime_ns() + max(ENOUGH_NS, asked_ns)

    async def _open(self) -> None:
        try:
            connection = await self._pool.acquire()
        except UpstreamUnavailable as unavailable:
            if self._is_stopped:
                return
            self._tell_unavailable(unavailable.answer)
        except NoMeans as lack:
            self._events.shortage(where=f"upstream {self._upstream}", error=str(lack))
            self._has_means_at_ns = self._clock.boottime_ns() + MEANS_RETRY_NS
            asyncio.get_running_loop().call_later(MEANS_RETRY_NS / SECOND_NS, self._on_change)
            return
        except NoRoomToConnect:
            pass  # who looks again finds out until when
        except HistoryError as failure:
            self._failure = failure
        except Exception as error:  # noqa: BLE001 - whatever it is, mail must not silently stop
            self._events.fault(where=f"upstream {self._upstream}", error=error)
            self._metrics.fault()
            text = clean(f"no connection could be opened: {error}")
            self._tell_unavailable(Answer(Verdict.PAUSE, Phase.CONNECT, None, text))
        else:
            if self._is_stopped:
                self._pool.release(connection)
                return
            if connection.transactions == 0:
                self._metrics.connected(self._upstream)
                self._events.upstream_connected(
                    upstream=self._upstream, relay=connection.name, tls=connection.tls
                )
            self._ready.append(connection)
        finally:
            self._opening.discard(asyncio.current_task())
        # Told last: who looks again must not count on this one still coming.
        self._on_change()

    def _tell_unavailable(self, answer: Answer) -> None:
        self._metrics.connect_failed(self._upstream, answer)
        self._on_unavailable(answer)
