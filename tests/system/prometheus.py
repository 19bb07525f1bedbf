"""A private Prometheus that scrapes the relay, and promtool, which judges what we ship."""

import json
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.system.demand import find, missing_program
from tests.system.waiting import HANG_S, free_port, wait_for_answer

CONFIGURATION = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: {rules}
scrape_configs:
  - job_name: relay
    static_configs: [{{targets: ["127.0.0.1:{target}"]}}]
"""


def why_missing() -> str | None:
    """Return why Prometheus cannot be used, or None."""
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

    def wait_for(self, expression: str, *, within_s: float = HANG_S) -> list[dict[str, Any]]:
        """Return the instant vector of an expression once it is not empty.  Raises TimeoutError."""
        deadline = time.monotonic() + within_s
        while not (vector := self.query(expression)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{expression!r} stayed empty for {within_s:g} s: {self.targets()}")
            time.sleep(0.1)  # it scrapes once a second and tells nobody
        return vector

    def targets(self) -> list[dict[str, Any]]:
        """Return what it scrapes, each with `health` and `lastError`."""
        active: list[dict[str, Any]] = self._get("targets")["activeTargets"]
        return active

    def wait_for_rules(self, *, within_s: float = HANG_S) -> list[dict[str, Any]]:
        """Return the rules, each with `name` and `health`, once all were evaluated.  Raises TimeoutError."""
        deadline = time.monotonic() + within_s
        while True:
            rules = [rule for group in self._get("rules")["groups"] for rule in group["rules"]]
            if rules and all(rule["health"] != "unknown" for rule in rules):
                return rules
            if time.monotonic() > deadline:
                raise TimeoutError(f"rules were not evaluated in {within_s:g} s: {rules}")
            time.sleep(0.1)  # once a second, and it tells nobody

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
def prometheus(target_port: int, *rules: Path, port: int | None = None) -> Iterator[Prometheus]:
    port = port or free_port()
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


def promtool(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run promtool, e.g. `promtool("check", "metrics", stdin=exposition)`."""
    command = [str(find("promtool")), *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=HANG_S, check=False)
