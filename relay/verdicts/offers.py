"""What an upstream is believed not to offer, by what its connections said.  Pure.

One reply to EHLO is the word of one host behind the upstream's name on one day.  A message that
a connection cannot carry (8BITMIME, SMTPUTF8, SIZE) is deferred, and bounces only once
the upstream is *believed* to lack what it needs: `LOOKS` connections in a row did not offer it, each
made `APART_NS` or more after the one before; `APART_AGAIN_NS` where it was offered before, ever.
So an upstream that never offers 8BITMIME bounces its first such message after ten minutes and
all others at once; an upstream that offered it bounces nothing for a day.

DSN is no need: without it the relay tells the sender itself.  Where a server refuses its parameters though it
offered it (`is_about_dsn`), they are not sent to it for DISTRUST_DSN_NS.

SIZE is a number, so there is a row for each number that was announced: that nothing above it
is taken.  A smaller message than the lowest is taken by all; of two numbers the row of the
higher one is at least as long.  Memory is bounded: with too many numbers one in the
middle is forgotten, and what lies above it waits for longer.

Instants are boottime of the current boot in nanoseconds; `OffersRecord.moved` brings those of
another boot here, by the wall clock.
"""

import enum
from dataclasses import dataclass, replace
from typing import Self

from relay.clock import SECOND_NS, shift_ns
from relay.smtp.reply import Reply

LOOKS = 3
"""So many connections in a row that agree are no odd host."""
APART_NS = 5 * 60 * SECOND_NS
"""Between two that count: what is broken for a moment, such as a restart, is over by then."""
APART_AGAIN_NS = 12 * 3600 * SECOND_NS
"""Where it was offered before: people have a day to notice and mend what broke."""
MOST_SIZES = 16
"""Announced numbers that are remembered; real upstreams have one, or one a host."""


DISTRUST_DSN_NS = APART_AGAIN_NS
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


@dataclass(frozen=True, slots=True)
class Row:
    """Connections in a row that did not offer something."""

    looks: int = 0
    """How many of them were far enough apart to count; `LOOKS` is enough."""
    last_at_ns: int = 0
    was_offered: bool = False
    """By any connection before them."""

    @property
    def is_believed(self) -> bool:
        return self.looks >= LOOKS

    def lacked(self, at_ns: int) -> Self:
        apart_ns = APART_AGAIN_NS if self.was_offered else APART_NS
        if self.is_believed or (self.looks and at_ns - self.last_at_ns < apart_ns):
            return self
        return replace(self, looks=self.looks + 1, last_at_ns=at_ns)


OFFERED = Row(was_offered=True)
"""The row behind a connection that offered it."""


@dataclass(frozen=True, slots=True)
class Offers:
    smtputf8: Row = Row()
    eight_bit: Row = Row()
    sizes: tuple[tuple[int, Row], ...] = ()
    """By each announced number of octets, ascending: whether nothing above it is taken."""
    has_taken_all: bool = False
    """A connection announced no largest size."""

    def seen(self, at_ns: int, *, smtputf8: bool, eight_bit: bool, max_size_bytes: int | None) -> Self:
        """Return the offers after one more connection; None: it announced no largest size."""
        return replace(
            self,
            smtputf8=OFFERED if smtputf8 else self.smtputf8.lacked(at_ns),
            eight_bit=OFFERED if eight_bit else self.eight_bit.lacked(at_ns),
            sizes=self._sizes(at_ns, max_size_bytes),
            has_taken_all=self.has_taken_all or max_size_bytes is None,
        )

    def is_believed(self, need: Need, size_bytes: int = 0) -> bool:
        """Whether the upstream is believed to lack it; for SIZE, to take no message of so many octets."""
        match need:
            case Need.SMTPUTF8:
                return self.smtputf8.is_believed
            case Need.EIGHT_BIT:
                return self.eight_bit.is_believed
            case Need.SIZE:
                # All that was announced below the message, of which the highest has the longest row.
                below = [row for announced, row in self.sizes if announced < size_bytes]
                return bool(below) and below[-1].is_believed

    def _sizes(self, at_ns: int, max_size_bytes: int | None) -> tuple[tuple[int, Row], ...]:
        rows = dict(self.sizes)
        if max_size_bytes is None:
            return tuple((announced, OFFERED) for announced in rows)
        if max_size_bytes not in rows:
            below = [row for announced, row in self.sizes if announced < max_size_bytes]
            is_above = self.has_taken_all or any(announced > max_size_bytes for announced in rows)
            # Who announced less did not take this either.
            rows[max_size_bytes] = replace(below[-1] if below else Row(), was_offered=is_above)
        known = [
            (announced, row.lacked(at_ns) if announced >= max_size_bytes else OFFERED)
            for announced, row in sorted(rows.items())
        ]
        while len(known) > MOST_SIZES:
            # Neither end: the lowest says what all take, the highest what none does.
            del known[next(at for at in range(1, len(known)) if known[at][0] != max_size_bytes)]
        return tuple(known)


@dataclass(frozen=True, slots=True)
class OffersRecord:
    boot_id: str
    """Of the boot whose instants these are."""
    written_at_ns: int
    wall_ns: int
    """The wall clock at that instant."""
    server: str
    """`host:port`; of another one nothing is known."""
    offers: Offers

    def moved(self, boot_id: str, now_ns: int, wall_ns: int) -> Offers:
        if boot_id == self.boot_id:
            return self.offers
        by_ns = shift_ns(self.written_at_ns, self.wall_ns, now_ns, wall_ns)
        return replace(
            self.offers,
            smtputf8=_shifted(self.offers.smtputf8, by_ns),
            eight_bit=_shifted(self.offers.eight_bit, by_ns),
            sizes=tuple((announced, _shifted(row, by_ns)) for announced, row in self.offers.sizes),
        )

    def fault(self) -> str:
        """Return what makes no sense in it, or nothing."""
        announced = [size for size, _ in self.offers.sizes]
        rows = [self.offers.smtputf8, self.offers.eight_bit, *(row for _, row in self.offers.sizes)]
        is_ordered = announced == sorted(set(announced))
        is_past = all(row.last_at_ns <= self.written_at_ns for row in rows)
        return "" if is_ordered and is_past else "its numbers are out of order"


def _shifted(row: Row, by_ns: int) -> Row:
    return replace(row, last_at_ns=row.last_at_ns + by_ns) if row.looks else row
