"""The long searches of `make crash`: an eighth of its budget, shared by all targets; a small one by some."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.budget import part_of
from tests.fuzz.targets import TARGETS
from tests.system.demand import demand

ROOT = Path(__file__).parents[2]
DRAWN = part_of(list(TARGETS), 100.0)
GIVE_UP_S = 300
"""Beyond its budget; only so that a broken search ends."""


@pytest.mark.crash
@pytest.mark.parametrize("name", DRAWN)
def test_a_guided_search_breaks_no_law(
    name: str, crash_seed: int, crash_budget_s: float, tell: Callable[[str], None], tmp_path: Path
) -> None:
    if importlib.util.find_spec("atheris") is None:
        demand("atheris is not here: python3 -m pip --python .venv/bin/python install 'atheris>=3,<4'")
    share_s = crash_budget_s / 8 / len(DRAWN)
    command = [sys.executable, "-m", "tests.fuzz.drive", name]
    ran = subprocess.run(
        [*command, str(crash_seed), str(round(share_s)), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=share_s + GIVE_UP_S,
    )

    assert ran.returncode == 0, ran.stderr[-6000:]
    found = re.search(r"stat::number_of_executed_units: ([0-9]+)", ran.stderr)
    assert found is not None, ran.stderr[-6000:]
    tell(f"fuzz: {name}: {found[1]} inputs, guided, seed {crash_seed}")
