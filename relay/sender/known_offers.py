"""What one upstream is known to offer, connection by connection.

Guarantees: what a connection lacks bounces a message only where `relay.verdicts.offers` believes it of the
upstream; of another host or port, and after a restart, nothing is believed.
"""

import math

from relay.clock import Clock
from relay.policy.model import Upstream
from relay.upstream.connection import Connection
from relay.verdicts.offers import DISTRUST_DSN_NS, Offer, Offers
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict


def server_of(upstream: Upstream) -> str:
    """Return the key of what is known: of another host or port nothing is."""
    return f"{upstream.host}:{upstream.port}"


class KnownOffers:
    def __init__(self, server: str, clock: Clock) -> None:
        """`server` is `host:port`."""
        self._server = server
        self._clock = clock
        self._offers = Offers()
        self._no_dsn_until_ns = 0
        self.has_eight_bit = False
        """Whether the last connection offered 8BITMIME."""

    def use(self, server: str) -> None:
        """Forget the offers if the server is another one."""
        if server != self._server:
            self._server, self._offers = server, Offers()
            self._no_dsn_until_ns, self.has_eight_bit = 0, False

    def seen(self, server: str, connection: Connection) -> None:
        """Learn from a new connection, unless the policy has named another server since it was begun."""
        if server == self._server:
            at_ns, offered = connection.opened_at_ns, connection.extensions
            self.has_eight_bit = offered.eight_bit
            most_bytes = math.inf if offered.max_size_bytes is None else offered.max_size_bytes
            self._offers.seen(Offer(at_ns, offered.smtputf8, offered.eight_bit, most_bytes))

    def takes_dsn(self, connection: Connection) -> bool:
        """Return whether to pass on what senders want to be told (RFC 3461)."""
        return connection.extensions.dsn and self._clock.boottime_ns() >= self._no_dsn_until_ns

    def refused_dsn(self) -> None:
        self._no_dsn_until_ns = self._clock.boottime_ns() + DISTRUST_DSN_NS

    def judged(self, unfit: Answer, size_bytes: int) -> Answer:
        """Return the verdict for a message of this size that a connection cannot carry."""
        if unfit.lack is None or not self._offers.is_believed(unfit.lack, size_bytes):
            return unfit._replace(text=f"{unfit.text}, by the word of this connection alone")
        return unfit._replace(verdict=Verdict.BOUNCE)
