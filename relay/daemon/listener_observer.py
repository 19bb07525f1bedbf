"""What listeners report: events in the log, and metrics, which a listener process only tallies.

A process that dies loses the counts that it had not sent.
"""

from collections import Counter
from typing import TYPE_CHECKING

from relay.clock import SECOND_NS, Clock
from relay.mail.envelope import Envelope, QueueId
from relay.mail.formats import described
from relay.spool.disk.os_errors import is_lack_of_means
from relay.telemetry.events import Events

if TYPE_CHECKING:
    # A listener process does not load prometheus_client.
    from relay.telemetry.metrics import Counts, Metrics, Series

MOST_SPANS = 10_000
"""How many spans a listener process holds in memory while the sender's process takes none."""
MOST_REFUSALS = 100
"""How many refusals are logged in a second, so that a flood of them does not flood the log."""
LONGEST_NAME = 100
"""Characters of a user name, logged as by Postfix although there may be no such user."""


class Tally:
    """What a listener process has counted and not yet sent to the sender's process (`Metrics.add`)."""

    def __init__(self, events: Events) -> None:
        """`events` is the log whose lost lines are counted."""
        self._events = events
        self._numbers: Counter[Series] = Counter()
        self._spans: list[list[str | int]] = []

    def count(self, *series: str, by: int = 1) -> None:
        self._numbers[series] += by

    def observe(self, *series: str, span_ns: int) -> None:
        if len(self._spans) < MOST_SPANS:
            self._spans.append([*series, span_ns])

    def take(self) -> "Counts":
        self.count("relay_log_lost_lines_total", by=self._events.take_lines_lost())
        numbers, self._numbers = self._numbers, Counter()
        spans, self._spans = self._spans, []
        return {"numbers": [[*series, number] for series, number in numbers.items()], "spans": spans}


class ListenerObserver:
    """The `Observer` of `relay.listener.ports`.  A listener is named by its address as in the policy."""

    def __init__(self, events: Events, metrics: "Metrics | Tally", clock: Clock) -> None:
        self._events, self._metrics, self._clock = events, metrics, clock
        self._refusals = self._second_began_ns = 0
        """Refusals in the present second, and when that began (boottime)."""

    def connection_opened(self, listener: str, client: str) -> None:
        self._metrics.count("relay_smtpd_connections_total", listener)
        self._metrics.count("relay_smtpd_open_connections", listener)
        self._events.tell("connected", listener=listener, client=client)

    def connection_closed(self, listener: str, client: str, reason: str) -> None:
        self._metrics.count("relay_smtpd_open_connections", listener, by=-1)
        self._events.tell("disconnected", listener=listener, client=client, reason=reason)

    def refused(self, listener: str, client: str, phase: str, reply: str, user: str | None) -> None:
        self._metrics.count("relay_smtpd_rejects_total", listener, phase, reply[:3])
        now_ns = self._clock.boottime_ns()
        if now_ns - self._second_began_ns >= SECOND_NS:
            if (untold := self._refusals - MOST_REFUSALS) > 0:
                self._events.tell("refusals_untold", untold=untold)
            self._refusals, self._second_began_ns = 0, now_ns
        self._refusals += 1
        if self._refusals <= MOST_REFUSALS:
            self._events.tell(
                "refused",
                listener=listener,
                client=client,
                phase=phase,
                reply=reply,
                user=user[:LONGEST_NAME] if user else None,
                # The name of Postfix for the reply to the final dot.
                _phase="END-OF-MESSAGE" if phase == "eod" else phase.upper(),
            )

    def accepted(
        self,
        listener: str,
        queue_id: QueueId,
        envelope: Envelope,
        message_id: str | None,
        *,
        size_bytes: int,
        commit_ns: int,
    ) -> None:
        metrics, nrcpt = self._metrics, len(envelope.recipients)
        metrics.count("relay_smtpd_messages_accepted_total", listener)
        metrics.count("relay_smtpd_recipients_accepted_total", listener, by=nrcpt)
        metrics.count("relay_smtpd_received_bytes_total", listener, by=size_bytes)
        metrics.observe("relay_smtpd_commit_duration_seconds", listener, span_ns=commit_ns)
        self._events.tell(
            "accepted",
            listener=listener,
            queue_id=queue_id,
            client=envelope.client,
            helo=envelope.helo,
            protocol=envelope.protocol,
            user=envelope.user,
            message_id=message_id,
            reverse_path=envelope.reverse_path,
            size_bytes=size_bytes,
            nrcpt=nrcpt,
            commit_ns=commit_ns,
        )

    def fault(self, listener: str, client: str, error: BaseException) -> None:
        if is_lack_of_means(error):
            self._events.shortage(where=f"listener {listener}", error=described(error))
            return
        self._metrics.count("relay_smtpd_faults_total", listener)
        self._events.fault(where=f"listener {listener}", error=error, client=client)
