"""The long searches of `make crash`: a quarter of its budget, shared by all targets."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.proofs.fuzz import drive
from tests.proofs.fuzz.targets import TARGETS
from tests.proofs.peers.demand import demand

ROOT = Path(__file__).parents[3]
GIVE_UP_S = 300
"""Beyond its budget; only so that a broken search ends."""

Say = Callable[[str], None]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Return a way to tell figures to who runs this."""

    def write(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\nfuzz: {text}\n")

    return write


@pytest.fixture
def share_s(crash_budget_s: float) -> float:
    return crash_budget_s / 8 / len(TARGETS)


@pytest.mark.crash
@pytest.mark.parametrize("name", TARGETS)
def test_a_blind_search_breaks_no_law(name: str, crash_seed: int, share_s: float, say: Say) -> None:
    count = drive.blind(name, str(crash_seed), share_s)

    say(f"{name}: {count} inputs, blindly, seed {crash_seed}")


@pytest.mark.crash
@pytest.mark.parametrize("name", TARGETS)
def test_a_guided_search_breaks_no_law(
    name: str, crash_seed: int, share_s: float, say: Say, tmp_path: Path
) -> None:
    if importlib.util.find_spec("atheris") is None:
        demand("atheris is not here: python3 -m pip --python .venv/bin/python install 'atheris>=3,<4'")
    command = [sys.executable, "-m", "tests.proofs.fuzz.drive", name]
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
    say(f"{name}: {found[1]} inputs, guided, seed {crash_seed}")


def test_the_search_finds_what_breaks_a_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """A law that forbids what one in a hundred inputs has: the search is no rubber stamp."""

    def law(raw: bytes) -> None:
        assert b"\0\0\0\0" not in raw

    monkeypatch.setattr(TARGETS["ledger"], "target", law)

    with pytest.raises(AssertionError, match=r"ledger, seed 1, input [0-9]+: b'.*\\x00"):
        drive.blind("ledger", "1", 20)
