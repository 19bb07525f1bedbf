"""A private Prometheus that scrapes the relay, and promtool, which checks what the project ships."""

import json
import subprocess
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.system.demand import find, missing_program
from tests.system.waiting import HANG_S, free_port, wait_for_answer, wait_until

CONFIGURATION = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: {rules}
scrape_configs:
  - job_name: relay
    static_configs: [{{targets: ["127.0.0.1:{target}"]}}]
"""


def why_missing() -> str | None:
    return missing_program("prometheus", "promtool")


class Prometheus:
    """A running Prometheus, asked over its HTTP interface."""

    def __init__(self, port: int) -> None:
        self.port = port

    def check_ready(self) -> None:
        urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=HANG_S).close()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the instant vector of an expression: `metric` and `value` of each series."""
        result: list[dict[str, Any]] = self._get("query", query=expression)["result"]
        return result

    def wait_for(self, expression: str) -> None:
        """Return once the instant vector of an expression is not empty.  Raises TimeoutError."""
        wait_until(lambda: self.query(expression))

    def targets(self) -> list[dict[str, Any]]:
        """Return the targets that it scrapes, each with `health` and `lastError`."""
        active: list[dict[str, Any]] = self._get("targets")["activeTargets"]
        return active

    def wait_for_rules(self) -> list[dict[str, Any]]:
        """Return the rules, each with `name` and `health`, once all were evaluated.  Raises TimeoutError."""

        def rules() -> list[dict[str, Any]]:
            return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

        wait_until(lambda: rules() and all(rule["health"] != "unknown" for rule in rules()))
        return rules()

    def alerts(self) -> list[dict[str, Any]]:
        alerts: list[dict[str, Any]] = self._get("alerts")["alerts"]
        return alerts

    def _get(self, what: str, **query: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.port}/api/v1/{what}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=HANG_S) as reply:
            answer: dict[str, Any] = json.load(reply)
        assert answer["status"] == "success", answer
        data: dict[str, Any] = answer["data"]
        return data


@contextmanager
def prometheus(target_port: int, *rules: Path) -> Iterator[Prometheus]:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="relay-prometheus-") as folder:
        configuration = Path(folder, "prometheus.yml")
        rule_files = json.dumps([str(path.absolute()) for path in rules])
        configuration.write_text(CONFIGURATION.format(target=target_port, rules=rule_files))
        command = [str(find("prometheus")), f"--config.file={configuration}", "--log.level=warn"]
        command += [f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
            try:
                running = Prometheus(port)
                wait_for_answer(running.check_ready, server)
                yield running
            finally:
                server.terminate()


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run promtool, e.g. `promtool("test", "rules", path)`."""
    command = [str(find("promtool")), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
