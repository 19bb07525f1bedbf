"""What Prometheus scrapes: every row of the table, valid for promtool, counted right in each process."""

import io
import json
import math
import subprocess
from dataclasses import replace

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from relay.clock import SECOND_NS
from relay.daemon.listener_observer import ListenerObserver, Tally
from relay.mail.envelope import Envelope, QueueId
from relay.smtp.reply import Phase, Reply
from relay.status.collector import SnapshotCollector
from relay.status.snapshot import Snapshot
from relay.telemetry.events import Events, Level
from relay.telemetry.metrics import METRICS, Metrics
from relay.verdicts.outcome import Answer, Outcome
from relay.verdicts.verdict import Verdict
from tests.fakes.clock import FakeClock
from tests.fakes.snapshots import AT_NS, a_snapshot, routes
from tests.system.demand import demand, missing_program

LISTENER = "127.0.0.1:2525"
CLIENT = "mail.example.org[192.0.2.1]"
ENVELOPE = Envelope("ann@example.org", ("a@x", "b@y"), 0, CLIENT, "mail", "ESMTP", "ann")


class World:
    """Metrics with a snapshot that a test can change, and the tally of a listener process."""

    def __init__(self) -> None:
        self.shown: Snapshot | Exception = replace(a_snapshot(), routes=routes())
        self.log = io.StringIO()
        clock = FakeClock()
        self.events = Events(self.log, "text", clock, level=Level.DEBUG)
        self.metrics, self.tally = Metrics(), Tally(self.events)
        self.metrics.know("listener", [LISTENER])
        collector = SnapshotCollector(self.metrics, self.snapshot, self.events)
        self.metrics.registry.register(collector)
        self.metrics.know("upstream", ["isp"])

    def snapshot(self) -> Snapshot:
        if isinstance(self.shown, Exception):
            raise self.shown
        return self.shown

    def scrape(self) -> str:
        return generate_latest(self.metrics.registry).decode()

    def values(self, *expected: tuple[str, dict[str, str], float | None]) -> None:
        for name, labels, value in expected:
            assert self.metrics.registry.get_sample_value(f"relay_{name}", labels) == value, name


@pytest.fixture
def world() -> World:
    return World()


def answer(verdict: Verdict, phase: Phase, said: Reply | None) -> Answer:
    return Answer(verdict, phase, said, str(said))


def test_every_metric_is_there_from_the_start_with_its_type(world: World) -> None:
    families = {
        family.name + ("_total" if family.type == "counter" else ""): family
        for family in text_string_to_metric_families(world.scrape())
    }

    for name, row in METRICS.items():
        assert families[name].type == row.type, name
        assert families[name].documentation == row.meaning, name
        # The codes of replies, and diversions, are not known in advance.
        assert families[name].samples or {"code", "instead_of"} & {*row.labels}, name
        for sample in families[name].samples:
            assert set(sample.labels) - {"le"} == set(row.labels), name
    assert {name for name in families if name.startswith("relay_")} == set(METRICS)


def test_promtool_accepts_the_scrape(world: World) -> None:
    demand(missing_program("promtool"))

    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=world.scrape(), capture_output=True, text=True, check=False
    )

    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_each_recipient_counts_once_and_a_shared_reply_once(world: World) -> None:
    dot = Reply(250, None, "ok")
    answers = (
        answer(Verdict.RELAYED, Phase.EOD, dot),
        answer(Verdict.BOUNCE, Phase.RCPT, Reply(550, None, "no")),
        answer(Verdict.RELAYED, Phase.EOD, dot),
    )

    world.metrics.attempted("isp", Outcome(answers), 2 * SECOND_NS)

    isp = {"upstream": "isp"}
    world.values(
        ("attempts_total", isp, 1),
        ("attempt_recipients_total", isp | {"result": "relayed"}, 2),
        ("attempt_recipients_total", isp | {"result": "bounced"}, 1),
        ("upstream_replies_total", isp | {"phase": "eod", "code": "250"}, 1),
        ("upstream_replies_total", isp | {"phase": "rcpt", "code": "550"}, 1),
        ("attempts_ambiguous_total", isp, 0),
        ("attempt_duration_seconds_sum", isp, 2),
    )


