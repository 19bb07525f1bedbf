"""What one upstream is known to offer, by what its last connections said.

One reply to EHLO is the word of one host behind the upstream's name on one day.  A message that a connection
cannot carry (8BITMIME, SMTPUTF8, SIZE) is deferred, and bounces only once `LOOKS` connections in a row, each
made `APART_NS` or more after the one before, could not carry it.  Lost at a restart, and with an edit that
names another server.
"""

import math
from collections import deque

from relay.clock import SECOND_NS
from relay.upstream.connection import Connection
from relay.verdicts.offers import Need
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict

LOOKS = 3
APART_NS = 5 * 60 * SECOND_NS
"""Between two that count: what is broken for a moment, such as a restart, is over by then."""


class KnownOffers:
    def __init__(self) -> None:
        self.is_dsn_refused = False
        """It refused parameters of DSN (RFC 3461) that it had offered: the relay tells senders itself."""
        self._last: deque[tuple[int, dict[Need, float]]] = deque(maxlen=LOOKS)
        """When each was made, and by need the largest message that it carries."""

    def forget(self) -> None:
        """Another server is used from now on."""
        self.is_dsn_refused = False
        self._last.clear()

    def seen(self, connection: Connection) -> None:
        """Learn from a new connection."""
        at_ns, offered = connection.opened_at_ns, connection.extensions
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

    def judged(self, unfit: Answer, size_bytes: int) -> Answer:
        """Return the verdict for a message of this size that a connection cannot carry."""
        need = unfit.lack
        is_agreed = len(self._last) == LOOKS and all(
            need is not None and carries[need] < size_bytes for _, carries in self._last
        )
        if is_agreed:
            return unfit._replace(verdict=Verdict.BOUNCE)
        return unfit._replace(text=f"{unfit.text}, by the word of this connection alone")
