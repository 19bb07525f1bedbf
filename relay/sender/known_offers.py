"""What one upstream is known to offer, connection by connection, and over a restart.

Guarantees: what a connection lacks bounces a message only where `relay.verdicts.offers` believes it of the
upstream; of another host or port nothing is believed.  A file that is missing or damaged says
nothing, so nothing is believed at once.  A false offer of DSN is forgotten at a restart: it costs a slot.
"""

from collections.abc import Callable

from relay.clock import Clock
from relay.policy.model import Upstream
from relay.upstream.connection import Connection
from relay.verdicts.offers import APART_NS, DISTRUST_DSN_NS, OFFERED, Offers, OffersRecord
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict


def server_of(upstream: Upstream) -> str:
    """Return the key of what is known: of another host or port nothing is."""
    return f"{upstream.host}:{upstream.port}"


class KnownOffers:
    def __init__(self, server: str, clock: Clock, *, keep: Callable[[OffersRecord], None]) -> None:
        """`server` is `host:port`; `keep` is given what a restart has to know, each time that it changes."""
        self._server = server
        self._clock = clock
        self._keep = keep
        self._offers = Offers()
        self._looked_again_at_ns: int | None = None
        self._no_dsn_until_ns = 0

    def recall(self, record: OffersRecord) -> None:
        if record.server == self._server:
            self._offers = record.moved(
                self._clock.boot_id(), self._clock.boottime_ns(), self._clock.wall_ns()
            )

    def use(self, server: str) -> None:
        """Forget the offers if the server is another one."""
        if server != self._server:
            self._server, self._offers, self._looked_again_at_ns = server, Offers(), None
            self._no_dsn_until_ns = 0

    def seen(self, server: str, connection: Connection) -> None:
        """Learn from a new connection, unless the policy has named another server since it was begun."""
        if server != self._server:
            return
        offered = connection.extensions
        offers = self._offers.seen(
            connection.opened_at_ns,
            smtputf8=offered.smtputf8,
            eight_bit=offered.eight_bit,
            max_size_bytes=offered.max_size_bytes,
        )
        if offers != self._offers:
            self._offers = offers
            now_ns = self._clock.boottime_ns()
            self._keep(
                OffersRecord(self._clock.boot_id(), now_ns, self._clock.wall_ns(), self._server, offers)
            )

    @property
    def has_eight_bit(self) -> bool:
        """Whether the last connection offered 8BITMIME."""
        return self._offers.eight_bit == OFFERED

    def takes_dsn(self, connection: Connection) -> bool:
        """Return whether to pass on what senders want to be told (RFC 3461)."""
        return connection.extensions.dsn and self._clock.boottime_ns() >= self._no_dsn_until_ns

    def refused_dsn(self) -> None:
        self._no_dsn_until_ns = self._clock.boottime_ns() + DISTRUST_DSN_NS

    def judged(self, unfit: Answer, size_bytes: int) -> Answer:
        """Return the verdict for a message of this size that a connection cannot carry."""
        need = unfit.lack
        if need is None or not self._offers.is_believed(need, size_bytes):
            return unfit._replace(text=f"{unfit.text}, by the word of this connection alone")
        return unfit._replace(verdict=Verdict.BOUNCE)

    def looks_again(self) -> bool:
        """Return whether to drop a connection that lacks something, for one that may have it.

        Not more often than a look counts: each is a connection more by the upstream's count.
        """
        now_ns, before_ns = self._clock.boottime_ns(), self._looked_again_at_ns
        if before_ns is not None and now_ns - before_ns < APART_NS:
            return False
        self._looked_again_at_ns = now_ns
        return True
