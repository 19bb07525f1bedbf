"""What listeners tell and count, here or in a process of their own."""

import io
import json

import pytest

from relay.mail.envelope import Envelope, QueueId
from relay.telemetry.events import Events, Level
from relay.telemetry.listeners import ListenerObserver, Tally
from relay.telemetry.metrics import Metrics
from tests.fakes.clock import FakeClock

HERE = "127.0.0.1:2525"
CLIENT = "mail.example.org[192.0.2.1]"
ENVELOPE = Envelope("ann@example.org", ("a@x", "b@y"), 0, CLIENT, "mail", "ESMTP", "ann")


class Listeners:
    """What Prometheus and the log see of listeners in two processes."""

    def __init__(self) -> None:
        self.log, clock = io.StringIO(), FakeClock()
        self.events = Events(self.log, "text", clock, level=Level.DEBUG)
        self.metrics, self.tally = Metrics(clock), Tally(self.events)
        self.metrics.know_listeners([HERE])
        self.here = ListenerObserver(self.events, self.metrics)
        self.elsewhere = ListenerObserver(self.events, self.tally)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"relay_smtpd_{name}", {"listener": HERE, **labels})

    def send(self) -> None:
        self.metrics.add(json.loads(json.dumps(self.tally.take())), "a process")


def a_session(observer: ListenerObserver) -> None:
    observer.connection_opened(HERE, CLIENT)
    observer.refused(HERE, CLIENT, "rcpt", "550 5.7.1 relaying denied", None)
    queue_id = QueueId("0123456789abcdef")
    observer.accepted(HERE, queue_id, ENVELOPE, "<1@x>", size_bytes=77, commit_ns=3_000_000)
    observer.fault(HERE, CLIENT, ValueError("odd"))


def test_what_a_listener_tells_is_logged() -> None:
    listeners = Listeners()
    a_session(listeners.here)
    listeners.here.connection_closed(HERE, CLIENT, "quit")

    told = listeners.log.getvalue()
    assert f"NOQUEUE: reject: RCPT from {CLIENT}: 550 5.7.1 relaying denied; listener={HERE}" in told
    assert (
        f"0123456789abcdef: from=<ann@example.org>, size=77, nrcpt=2, client={CLIENT}, helo=<mail>, "
        "proto=ESMTP, sasl_username=ann event=accepted"
    ) in told
    assert f"fault in listener {HERE}: ValueError: odd (client {CLIENT})" in told
    assert f"disconnect from {CLIENT} on {HERE}: quit" in told
    assert listeners.value("open_connections") == 0


def test_a_process_counts_as_if_it_were_here() -> None:
    listeners = Listeners()
    a_session(listeners.here)
    for _ in range(3):
        a_session(listeners.elsewhere)
        listeners.send()
    listeners.send()

    for name, each in (
        ("connections_total", 1), ("open_connections", 1), ("messages_accepted_total", 1),
        ("recipients_accepted_total", 2), ("received_bytes_total", 77), ("faults_total", 1),
    ):  # fmt: skip
        assert listeners.value(name) == each * 4, name
    assert listeners.value("rejects_total", phase="rcpt", code="550") == 4
    commits = "commit_duration_seconds"
    assert listeners.value(f"{commits}_bucket", le="0.0025") == 0
    assert listeners.value(f"{commits}_bucket", le="0.005") == listeners.value(f"{commits}_count") == 4
    assert listeners.value(f"{commits}_sum") == pytest.approx(0.012)

    listeners.metrics.drop_process("a process")

    assert (listeners.value("open_connections"), listeners.value("connections_total")) == (1, 4)
