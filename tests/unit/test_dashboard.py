"""The dashboard for Grafana: it asks for what the relay exposes, and Grafana can import it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from relay.telemetry.metric_table import METRICS

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "relay.json"
OF_THE_SCRAPE = {"job", "instance"}
SUFFIXES = {"_bucket": "le", "_count": "", "_sum": ""}


def dashboard() -> dict[str, Any]:
    shipped: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return shipped


def panels() -> list[dict[str, Any]]:
    """Return each panel that shows something; rows only group."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def _labels_of(metric: str) -> set[str]:
    """Return the labels that a series may have.  Raises KeyError for one that nobody exposes."""
    if metric.startswith("process_"):
        return OF_THE_SCRAPE
    for suffix, label in SUFFIXES.items():
        name = metric.removesuffix(suffix)
        if name != metric and name in METRICS and METRICS[name].type == "histogram":
            return {*METRICS[name].labels, label, *OF_THE_SCRAPE}
    assert METRICS[metric].type != "histogram", f"{metric} has only {', '.join(SUFFIXES)}"
    return {*METRICS[metric].labels, *OF_THE_SCRAPE}


@pytest.mark.parametrize("expression", expressions())
def test_each_expression_names_metrics_and_labels_that_are_there(expression: str) -> None:
    selectors = re.findall(r"\b((?:relay|process)_\w+)(\{[^}]*\})?", expression)
    grouped = {label.strip() for by in re.findall(r"\bby \(([^)]*)\)", expression) for label in by.split(",")}
    assert selectors

    for metric, matchers in selectors:
        labels = _labels_of(metric)
        asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", matchers))
        assert asked <= labels, metric
        assert grouped <= labels, metric
        assert asked >= OF_THE_SCRAPE, "each panel keeps to the job and the instance that were chosen"


def test_the_dashboard_asks_for_its_data_source_when_it_is_imported() -> None:
    shipped = dashboard()
    (asked,) = shipped["__inputs"]
    sources = [each["datasource"] for each in (*panels(), *shipped["templating"]["list"])]
    sources += [target["datasource"] for panel in panels() for target in panel["targets"]]

    assert (asked["name"], asked["pluginId"]) == ("DS_PROMETHEUS", "prometheus")
    assert all(source == {"type": "prometheus", "uid": "${DS_PROMETHEUS}"} for source in sources)
    assert len({panel["id"] for panel in shipped["panels"]}) == len(shipped["panels"])
