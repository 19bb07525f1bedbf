"""One attempt at some recipients of a message on one connection; and the extensions that an upstream offers.

A reply to EHLO speaks for one host behind the upstream's name, on one day.  So a message that a connection
cannot carry (8BITMIME, SMTPUTF8, SIZE) is deferred.  It bounces only if no connection of the last `LOOKS`
looks could carry it.  Connections opened within `APART_NS` of a look's first belong to that look.  Looks
are lost at a restart, and at an edit that names another server.  Pure.
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
from relay.upstream.transaction import why_unfit
from relay.verdicts.decision import Fate
from relay.verdicts.outcome import Answer
from relay.verdicts.verdict import Verdict

MARKS = {Fate.RELAYED: Status.RELAYED, Fate.BOUNCED: Status.BOUNCED, Fate.EXPIRED: Status.EXPIRED}
LOOKS = 3
APART_NS = 5 * 60 * SECOND_NS
"""Between two looks: a short fault of the upstream, such as a restart, is over by then."""


@dataclass(slots=True)
class Attempt:
    queued: Queued
    message: Message
    connection: Connection
    offered: "OfferedExtensions"
    """Of the connection's server."""
    read_at_ns: int
    """When the message was read, or earlier (boottime)."""
    rewritten: Rewritten | None = None
    """The form that is sent, if a route rewrites it; settlement, reports and log use the original."""
    indices: list[int] = field(default_factory=list)
    """Which recipients of the envelope the attempt is for."""
    reservation: Reservation | None = None
    """None if the upstream is not asked."""
    deadline_ns: int = 0
    """When the transaction must have ended (boottime)."""
    ended_ns: int = 0
    """Boottime; 0 while the transaction runs."""
    conn_use: int = 1
    """The number of this transaction on its connection, from 1."""
    passes_dsn: bool = False
    """The upstream gets the sender's DSN parameters (RFC 3461), and reports success itself."""

    def __post_init__(self) -> None:
        # A recipient that was deferred is not tried again before all others were tried.
        untried = [index for index in self.left if index not in self.queued.tried]
        self.indices = untried or list(self.left)
        # The upstream reports to the reverse path that it got; a rewritten one is not the sender.
        may_pass_dsn = self.connection.extensions.dsn and not self.offered.is_dsn_refused
        self.passes_dsn = self.rewritten is None and may_pass_dsn

    @property
    def shape(self) -> Shape:
        return self.message.shape if self.rewritten is None else self.rewritten.shape(self.message.shape)

    @property
    def sent_envelope(self) -> Envelope:
        envelope, rewritten = self.message.envelope, self.rewritten
        return envelope if rewritten is None else replace(envelope, reverse_path=rewritten.reverse_path)

    @property
    def left(self) -> tuple[int, ...]:
        """Return the indices of this part's recipients that were left when the message was read."""
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
    """Return the recipients left of a part, without those in `gone`."""
    return which_of(message, [index for index in queued.part.left(message.left) if index not in gone])


def which_of(message: Message, left: Sequence[int]) -> RecipientsLeft:
    recipients = [message.envelope.recipients[index] for index in left]
    domains = {domain_key(each.rpartition("@")[2]) for each in recipients}
    domain = domains.pop() if len(domains) == 1 else ""
    return RecipientsLeft(len(recipients), domain, tuple(recipients[:RECIPIENTS_SHOWN]))


def keys_of(queued: Queued) -> list[Place]:
    """Return the keys of limits that may make the message wait, whichever of its recipients go."""
    by = queued.origin
    sender, sender_domain, client, user = sender_keys_of(by.sent_reverse_path, by.client, by.user)
    keys = [Place("sender", sender), Place("sender_domain", sender_domain)]
    keys += [Place("client", client), Place("user", user)]
    if queued.domain:
        keys.append(Place("recipient_domain", queued.domain))
    return keys


class OfferedExtensions:
    """The extensions that one server offered on its last connections."""

    def __init__(self) -> None:
        self.is_dsn_refused = False
        """The upstream refused DSN parameters (RFC 3461) that it had offered: the relay reports success."""
        self.certificate_ends_at_ns: int | None = None
        """Wall clock: when the server's certificate ends, as of the last connection."""
        self._looks: deque[tuple[int, set[Extensions]]] = deque(maxlen=LOOKS)
        """When each look began (boottime), and what was offered in it."""

    def add(self, connection: Connection) -> None:
        self.certificate_ends_at_ns = connection.certificate_ends_at_ns
        at_ns = connection.opened_at_ns
        if not self._looks or at_ns - self._looks[-1][0] >= APART_NS:
            self._looks.append((at_ns, set()))
        self._looks[-1][1].add(connection.extensions)

    def judge(self, lack: Answer, shape: Shape) -> Answer:
        """Return `lack`, as a BOUNCE if no connection of the last `LOOKS` looks could carry the message."""
        offers = [each for _, offered in self._looks for each in offered]
        if len(self._looks) == LOOKS and all(why_unfit(each, shape) is not None for each in offers):
            return lack._replace(verdict=Verdict.BOUNCE)
        return lack._replace(text=f"{lack.text}; another connection may accept it")
