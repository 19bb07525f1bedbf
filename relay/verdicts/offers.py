"""What an upstream is believed not to offer, by what its last connections said.  Pure.

One reply to EHLO is the word of one host behind the upstream's name on one day.  A message that a connection
cannot carry (8BITMIME, SMTPUTF8, SIZE) is deferred, and bounces only once `LOOKS` connections in a row, each
made `APART_NS` or more after the one before, did not offer what it needs.

DSN is no need: without it the relay tells the sender itself.  Where a server refuses its parameters though it
offered it (`is_about_dsn`), they are not sent to it for DISTRUST_DSN_NS.
"""

import enum
from collections import deque
from typing import NamedTuple

from relay.clock import SECOND_NS
from relay.smtp.reply import Reply

LOOKS = 3
"""So many connections in a row that agree are no odd host."""
APART_NS = 5 * 60 * SECOND_NS
"""Between two that count: what is broken for a moment, such as a restart, is over by then."""
DISTRUST_DSN_NS = 12 * 3600 * SECOND_NS
"""How long an offer of DSN that turned out false counts for nothing."""
_OF_PARAMETERS = frozenset({500, 501, 504, 555})
"""RFC 5321, 4.1.1.11 and 4.2.4; 500 for a line that is too long."""


def is_about_dsn(reply: Reply) -> bool:
    """Whether the refusal of a command that carried DSN parameters may be of these, and not of an address."""
    # RFC 3463, 3.6: X.5.z is about the protocol; X.1.z would be about the address.
    return reply.code in _OF_PARAMETERS and (reply.enhanced is None or reply.enhanced[1:4] == ".5.")


class Need(enum.StrEnum):
    SMTPUTF8 = "SMTPUTF8"
    EIGHT_BIT = "8BITMIME"
    SIZE = "SIZE"


class Offer(NamedTuple):
    """What one connection offered, or several made shortly after each other."""

    at_ns: int
    smtputf8: bool
    eight_bit: bool
    most_bytes: float
    """Infinite where no largest size was announced."""

    def lacks(self, need: Need, size_bytes: int) -> bool:
        if need is Need.SIZE:
            return self.most_bytes < size_bytes
        return not (self.smtputf8 if need is Need.SMTPUTF8 else self.eight_bit)


class Offers:
    def __init__(self) -> None:
        self._last: deque[Offer] = deque(maxlen=LOOKS)

    def seen(self, offer: Offer) -> None:
        if self._last and offer.at_ns - self._last[-1].at_ns < APART_NS:
            at_ns, smtputf8, eight_bit, most_bytes = self._last.pop()
            most_bytes = max(most_bytes, offer.most_bytes)
            offer = Offer(at_ns, smtputf8 or offer.smtputf8, eight_bit or offer.eight_bit, most_bytes)
        self._last.append(offer)

    def is_believed(self, need: Need, size_bytes: int = 0) -> bool:
        """Whether the upstream is believed to lack it; for SIZE, to take no message of so many octets."""
        return len(self._last) == LOOKS and all(offer.lacks(need, size_bytes) for offer in self._last)
