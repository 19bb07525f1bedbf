"""What listeners tell the log and count: in the sender's process, or in one of their own.

A listener process sends what its `Tally` has through a pipe now and then; the sender's process adds it with
`Metrics.add`.  A dying process loses only what it had not sent yet.
"""

from collections import Counter
from typing import TYPE_CHECKING

from relay.mail.envelope import Envelope, QueueId
from relay.mail.formats import described
from relay.spool.disk.os_errors import is_lack_of_means
from relay.telemetry.events import Events

if TYPE_CHECKING:
    # A listener process of its own needs no prometheus_client.
    from relay.telemetry.metrics import Counts, Metrics, Series

MOST_SPANS = 10_000
"""In memory, while the sender's process takes none."""


class Tally:
    """What a process of listeners counts until it is taken."""

    def __init__(self, events: Events) -> None:
        """`events`: whose lost lines are counted."""
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
    """The `Observer` of `relay.listener.ports`.  Listeners go by their address as the policy writes it."""

    def __init__(self, events: Events, metrics: "Metrics | Tally") -> None:
        self._events, self._metrics = events, metrics

    def connection_opened(self, listener: str, client: str) -> None:
        self._metrics.count("relay_smtpd_connections_total", listener)
        self._metrics.count("relay_smtpd_open_connections", listener)
        self._events.tell("connected", listener=listener, client=client)

    def connection_closed(self, listener: str, client: str, reason: str) -> None:
        self._metrics.count("relay_smtpd_open_connections", listener, by=-1)
        self._events.tell("disconnected", listener=listener, client=client, reason=reason)

    def refused(self, listener: str, client: str, phase: str, reply: str, user: str | None) -> None:
        self._metrics.count("relay_smtpd_rejects_total", listener, phase, reply[:3])
        self._events.refused(listener=listener, client=client, phase=phase, reply=reply, user=user)

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
