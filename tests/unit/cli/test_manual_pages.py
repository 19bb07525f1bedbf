"""The manual pages and completions that are installed: made of the code, and sound."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.proofs.peers.demand import demand, missing_program
from tests.unit.cli import manual_pages
from tests.unit.cli.manual_pages import pages

MANUALS = [path for path in pages() if path.parent.name == "man"]


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_what_is_installed_is_what_the_code_says(path: Path) -> None:
    assert path.read_text() == pages()[path], "make docs"


@pytest.mark.parametrize("path", MANUALS, ids=lambda path: path.name)
def test_mandoc_has_no_warning(path: Path) -> None:
    demand(missing_program("mandoc"))
    ran = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", str(path)], capture_output=True, text=True, check=False
    )

    assert (ran.returncode, ran.stdout) == (0, "")


@pytest.mark.parametrize("path", MANUALS, ids=lambda path: path.name)
def test_a_reader_sees_no_markup(path: Path) -> None:
    demand(missing_program("mandoc"))
    shown = subprocess.run(
        ["mandoc", "-T", "ascii", str(path)], capture_output=True, text=True, check=True
    ).stdout
    plain = re.sub(r".\x08", "", shown)

    assert not re.search(r"`|\]\(|\\f[BR]|\*\*", plain)
    assert "NAME" in plain


def test_the_manual_of_the_policy_has_each_key_of_its_page() -> None:
    page = (manual_pages.ROOT / "docs" / "policy.md").read_text()
    keys = re.findall(r"(?m)^\| `([a-z_A-Z.\[\]]+)` \|[^|]*\|[^|]*\|[^|]*\|$", page)
    shown = re.findall(r"(?m)^\.It Cm (.*)$", manual_pages.relay_policy_5())

    assert len(keys) > 60
    assert set(keys) <= set(shown)


def test_bash_takes_its_completion() -> None:
    completion = manual_pages.DEPLOY / "completions" / "relay.bash"

    assert subprocess.run(["bash", "-n", str(completion)], check=False).returncode == 0
