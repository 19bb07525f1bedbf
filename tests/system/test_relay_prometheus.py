"""A real Prometheus scrapes a relay at work: the figures are right, and no alert fires."""

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.system import smtp_tools
from tests.system.demand import demand, missing_program
from tests.system.relay import PROJECT, RelayProcess, upstream_at
from tests.system.smtp_tools import smtp_sink, smtp_source
from tests.system.waiting import HANG_S, ended, free_port, wait_for_port, wait_until

pytestmark = pytest.mark.full

ALERTS = PROJECT / "deploy" / "prometheus" / "alerts.yml"
MESSAGES, SIZE_BYTES = 60, 2000
LIMIT = {"messages": 50, "per": "1h"}
"""Fewer than are sent: the rest waits for an hour, which is no reason for an alert."""

Ask = Callable[..., Any]
"""Returns the data of an answer of Prometheus's HTTP interface, for a path and the fields of a query."""


@contextmanager
def prometheus(folder: Path, target_port: int) -> Iterator[Ask]:
    port, configuration = free_port(), folder / "prometheus.yml"
    configuration.write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: [{json.dumps(str(ALERTS))}]\n"
        f"scrape_configs: [{{job_name: relay, static_configs: [{{targets: ['127.0.0.1:{target_port}']}}]}}]\n"
    )

    def ask(path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=HANG_S) as reply:
            return json.load(reply)["data"]

    command = ["prometheus", f"--config.file={configuration}", f"--storage.tsdb.path={folder}/series"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with ended(subprocess.Popen(command, stderr=subprocess.DEVNULL)) as server:
        wait_for_port(port, server)
        yield ask


def test_prometheus_counts_mail_in_out_and_waiting_and_no_alert_fires(tmp_path: Path) -> None:
    demand(missing_program("prometheus"), smtp_tools.why_missing())
    with smtp_sink() as sink:
        isp = upstream_at(sink.port, limits=[LIMIT])
        with RelayProcess(tmp_path, {"isp": isp}) as relay, prometheus(tmp_path, relay.http_port) as ask:
            smtp_source(relay.port, messages=MESSAGES, sessions=5, size_bytes=SIZE_BYTES)
            _judge(ask)


def _judge(ask: Ask) -> None:
    def value(expression: str) -> float:
        (series,) = ask("query", query=expression)["result"]
        return float(series["value"][1])

    def rules() -> list[dict[str, Any]]:
        return [rule for group in ask("rules")["groups"] for rule in group["rules"]]

    # The ledger counts last, so this scrape is from an instant after all other counts.
    done = (
        'relay_ledger_recipients_total{fate="accepted"} == 60 '
        'and on (instance) relay_ledger_recipients_total{fate="relayed"} == 50'
    )
    wait_until(lambda: ask("query", query=done)["result"])
    wait_until(lambda: rules() and all(rule["health"] != "unknown" for rule in rules()))
    expected = {
        "sum(relay_smtpd_messages_accepted_total)": MESSAGES,
        'relay_attempt_recipients_total{upstream="isp",result="relayed"}': 50,
        'relay_upstream_replies_total{upstream="isp",phase="eod",code="250"}': 50,
        'relay_queue_messages{state="waiting"}': 10,
        "relay_limit_used_slots / relay_limit_slots": 1,
        "sum(relay_faults_total) + sum(relay_smtpd_faults_total)": 0,
    }
    assert {expression: value(expression) for expression in expected} == expected
    assert value("sum(relay_smtpd_received_bytes_total)") >= MESSAGES * SIZE_BYTES
    assert 3500 < value('relay_queue_drain_eta_seconds{upstream="isp"}') < 3700
    assert {rule["health"] for rule in rules()} == {"ok"}
    assert ask("alerts")["alerts"] == []
