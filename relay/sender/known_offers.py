"""What one upstream is known to offer, by what its last connections said.

One reply to EHLO is the word of one host behind the upstream's name on one day.  A message that a connection
cannot carry (8BITMIME, SMTPUTF8, SIZE) is deferred, and bounces only once no connection of `LOOKS` in a row
could carry it; those within `APART_NS` count as one.  Lost at a restart, and with an edit that names another
server.
"""

from collections import deque

from relay.clock import SECOND_NS
from relay.mail.envelope import Shape
from relay.smtp.extensions import Extensions
from relay.upstream.connection import Connection
from relay.upstream.transaction import unfit
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict

LOOKS = 3
APART_NS = 5 * 60 * SECOND_NS
"""Between two that count: what is broken for a moment, such as a restart, is over by then."""


class KnownOffers:
    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Another server is used from now on."""
        self.is_dsn_refused = False
        """It refused parameters of DSN (RFC 3461) that it had offered: the relay tells senders itself."""
        self._looks: deque[tuple[int, set[Extensions]]] = deque(maxlen=LOOKS)
        """When each began, and what was offered in it."""

    def seen(self, connection: Connection) -> None:
        """Learn from a new connection."""
        at_ns = connection.opened_at_ns
        if not self._looks or at_ns - self._looks[-1][0] >= APART_NS:
            self._looks.append((at_ns, set()))
        self._looks[-1][1].add(connection.extensions)

    def judged(self, lack: Answer, shape: Shape) -> Answer:
        """Return the verdict for a message of this shape that a connection cannot carry."""
        offers = [each for _, offered in self._looks for each in offered]
        if len(self._looks) == LOOKS and all(unfit(each, shape) is not None for each in offers):
            return lack._replace(verdict=Verdict.BOUNCE)
        return lack._replace(text=f"{lack.text}, by the word of this connection alone")
