"""What is shipped beside the code is true, whole and usable: pages, policies, lock, deploy."""

import functools
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import yaml
from pydantic import BaseModel

from relay import __version__
from relay.policy.model import Policy
from relay.policy.source import parse_policy
from relay.telemetry.events import KINDS
from relay.telemetry.metrics import METRICS
from tests.system import postfix
from tests.system.demand import demand, missing_program
from tests.unit.telemetry.page import fields_of, made

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
DOCS = ROOT / "docs"
EVENTS_AND_METRICS = DOCS / "events-and-metrics.md"
PAGES = [README, ARCHITECTURE, *sorted(DOCS.rglob("*.md"))]
UNIT = ROOT / "deploy" / "relay.service"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "relay.json"


def _none(offenders: list[str]) -> None:
    assert not offenders, "\n" + "\n".join(offenders)


def _rows(page: str) -> Iterator[list[str]]:
    """Yield the cells of each row of each table of a page."""
    for line in page.splitlines():
        if line.startswith("| ") and not line.startswith("| ---"):
            yield [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_the_tables_of_events_and_metrics_match_the_code() -> None:
    page = EVENTS_AND_METRICS.read_text()
    named = {name for cells in _rows(page) for name in re.findall("`([a-z0-9_]+)`", cells[0])}

    assert page == made(page)
    _none([field for kind in KINDS.values() for field in fields_of(kind) if field not in named])


def test_each_alert_leads_to_a_section_of_the_runbook_and_has_a_test_case() -> None:
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    sections = {f"docs/operating.md#{anchor}" for anchor in _anchors(DOCS / "operating.md")}
    cases = ALERTS.with_name("alerts_test.yml").read_text()

    assert rules
    _none([rule["alert"] for rule in rules if rule["annotations"]["runbook"] not in sections])
    _none([rule["alert"] for rule in rules if f'alertname="{rule["alert"]}"' not in cases])


@pytest.mark.parametrize(
    "path", [*PAGES, ALERTS, ALERTS.with_name("alerts_test.yml"), DASHBOARD], ids=lambda path: path.name
)
def test_no_page_names_an_unknown_metric(path: Path) -> None:
    suffixed = {name + suffix for name in METRICS for suffix in ("", "_bucket", "_count", "_sum")}
    named = set(
        re.findall(
            r"\brelay_(?:[a-z]+_)*(?:total|seconds|bytes|messages|recipients|slots)\b", path.read_text()
        )
    )

    _none(sorted(named - suffixed))


@functools.cache
def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of headings: lower case, no punctuation, hyphens for spaces."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text())
    anchors: set[str] = set()
    for heading in re.findall(r"(?m)^#+ (.*)$", text):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        anchors.add(next(a for a in (anchor, *(f"{anchor}-{n}" for n in range(1, 99))) if a not in anchors))
    return anchors


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    text = re.sub(r"``.*?``|`[^`]*`", "", re.sub(r"(?ms)^ *```.*?^ *```$", "", page.read_text()))
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        is_there = target.exists() and (not anchor or anchor in _anchors(target))
        broken += [] if is_there else [link]

    _none(broken)


MINIMAL = {
    "spool": "./spool",
    "listen": [{"address": "127.0.0.1:2525", "clients": ["127.0.0.0/8"]}],
    "upstreams": {"isp": {"host": "smtp.example.net", "limits": []}},
}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_example_of_a_policy_is_valid(page: Path) -> None:
    """A minimal policy supplies the keys that an example leaves out."""
    for _, example in re.findall(r"(?ms)^( *)```yaml\n(.*?)^\1```$", page.read_text()):
        policy = yaml.safe_dump({**MINIMAL, **yaml.safe_load(example)})

        assert parse_policy(policy.encode(), ROOT / "example.yaml").upstreams, example


def _keys(annotation: object) -> Iterator[str]:
    """Yield the keys of all sections that a type holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield field.alias or name
            yield from _keys(field.annotation)
    else:
        for each in get_args(annotation):
            yield from _keys(each)


def test_policy_md_has_each_key_of_the_policy_and_no_other() -> None:
    rows = [cells[0] for cells in _rows((DOCS / "policy.md").read_text()) if len(cells) > 3]
    told = {key for row in rows if row != "key" for key in re.findall("[a-z0-9_]+", row)}

    assert told == set(_keys(Policy))


def _policies() -> dict[str, str]:
    ours = (ROOT / "policy.yaml").read_text()
    example = re.search(r"(?m)^#  isp:\n(?:#  .*\n)+", ours)
    assert example is not None
    config, *_ = yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "relay.yaml").read_text())
    return {
        "ours": ours,
        "its example": ours.replace(example[0], re.sub(r"(?m)^#", "", example[0])),
        "unit": (ROOT / "deploy" / "policy.yaml").read_text(),
        "container": (ROOT / "deploy" / "container" / "etc" / "policy.yaml").read_text(),
        "kubernetes": config["data"]["policy.yaml"],
    }


@pytest.mark.parametrize("name", _policies())
def test_shipped_policies_are_valid_and_fit_the_unit_and_the_containers(name: str) -> None:
    policy = parse_policy(_policies()[name].encode(), Path("/etc/relay/policy.yaml"))

    if name == "its example":
        assert list(policy.upstreams) == ["practice", "isp"]
    if name in ("unit", "container", "kubernetes"):
        (upstream,) = policy.upstreams.values()
        assert upstream.auth is not None
        assert upstream.auth.password_credential == "isp"
        assert policy.spool == Path("/var/lib/relay/spool")
    if name == "unit":
        assert "LoadCredential=isp:" in UNIT.read_text()
        assert "StateDirectory=relay\n" in UNIT.read_text()


def test_the_practice_upstream_and_its_account_agree() -> None:
    policy = parse_policy((ROOT / "policy.yaml").read_bytes(), ROOT / "policy.yaml")
    account, practice = policy.upstreams["practice"], policy.practice
    assert account.auth is not None
    assert practice is not None

    assert (account.host, account.port) == (practice.address.host, practice.address.port)
    assert (account.auth.user, account.auth.password_file) == (practice.user, practice.password_file)
    assert practice.password_file == ROOT / "var" / "practice-password"  # the Makefile makes it
    assert account.limits == (practice.limit,)


def test_the_version_is_the_same_in_project_code_and_changelog() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (newest, *_) = re.findall(r"(?m)^## \[(\d[^]]*)\]", (ROOT / "CHANGELOG.md").read_text())

    assert project["version"] == __version__ == newest


def _pinned(lock: str) -> dict[str, str]:
    content = (ROOT / lock).read_text()
    assert "://" not in content
    assert "index" not in content
    return dict(re.findall(r"(?m)^([a-z0-9-]+)==([^ ]+)(?: ;.*)? \\\n    --hash=sha256:", content))


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-test.lock"])
def test_the_locks_pin_by_hash_and_name_no_registry(lock: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = project["project"]["dependencies"] + project["build-system"]["requires"]
    if "test" in lock:
        wanted += project["project"]["optional-dependencies"]["test"]
    pinned = _pinned(lock)

    _none([each for each in wanted if re.split(r"[^A-Za-z0-9-]", each)[0].lower() not in pinned])
    _none([each for each in wanted if "==" in each and not each.endswith("==" + pinned[each.split("==")[0]])])


def test_systemd_accepts_the_unit_and_finds_it_well_confined(tmp_path: Path) -> None:
    demand(missing_program("systemd-analyze"))
    command = re.search(r"(?m)^ExecStart=(\S+) ", UNIT.read_text())
    assert command is not None
    # `verify` also checks that the program exists.
    installed = tmp_path / "relay.service"
    installed.write_text(UNIT.read_text().replace(command[1], sys.executable))

    # The threshold is in tenths: 0 is fully confined, 96 an ordinary daemon.
    for action in (["verify", "--man=no"], ["security", "--offline=yes", "--threshold=20", "--no-pager"]):
        ran = subprocess.run(
            ["systemd-analyze", *action, str(installed)], capture_output=True, text=True, check=False
        )
        assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout


def promtool(*arguments: str) -> None:
    demand(missing_program("promtool"))
    ran = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_promtool_accepts_scrape_and_alerts() -> None:
    promtool("check", "config", str(ALERTS.with_name("scrape.yml")))


def test_promtool_accepts_each_query_of_the_dashboard(tmp_path: Path) -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    assert asked
    rules = [
        {"record": f"dashboard_{number}", "expr": expression.replace("$__rate_interval", "1m")}
        for number, expression in enumerate(asked)
    ]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))

    promtool("check", "rules", str(path))


@pytest.mark.full
def test_every_alert_fires_when_it_should_and_only_then() -> None:
    promtool("test", "rules", str(ALERTS.with_name("alerts_test.yml")))


@pytest.mark.full
def test_postfix_knows_every_parameter_of_our_snippet() -> None:
    demand(postfix.why_missing())
    snippet = ROOT / "deploy" / "postfix" / "main.cf"
    settings = dict(re.findall(r"(?m)^([a-z_]+) = (.*)$", snippet.read_text()))

    with postfix.front(2525, **settings) as front:
        shown = front.run("postconf", "-n").decode()
        unknown = subprocess.run(
            ["postconf", "-c", str(front.home), "-n"], capture_output=True, text=True, check=True
        ).stderr

    assert unknown == ""
    _none([key for key, value in settings.items() if f"{key} = {value}\n" not in shown])
