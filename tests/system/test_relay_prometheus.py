"""A real Prometheus scrapes a relay at work: the figures are right, and no alert fires."""

import json
from pathlib import Path

import pytest

from tests.system import prometheus, smtp_tools
from tests.system.demand import demand
from tests.system.prometheus import Prometheus
from tests.system.relay import PROJECT
from tests.system.smtp_tools import smtp_sink, smtp_source
from tests.system.warm import WarmRelay

pytestmark = pytest.mark.full

ALERTS = PROJECT / "deploy" / "prometheus" / "alerts.yml"
MESSAGES, SIZE_BYTES = 60, 2000
LIMIT = {"messages": 50, "per": "1h"}
"""Fewer than are sent: the rest waits for an hour, which is no reason for an alert."""


def _value(watch: Prometheus, expression: str) -> float:
    (series,) = watch.query(expression)
    return float(series["value"][1])


def test_prometheus_counts_mail_in_out_and_waiting_and_no_alert_fires(tmp_path: Path) -> None:
    demand(prometheus.why_missing(), smtp_tools.why_missing())
    with smtp_sink() as sink:
        isp = {"host": "127.0.0.1", "port": sink.port, "tls": "none", "limits": [LIMIT]}
        with (
            WarmRelay(tmp_path, {"isp": isp}) as relay,
            prometheus.prometheus(relay.http_port, ALERTS) as watch,
        ):
            smtp_source(relay.port, messages=MESSAGES, sessions=5, size_bytes=SIZE_BYTES)
            _judge(watch)


def _judge(watch: Prometheus) -> None:
    # The ledger counts last, so this scrape is from an instant after all other counts.
    watch.wait_for(
        'relay_ledger_recipients_total{fate="accepted"} == 60 '
        'and on (instance) relay_ledger_recipients_total{fate="relayed"} == 50'
    )
    (target,) = watch.targets()
    rules = watch.wait_for_rules()

    assert (target["health"], target["lastError"]) == ("up", "")
    expected = {
        "sum(relay_smtpd_messages_accepted_total)": MESSAGES,
        'relay_attempt_recipients_total{upstream="isp",result="relayed"}': 50,
        'relay_upstream_replies_total{upstream="isp",phase="eod",code="250"}': 50,
        'relay_queue_messages{state="waiting"}': 10,
        "relay_limit_used_slots / relay_limit_slots": 1,
        "sum(relay_faults_total) + sum(relay_smtpd_faults_total)": 0,
    }
    assert {expression: _value(watch, expression) for expression in expected} == expected
    assert _value(watch, "sum(relay_smtpd_received_bytes_total)") >= MESSAGES * SIZE_BYTES
    assert 3500 < _value(watch, 'relay_queue_drain_eta_seconds{upstream="isp"}') < 3700
    assert watch.query('{__name__=~"relay_.+",recipient!=""}') == []
    assert {rule["health"] for rule in rules} == {"ok"}
    assert {rule["name"] for rule in rules} >= {"RelayDown", "RelayNotRelaying"}
    assert watch.alerts() == []

    # The queries of the dashboard; an invalid one raises.
    watch.wait_for("rate(relay_attempts_total[1m])")
    panels = json.loads((PROJECT / "deploy" / "grafana" / "relay.json").read_text())["panels"]
    for target in (target for panel in panels for target in panel.get("targets", [])):
        asked = target["expr"].replace('"$job"', '"relay"').replace('"$instance"', '".*"')
        watch.query(asked.replace("$__rate_interval", "1m"))