def test_each_call_changes_its_own_metric(world: World) -> None:
    metrics, isp = world.metrics, {"upstream": "isp"}
    metrics.observe("relay_throttle_wait_seconds", "isp", span_ns=30 * SECOND_NS)
    metrics.observe("relay_event_loop_lag_seconds", span_ns=-1)
    metrics.read("relay_notices_waiting", lambda: 3)
    metrics.connect_failed("isp", answer(Verdict.DEFER, Phase.CONNECT, None))
    for fate in ("relayed", "relayed", "expired"):
        metrics.count("relay_ledger_recipients_total", fate)

    world.values(
        ("throttle_wait_seconds_bucket", isp | {"le": "60.0"}, 1),
        ("throttle_wait_seconds_bucket", isp | {"le": "10.0"}, 0),
        ("event_loop_lag_seconds_sum", {}, 0),
        ("notices_waiting", {}, 3),
        ("upstream_connects_total", isp | {"result": "failed"}, 1),
        ("upstream_replies_total", isp | {"phase": "connect", "code": "none"}, 1),
    )
    assert metrics.totals == {"accepted": 0, "relayed": 2, "bounced": 0, "expired": 1, "deleted": 0}


def test_a_scrape_shows_the_snapshot(world: World) -> None:
    isp, limit = {"upstream": "isp"}, {"upstream": "isp", "limit": "8 messages per 1m"}
    world.values(
        ("queue_messages", {"state": "waiting"}, 400),
        ("queue_messages", {"state": "held"}, 0),
        ("queue_oldest_age_seconds", {"state": "deferred"}, 3600),
        *(("limit_slots", limit, 8), ("limit_used_slots", limit, 8), ("limit_window_seconds", limit, 60)),
        ("limit_next_slot_timestamp_seconds", limit, AT_NS / SECOND_NS + 20),
        ("upstream_connections", isp | {"use": "busy"}, 2),
        ("upstream_state", isp | {"state": "open"}, 1),
        ("upstream_health", isp | {"health": "used"}, 1),
        ("upstream_paused_until_timestamp_seconds", isp, 0),
        ("queue_drain_eta_seconds", isp, 50 * 60),
        ("lane_waiting_messages", {"lane": "default"}, 400),
        ("lane_patience_seconds", {"lane": "default"}, math.inf),
    )


def test_a_failed_snapshot_does_not_fail_the_scrape(world: World) -> None:
    world.shown = RuntimeError("no snapshot")

    assert "relay_smtpd_connections_total" in world.scrape()

    world.values(("faults_total", {}, 1))
    assert "RuntimeError: no snapshot" in world.log.getvalue()


def a_session(world: World, metrics: Metrics | Tally) -> None:
    observer = ListenerObserver(world.events, metrics, FakeClock())
    for _ in range(2):
        observer.connection_opened(LISTENER, CLIENT)
    observer.connection_closed(LISTENER, CLIENT, "quit")
    observer.refused(LISTENER, CLIENT, "rcpt", "550 5.7.1 relaying denied", None)
    queue_id = QueueId("0123456789abcdef")
    observer.accepted(LISTENER, queue_id, ENVELOPE, "<1@x>", size_bytes=77, commit_ns=3_000_000)
    observer.fault(LISTENER, CLIENT, ValueError("odd"))


def test_the_counts_of_a_listener_process_are_added_to_the_relays(world: World) -> None:
    a_session(world, world.metrics)
    for _ in range(3):
        a_session(world, world.tally)
        world.metrics.add(json.loads(json.dumps(world.tally.take())), "a process")
    world.metrics.add(world.tally.take(), "a process")

    here = {"listener": LISTENER}
    world.values(
        *(("smtpd_connections_total", here, 8), ("smtpd_open_connections", here, 4)),
        *(("smtpd_messages_accepted_total", here, 4), ("smtpd_recipients_accepted_total", here, 8)),
        *(("smtpd_received_bytes_total", here, 308), ("smtpd_faults_total", here, 4)),
        ("smtpd_rejects_total", here | {"phase": "rcpt", "code": "550"}, 4),
        ("smtpd_commit_duration_seconds_bucket", here | {"le": "0.0025"}, 0),
        ("smtpd_commit_duration_seconds_bucket", here | {"le": "0.005"}, 4),
    )
    world.metrics.drop_process(LISTENER, "a process")
    world.values(("smtpd_open_connections", here, 1), ("smtpd_connections_total", here, 8))
