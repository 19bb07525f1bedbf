"""The manual pages and completions are up to date with the code, and mandoc accepts them."""

import re
import subprocess

from relay.cli.main import COMMANDS
from tests.system.demand import demand, missing_program
from tests.unit.cli import manual_pages


def test_generated_pages_and_completions_are_up_to_date() -> None:
    for path, content in manual_pages.pages().items():
        assert path.read_text() == content, f"make docs, for {path}"


def test_mandoc_has_no_warning() -> None:
    demand(missing_program("mandoc"))
    paths = [str(path) for path in manual_pages.pages() if path.parent.name == "man"]
    lint = ["mandoc", "-T", "lint", "-W", "warning", *paths]
    ran = subprocess.run(lint, capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stdout) == (0, "")


def test_commands_md_describes_every_command() -> None:
    page = manual_pages.COMMANDS.read_text()
    told = re.findall(r"(?ms)^## relay (\S+)\n\n`relay \1\b(?:(?!^## ).)*?^<!-- above: by", page)

    assert sorted(told) == sorted(COMMANDS)
