"""A real relay on ext4, xfs and btrfs: whatever a power cut leaves, no promise is broken.

All three experiments run at once, each a process in a mount namespace of its own; so does
the one with a careless relay, which shows that the laboratory can see a promise broken.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from relay.policy.model import SpoolEngine
from tests.engines.lab import kernel
from tests.engines.lab.filesystems import FILE_SYSTEMS
from tests.system.demand import demand
from tests.system.relay import PROJECT

IMAGES = 63
"""Of each file system, in every `make test-all`."""
MOST_UNMOUNTABLE = 1 / 20
"""Of the images.  btrfs refuses a superblock of which some octets came and others not: once in some 900."""
HANG_S = 600.0
SHARE = 0.125
"""Of the budget of a crash run, for each engine; all three file systems share it."""

Experiments = Mapping[str, subprocess.Popen[bytes]]


@contextmanager
def _experiment(folder: Path, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.engines.lab", *map(str, arguments)]
    surroundings = os.environ | {"TMPDIR": str(folder)}
    with subprocess.Popen(command, cwd=PROJECT, env=surroundings, stdout=subprocess.PIPE) as experiment:
        try:
            yield experiment
        finally:
            # With it go its mounts, its loop devices and its relay.
            experiment.kill()


def _figures_of(experiment: subprocess.Popen[bytes], *, within_s: float = HANG_S) -> dict[str, Any]:
    said, _ = experiment.communicate(timeout=within_s)
    assert said, f"the experiment exited {experiment.returncode}"
    figures: dict[str, Any] = json.loads(said)
    assert experiment.returncode == (figures["violations"] > 0)
    return figures


def _demand(*names: str) -> None:
    demand(kernel.why_missing(), *(FILE_SYSTEMS[name].why_missing() for name in names))


@contextmanager
def _on_each(folder: Path, *arguments: object) -> Iterator[Experiments]:
    """Start an experiment on each file system that there is."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(_experiment(folder, name, *arguments))
            for name, file_system in FILE_SYSTEMS.items()
            if kernel.why_missing() is None and file_system.why_missing() is None
        }


@pytest.fixture(scope="module", params=SpoolEngine)
def experiments(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Experiments]:
    arguments = ("--engine", request.param, "--images", IMAGES, "--letters", 32)
    with _on_each(tmp_path_factory.mktemp("lab"), *arguments) as running:
        yield running


@pytest.mark.full
@pytest.mark.parametrize("name", FILE_SYSTEMS)
def test_no_power_cut_of_a_real_disk_breaks_a_promise(name: str, experiments: Experiments) -> None:
    _demand(name)
    figures = _figures_of(experiments[name])

    assert figures["first_violations"] == [], figures["all_violations"]
    assert figures["images"] == IMAGES
    assert figures["unmountable"] <= figures["images"] * MOST_UNMOUNTABLE
    assert figures["judged"] == figures["images"] - figures["unmountable"]
    # The judge had something to judge: whole messages, finished ones, all kinds of ends.
    assert figures["seen"]["found"] > IMAGES
    assert figures["seen"]["ended"] > IMAGES
    assert {"TODO", "RELAYED", "BOUNCED", "EXPIRED"} <= set(figures["seen"])


@pytest.mark.full
@pytest.mark.parametrize(
    ("engine", "sync"), [(SpoolEngine.MAILDIR, "sync_directory:new"), (SpoolEngine.LOG, "sync_content")]
)
@pytest.mark.parametrize(
    "name", ["ext4", *(pytest.param(name, marks=pytest.mark.crash(least_s=60)) for name in ("xfs", "btrfs"))]
)
def test_a_relay_that_leaves_out_a_sync_is_caught(
    name: str, engine: SpoolEngine, sync: str, tmp_path: Path
) -> None:
    _demand(name)
    careless = ("--engine", engine, "--careless", sync, "--letters", 24)
    with _experiment(tmp_path, name, *careless, "--images", 150, "--until-violation") as experiment:
        figures = _figures_of(experiment)

    assert figures["violations"] > 0
    kept = [json.loads(line) for line in Path(figures["all_violations"]).read_text().splitlines()]
    assert kept[: len(figures["first_violations"])] == figures["first_violations"]
    assert len(kept) == figures["violations"]
    assert any("accepted, and lost" in violation for violation in figures["first_violations"])


@pytest.mark.crash
@pytest.mark.parametrize("engine", SpoolEngine)
def test_cut_after_cut_on_one_disk_breaks_no_promise(
    engine: SpoolEngine,
    crash_seed: int,
    crash_budget_s: float,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _demand(*FILE_SYSTEMS)
    seconds = crash_budget_s * SHARE
    arguments = ("--engine", engine, "--seed", crash_seed, "--seconds", seconds)
    with _on_each(tmp_path, *arguments) as running:
        figures = {name: _figures_of(each, within_s=seconds + HANG_S) for name, each in running.items()}

    with capsys.disabled():
        for name, told in figures.items():
            sys.stdout.write(
                f"\nlab: {name}, {engine}: {told['judged']} crash images of {told['plays']} plays judged, "
                f"{told['unmountable']} unmountable, {told['flushes']} flushes, "
                f"{told['images_per_second']} images/s, seed {crash_seed}: {told['violations']} violations"
                f"{' in ' + told['all_violations'] if told['violations'] else ''}\n"
            )
    assert [violation for told in figures.values() for violation in told["first_violations"]] == []
    assert all(told["judged"] > 0 for told in figures.values())
    assert all(told["unmountable"] <= told["images"] * MOST_UNMOUNTABLE for told in figures.values())
