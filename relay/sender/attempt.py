"""Some recipients of one message on one connection, from its taking to its settlement; and what is offered.

One reply to EHLO is the word of one host behind the upstream's name on one day.  A message that a connection
cannot carry (8BITMIME, SMTPUTF8, SIZE) is deferred, and bounces only once no connection of `LOOKS` in a row
could carry it; those within `APART_NS` count as one.  Lost at a restart, and with an edit that names another
server.  Pure.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from relay.clock import SECOND_NS
from relay.mail.dsn import Notify
from relay.mail.envelope import Envelope, Shape
from relay.mail.rewriting import Rewritten
from relay.queue.queued import RECIPIENTS_SHOWN, Queued, RecipientsLeft
from relay.smtp.extensions import Extensions
from relay.spool.interface import Message, Status
from relay.telemetry.events import Delays
from relay.throttle.admission import Place, domain_key
from relay.throttle.admission import keys_of as sender_keys_of
from relay.throttle.throttle import Reservation
from relay.upstream.connection import Connection
from relay.upstream.transaction import unfit
from relay.verdicts.decision import Fate
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict

MARKS = {Fate.RELAYED: Status.RELAYED, Fate.BOUNCED: Status.BOUNCED, Fate.EXPIRED: Status.EXPIRED}
LOOKS = 3
APART_NS = 5 * 60 * SECOND_NS
"""Between two that count: what is broken for a moment, such as a restart, is over by then."""


@dataclass(slots=True)
class Attempt:
    queued: Queued
    message: Message
    connection: Connection
    rewritten: Rewritten | None = None
    """What of it is sent in another form; what is settled, reported and logged is the message of before."""
    indices: list[int] = field(default_factory=list)
    """Of the recipients in the envelope."""
    reservation: Reservation | None = None
    """Its slot; None where the upstream is not asked."""
    is_content_out: bool = False
    """The final dot may have gone out."""
    ended_ns: int = 0
    conn_use: int = 1
    """Which transaction of its connection it was."""
    passes_dsn: bool = False
    """What its sender wants to be told was passed on: the upstream tells of success."""

    def __post_init__(self) -> None:
        # None is asked for twice in a round.
        untried = [index for index in self.left if index not in self.queued.past.tried]
        self.indices = untried or list(self.left)
        # A report that the upstream makes goes to whom it knows as the sender.
        self.passes_dsn = self.rewritten is None and self.connection.extensions.dsn

    @property
    def shape(self) -> Shape:
        return self.message.shape if self.rewritten is None else self.rewritten.shape(self.message.shape)

    @property
    def sent_envelope(self) -> Envelope:
        envelope, rewritten = self.message.envelope, self.rewritten
        return envelope if rewritten is None else replace(envelope, reverse_path=rewritten.reverse_path)

    @property
    def left(self) -> tuple[int, ...]:
        """Return the indices of the recipients that were to do when the message was read, of this part."""
        return self.queued.part.left(self.message.left)

    def status_of(self, index: int, fate: Fate) -> Status:
        is_told = fate is Fate.RELAYED and not self.passes_dsn
        if is_told and self.message.envelope.tells_of(index, Notify.SUCCESS):
            return Status.SUCCESS
        return MARKS[fate]

    @property
    def took_ns(self) -> int:
        return 0 if self.reservation is None else self.ended_ns - self.reservation.reserved_at_ns

    @property
    def delays(self) -> Delays:
        if self.reservation is None:
            return Delays()
        queued_ns = self.reservation.reserved_at_ns - self.queued.arrived_at_ns
        return Delays(queued_ns=queued_ns, transmitting_ns=self.took_ns)


def recipients_left(message: Message, queued: Queued, gone: Collection[int] = ()) -> RecipientsLeft:
    """Return the recipients of a part but for some."""
    return which_of(message, [index for index in queued.part.left(message.left) if index not in gone])


def which_of(message: Message, left: Sequence[int]) -> RecipientsLeft:
    recipients = [message.envelope.recipients[index] for index in left]
    domains = {domain_key(each.rpartition("@")[2]) for each in recipients}
    domain = domains.pop() if len(domains) == 1 else ""
    return RecipientsLeft(len(recipients), domain, tuple(recipients[:RECIPIENTS_SHOWN]))


def keys_of(queued: Queued) -> list[Place]:
    """Return the keys of limits that a message may have to wait for, whichever of its recipients go."""
    by = queued.origin
    sender, sender_domain, client, user = sender_keys_of(by.sent_reverse_path, by.client, by.user)
    keys = [Place("sender", sender), Place("sender_domain", sender_domain)]
    keys += [Place("client", client), Place("user", user)]
    if queued.domain:
        keys.append(Place("recipient_domain", queued.domain))
    return keys


class KnownOffers:
    """What one upstream is known to offer, by what its last connections said."""

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
