"""What one upstream is known to offer, by what its last connections said.

One reply to EHLO is the word of one host behind the upstream's name on one day.  A message that a connection
cannot carry (8BITMIME, SMTPUTF8, SIZE) is deferred, and bounces only once `LOOKS` connections in a row, each
made `APART_NS` or more after the one before, could not carry it.  Of another host or port, and after a
restart, nothing is believed.

DSN is no need: without it the relay tells the sender itself.  Where a server refuses its parameters though it
offered it, they are not sent to it for DISTRUST_DSN_NS.
"""

import math
from collections import deque

from relay.clock import SECOND_NS, Clock
from relay.policy.model import Upstream
from relay.upstream.connection import Connection
from relay.verdicts.offers import Need
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict

LOOKS = 3
APART_NS = 5 * 60 * SECOND_NS
"""Between two that count: what is broken for a moment, such as a restart, is over by then."""
DISTRUST_DSN_NS = 12 * 3600 * SECOND_NS
"""How long an offer of DSN that turned out false counts for nothing."""


def server_of(upstream: Upstream) -> str:
    """Return the key of what is known: of another host or port nothing is."""
    return f"{upstream.host}:{upstream.port}"


class KnownOffers:
    def __init__(self, server: str, clock: Clock) -> None:
        """`server` is `host:port`."""
        self._clock = clock
        self._server = ""
        self.use(server)

    def use(self, server: str) -> None:
        """Forget the offers if the server is another one."""
        if server != self._server:
            self._server = server
            self._last: deque[tuple[int, dict[Need, float]]] = deque(maxlen=LOOKS)
            """When each was made, and by need the largest message that it carries."""
            self._no_dsn_until_ns, self.has_eight_bit = 0, False

    def seen(self, server: str, connection: Connection) -> None:
        """Learn from a new connection, unless the policy has named another server since it was begun."""
        if server != self._server:
            return
        at_ns, offered = connection.opened_at_ns, connection.extensions
        self.has_eight_bit = offered.eight_bit
        carries: dict[Need, float] = {
            Need.SMTPUTF8: math.inf if offered.smtputf8 else 0,
            Need.EIGHT_BIT: math.inf if offered.eight_bit else 0,
            Need.SIZE: math.inf if offered.max_size_bytes is None else offered.max_size_bytes,
        }
        if self._last and at_ns - self._last[-1][0] < APART_NS:
            # Of several shortly after each other the best counts.
            at_ns, others = self._last.pop()
            carries = {need: max(most, others[need]) for need, most in carries.items()}
        self._last.append((at_ns, carries))

    def takes_dsn(self, connection: Connection) -> bool:
        """Return whether to pass on what senders want to be told (RFC 3461)."""
        return connection.extensions.dsn and self._clock.boottime_ns() >= self._no_dsn_until_ns

    def refused_dsn(self) -> None:
        self._no_dsn_until_ns = self._clock.boottime_ns() + DISTRUST_DSN_NS

    def judged(self, unfit: Answer, size_bytes: int) -> Answer:
        """Return the verdict for a message of this size that a connection cannot carry."""
        need = unfit.lack
        is_agreed = len(self._last) == LOOKS and all(
            need is not None and carries[need] < size_bytes for _, carries in self._last
        )
        if is_agreed:
            return unfit._replace(verdict=Verdict.BOUNCE)
        return unfit._replace(text=f"{unfit.text}, by the word of this connection alone")
