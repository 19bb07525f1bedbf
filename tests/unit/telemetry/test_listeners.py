"""What listeners tell and count, here or in a process of their own."""

import io
import json

import pytest

from relay.listener.ports import Observer
from relay.mail.envelope import Envelope, QueueId
from relay.telemetry.event_table import Level
from relay.telemetry.events import Events
from relay.telemetry.listeners import ListenerObserver
from relay.telemetry.metric_table import USUAL_REJECTS
from relay.telemetry.metrics import Metrics
from tests.fakes.clock import FakeClock

HERE = "127.0.0.1:2525"
CLIENT = "mail.example.org[192.0.2.1]"
ENVELOPE = Envelope("ann@example.org", ("a@x", "b@y"), 0, CLIENT, "mail", "ESMTP", "ann")


class Listeners:
    """Listeners of a process, and what Prometheus and the log see of them."""

    def __init__(self) -> None:
        self.log, clock = io.StringIO(), FakeClock()
        events = Events(self.log, "text", clock, level=Level.DEBUG)
        self.metrics = Metrics(clock, events)
        self.observer = ListenerObserver(events, self.metrics, [HERE])

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"relay_smtpd_{name}", {"listener": HERE, **labels})

    def send_to(self, other: "Listeners") -> None:
        other.metrics.add_delta(json.loads(json.dumps(self.metrics.take_delta())), "a process")


def a_session(observer: Observer) -> None:
    observer.connection_opened(HERE, CLIENT)
    observer.refused(HERE, CLIENT, "rcpt", "550 5.7.1 relaying denied", None)
    observer.accepted(
        HERE, QueueId("0123456789abcdef"), ENVELOPE, "<1@x>", size_bytes=77, commit_ns=3_000_000
    )
    observer.fault(HERE, CLIENT, ValueError("odd"))


def test_what_a_listener_tells_is_logged() -> None:
    here = Listeners()
    a_session(here.observer)
    here.observer.connection_closed(HERE, CLIENT, "quit")

    told = here.log.getvalue()
    assert f"NOQUEUE: reject: RCPT from {CLIENT}: 550 5.7.1 relaying denied; listener={HERE}" in told
    assert (
        f"0123456789abcdef: from=<ann@example.org>, size=77, nrcpt=2, client={CLIENT}, helo=<mail>, "
        "proto=ESMTP, sasl_username=ann event=accepted"
    ) in told
    assert f"fault in listener {HERE}: ValueError: odd (client {CLIENT})" in told
    assert f"disconnect from {CLIENT} on {HERE}: quit" in told
    assert here.value("open_connections") == 0


@pytest.mark.parametrize("elsewhere", [0, 1, 3])
def test_a_process_counts_as_if_it_were_here(elsewhere: int) -> None:
    parent, child = Listeners(), Listeners()
    a_session(parent.observer)
    for _ in range(elsewhere):
        a_session(child.observer)
        child.send_to(parent)
    child.send_to(parent)

    times = 1 + elsewhere
    for name, each in (
        ("connections_total", 1), ("open_connections", 1), ("messages_accepted_total", 1),
        ("recipients_accepted_total", 2), ("received_bytes_total", 77), ("faults_total", 1),
    ):  # fmt: skip
        assert parent.value(name) == each * times, name
    assert parent.value("rejects_total", phase="rcpt", code="550") == times
    assert parent.value("rejects_total", phase="eod", code="451") == 0
    commits = "commit_duration_seconds"
    assert parent.value(f"{commits}_bucket", le="0.0025") == 0
    assert parent.value(f"{commits}_bucket", le="0.005") == parent.value(f"{commits}_count") == times
    assert parent.value(f"{commits}_sum") == pytest.approx(0.003 * times)

    parent.metrics.drop_process("a process")

    assert (parent.value("open_connections"), parent.value("connections_total")) == (1, times)


@pytest.mark.parametrize("code", ["250", "55", "5500", "5x0", "\u0665\u0665\u0660", ""])
def test_labels_have_a_bounded_number_of_values(code: str) -> None:
    here = Listeners()
    for number in range(100):
        here.observer.refused(HERE, CLIENT, f"phase {number}", code, None)

    (rejects,) = (each for each in here.metrics.collect() if each.name == "relay_smtpd_rejects")
    assert len(rejects.samples) == len(USUAL_REJECTS) + 1
    known = "550" if code == "5500" else "other"
    assert here.value("rejects_total", phase="other", code=known) == 100
