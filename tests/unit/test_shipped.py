"""What is shipped beside the code is true, whole and usable: README, policies, lock, deploy."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from relay.policy.source import parse_policy
from relay.telemetry.event_table import KINDS
from relay.telemetry.metric_table import METRICS
from tests.proofs.peers import postfix, prometheus
from tests.proofs.peers.demand import demand, missing_program

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
UNIT = ROOT / "deploy" / "relay.service"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"

TOP_LEVEL = {
    ".ci",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "deploy",
    "docs",
    "policy.yaml",
    "pyproject.toml",
    "relay",
    "requirements.lock",
    "tests",
}
# What the commands of the Makefile leave behind; .gitignore has it.
LEFT_BEHIND = {".coverage", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".venv", "var"}


def _none(offenders: list[str]) -> None:
    assert not offenders, "\n" + "\n".join(offenders)


def test_the_top_level_is_closed() -> None:
    _none(sorted({path.name for path in ROOT.iterdir()} - TOP_LEVEL - LEFT_BEHIND - {".git"}))


def test_readme_lists_every_metric() -> None:
    text = README.read_text()

    _none([name for name in METRICS if f"`{name}`" not in text])


def test_readme_lists_every_event() -> None:
    text = README.read_text()

    _none([name for name in KINDS if f"`{name}`" not in text])


def test_readme_lists_every_make_target() -> None:
    targets = re.search(r"(?m)^\.PHONY: (.*)$", (ROOT / "Makefile").read_text())
    assert targets is not None

    _none(
        [
            target
            for target in targets[1].split()
            if target not in {"help", "lint", "lock"} and f"make {target}" not in README.read_text()
        ]
    )


@pytest.mark.parametrize(
    "path", [README, ALERTS, ALERTS.with_name("alerts_test.yml")], ids=lambda path: path.name
)
def test_no_page_names_a_metric_that_is_not_there(path: Path) -> None:
    suffixed = {name + suffix for name in METRICS for suffix in ("", "_bucket", "_count", "_sum")}
    named = set(
        re.findall(
            r"\brelay_(?:[a-z]+_)*(?:total|seconds|bytes|messages|recipients|slots)\b", path.read_text()
        )
    )

    _none(sorted(named - suffixed))


@pytest.mark.parametrize("name", ["policy.yaml", "deploy/policy.yaml"])
def test_shipped_policies_are_valid(name: str) -> None:
    path = ROOT / name

    assert parse_policy(path.read_bytes(), path).upstreams


def test_the_example_in_the_shipped_policy_is_valid_too() -> None:
    shipped = (ROOT / "policy.yaml").read_text()
    example = re.search(r"(?m)^#  isp:\n(?:#  .*\n)+", shipped)
    assert example is not None

    used = shipped.replace(example[0], re.sub(r"(?m)^#", "", example[0]))

    assert list(parse_policy(used.encode(), ROOT / "policy.yaml").upstreams) == ["practice", "isp"]


def test_the_practice_upstream_and_its_account_agree() -> None:
    policy = parse_policy((ROOT / "policy.yaml").read_bytes(), ROOT / "policy.yaml")
    account, practice = policy.upstreams["practice"], policy.practice
    assert account.auth is not None
    assert practice is not None

    assert (account.host, account.port) == (practice.address.host, practice.address.port)
    assert (account.auth.user, account.auth.password_file) == (practice.user, practice.password_file)
    assert practice.password_file == ROOT / "var" / "practice-password"  # the Makefile makes it
    assert account.limits == (practice.limit,)


def test_the_lock_pins_by_hash_and_names_no_registry() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = project["project"]["dependencies"] + project["project"]["optional-dependencies"]["test"]
    wanted += project["build-system"]["requires"]
    lock = (ROOT / "requirements.lock").read_text()
    pinned = dict(re.findall(r"(?m)^([a-z0-9-]+)==([^ ]+)(?: ;.*)? \\\n    --hash=sha256:", lock))

    _none([each for each in wanted if re.split(r"[^A-Za-z0-9-]", each)[0].lower() not in pinned])
    _none([each for each in wanted if "==" in each and not each.endswith("==" + pinned[each.split("==")[0]])])
    assert "://" not in lock
    assert "index" not in lock


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    demand(missing_program("systemd-analyze"))
    command = re.search(r"(?m)^ExecStart=(\S+) ", UNIT.read_text())
    assert command is not None
    # verify also asks whether the program is there.
    installed = tmp_path / "relay.service"
    installed.write_text(UNIT.read_text().replace(command[1], sys.executable))

    ran = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(installed)], capture_output=True, text=True, check=False
    )

    assert (ran.returncode, ran.stderr) == (0, "")


def test_systemd_finds_the_unit_well_confined() -> None:
    demand(missing_program("systemd-analyze"))

    # The threshold is in tenths: 0 is fully confined, 96 an ordinary daemon.
    ran = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=20", "--no-pager", str(UNIT)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_unit_and_its_policy_name_the_same_credential_and_state() -> None:
    unit = UNIT.read_text()
    policy = parse_policy((ROOT / "deploy" / "policy.yaml").read_bytes(), Path("/etc/relay/policy.yaml"))
    auth = next(iter(policy.upstreams.values())).auth
    assert auth is not None

    assert f"LoadCredential={auth.password_credential}:" in unit
    assert policy.spool == Path("/var/lib/relay/spool")
    assert "StateDirectory=relay\n" in unit


def test_promtool_accepts_scrape_and_alerts() -> None:
    demand(prometheus.why_missing())

    ran = prometheus.promtool("check", "config", str(ALERTS.with_name("scrape.yml")))

    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_alert_fires_when_it_should_and_only_then() -> None:
    demand(prometheus.why_missing())

    ran = prometheus.promtool("test", "rules", str(ALERTS.with_name("alerts_test.yml")))

    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_no_alert_is_without_a_case_in_which_it_fires() -> None:
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    cases = ALERTS.with_name("alerts_test.yml").read_text()

    _none([rule["alert"] for rule in rules if f'alertname="{rule["alert"]}"' not in cases])


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
