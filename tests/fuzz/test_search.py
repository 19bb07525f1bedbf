"""The long searches of `make crash`: an eighth of its budget, for as many targets as that allows."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS
from tests.system.demand import demand

ROOT = Path(__file__).parents[2]
SHARE = 1 / 8
GIVE_UP_S = 300
"""How long after its budget a search that hangs is ended."""


@pytest.mark.crash
def test_guided_searches_break_no_law(
    drawn_in_time: Callable[[Iterable[str], float], Iterator[tuple[int, str]]],
    crash_seed: int,
    crash_budget_s: float,
    tell: Callable[[str], None],
    tmp_path: Path,
) -> None:
    if importlib.util.find_spec("atheris") is None:
        demand("atheris is not here: python3 -m pip --python .venv/bin/python install 'atheris>=3,<4'")
    seconds = max(1, round(crash_budget_s * SHARE / len(TARGETS)))
    for _, name in drawn_in_time(TARGETS, SHARE):
        folder = tmp_path / name
        folder.mkdir()
        ran = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.drive", name, str(crash_seed), str(seconds), str(folder)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=seconds + GIVE_UP_S,
        )

        assert ran.returncode == 0, ran.stderr[-6000:]
        found = re.search(r"stat::number_of_executed_units: ([0-9]+)", ran.stderr)
        assert found is not None, ran.stderr[-6000:]
        tell(f"fuzz: {name}: {found[1]} inputs, guided, seed {crash_seed}")
