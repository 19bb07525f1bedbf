"""One message on its way to some of its recipients."""

from collections.abc import Collection
from dataclasses import dataclass

from relay.queue.queued import Queued
from relay.spool.interface import Message, runs
from relay.telemetry.events import Delays
from relay.throttle.keys import run_of
from relay.throttle.throttle import Reservation
from relay.upstream.connection import Connection


@dataclass(slots=True)
class Attempt:
    """Some recipients of one message, on one connection; from its taking to its settlement."""

    queued: Queued
    message: Message
    connection: Connection
    indices: list[int]
    """Of the recipients in the envelope."""
    reservation: Reservation | None = None
    """Its slot; None where the upstream is not asked."""
    ended_ns: int = 0
    conn_use: int = 1
    """Which transaction of its connection it was."""

    @property
    def took_ns(self) -> int:
        return 0 if self.reservation is None else self.ended_ns - self.reservation.reserved_at_ns

    @property
    def delays(self) -> Delays:
        if self.reservation is None:
            return Delays()
        queued_ns = self.reservation.reserved_at_ns - self.queued.arrived_at_ns
        return Delays(queued_ns=queued_ns, transmitting_ns=self.took_ns)

    def domains_left(
        self, gone: Collection[int], tried: Collection[int] | None = None
    ) -> tuple[tuple[str, int], ...]:
        """Return the domains of the recipients left but for some, in the order of asking for them.

        First come those that were not tried yet; `tried` None: as before the attempt.
        """
        before = self.queued.tried if tried is None else tried
        left = [index for index in self.message.left if index not in gone]
        in_order = [i for i in left if i not in before] + [i for i in left if i in before]
        addresses = (self.message.envelope.recipients[index] for index in in_order)
        return tuple(run_of(domain, count) for domain, count in runs(addresses))
