"""The manual pages and completions that are installed: made of the code, and sound."""

import re
import subprocess
from pathlib import Path

import pytest

from relay.cli.main import COMMANDS
from tests.system.demand import demand, missing_program
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


def test_the_page_of_commands_has_each() -> None:
    page = manual_pages.COMMANDS.read_text()
    told = re.findall(r"(?ms)^## relay (\S+)\n\n`relay \1\b(?:(?!^## ).)*?^<!-- above: by", page)

    assert sorted(told) == sorted(COMMANDS)
