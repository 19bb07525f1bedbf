"""`relay top` as a command: what it needs, and what it costs the others."""

import os
from pathlib import Path

import pytest

from tests.unit.cli.control import code_of, write_policy


@pytest.fixture
def policy_path(tmp_path: Path) -> Path:
    return write_policy(tmp_path)


def test_top_needs_a_terminal_and_says_what_does_not(
    policy_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("top", "--policy", str(policy_path)) == os.EX_USAGE
    assert "`relay status` prints to anything" in capsys.readouterr().err
