"""Every target keeps its law: on its seeds, on drawn bytes, and in the long searches of `make crash`."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.system.demand import demand

ROOT = Path(__file__).parents[2]
SHARE = 1 / 8
"""The part of the budget of `make crash` for as many targets as that allows."""
GIVE_UP_S = 300
"""How long after its budget a search that hangs is ended."""


class Target(Protocol):
    """The module of one target."""

    SEEDS: Sequence[bytes]
    TOKENS: Sequence[bytes]
    target: Callable[[bytes], None]


_NAMES = (
    "addresses content listener_session log_segment message_file notes policy replies rewriting "
    "token_answers upstream_session"
)
TARGETS = {name: cast("Target", import_module(f"tests.fuzz.{name}")) for name in _NAMES.split()}


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_their_prefixes_keep_the_law(name: str) -> None:
    for seed in TARGETS[name].SEEDS:
        for size in {*range(0, len(seed), 1 + len(seed) // 5), len(seed)}:
            TARGETS[name].target(seed[:size])


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_keep_the_law(name: str) -> None:
    tokens = st.sampled_from(sorted(set(TARGETS[name].TOKENS)))
    octets = st.lists(tokens | st.binary(max_size=8), max_size=16).map(b"".join)
    # In most targets an even first octet means octets as they are, an odd one a list of choices.
    inputs = st.builds(bytes.__add__, st.sampled_from([b"\0", b"\0\0", b"\1\0"]), octets) | st.binary(
        min_size=20, max_size=300
    ).map(lambda raw: b"\1" + raw)

    @given(inputs)
    def keeps_the_law(raw: bytes) -> None:
        TARGETS[name].target(raw)

    keeps_the_law()


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
