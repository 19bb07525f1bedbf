"""The spool on ext4, xfs and btrfs: no image that a power cut leaves breaks a promise.

Each experiment is a process in its own mount namespace. An experiment with a careless disk shows that the
laboratory notices a broken promise.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relay.policy.model import SpoolEngine
from relay.spool.engines import ENGINES
from tests.engines.lab import machine
from tests.engines.lab.machine import FILE_SYSTEMS
from tests.system.demand import demand
from tests.system.relay import PROJECT

IMAGES = 48
"""The number of images for each file system and engine, in every `make test-all`."""
MOST_UNMOUNTABLE = 1 / 20
"""A share of the images. btrfs refuses a superblock of which only some octets arrived: once in some 900."""
HANG_S = 600.0
SHARE = 1 / 24
"""The share of a crash run's budget for each file system and engine."""


def experiment(folder: Path, name: str, *arguments: object, seconds: float = 0) -> dict[str, Any]:
    demand(machine.why_missing(), FILE_SYSTEMS[name].why_missing())
    command = [sys.executable, "-m", "tests.engines.lab", name, *map(str, arguments)]
    ran = subprocess.run(
        ["setpriv", "--pdeathsig", "KILL", *command],
        cwd=PROJECT,
        env=os.environ | {"TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        timeout=seconds + HANG_S,
        check=False,
    )
    assert ran.stdout, f"the experiment exited {ran.returncode}"
    figures: dict[str, Any] = json.loads(ran.stdout)
    assert ran.returncode == bool(figures["violations"])
    return figures


def check(figures: dict[str, Any]) -> None:
    assert figures["violations"] == []
    assert len(figures["unmountable"]) <= figures["images"] * MOST_UNMOUNTABLE
    assert figures["images"] > 0


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FILE_SYSTEMS)
def test_no_power_cut_on_a_real_file_system_breaks_a_promise(name: str, engine: str, tmp_path: Path) -> None:
    figures = experiment(tmp_path, name, "--engine", engine, "--images", IMAGES)

    check(figures)
    assert figures["images"] == IMAGES
    assert figures["accepted"] > IMAGES / 4


@pytest.mark.full
@pytest.mark.parametrize(("engine", "sync"), [("maildir", "sync_directory:new"), ("log", "sync_content")])
@pytest.mark.parametrize(
    "name", ["ext4", *(pytest.param(name, marks=pytest.mark.crash(least_s=60)) for name in ("xfs", "btrfs"))]
)
def test_the_laboratory_notices_a_missing_sync(
    name: str, engine: SpoolEngine, sync: str, tmp_path: Path
) -> None:
    figures = experiment(tmp_path, name, "--engine", engine, "--careless", sync, "--images", 400)

    (violation,) = figures["violations"]
    assert "is lost" in violation or "durably" in violation


@pytest.mark.crash
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FILE_SYSTEMS)
def test_repeated_power_cuts_on_one_disk_break_no_promise(
    *,
    name: str,
    engine: str,
    crash_seed: int,
    crash_budget_s: float,
    tmp_path: Path,
    tell: Callable[[str], None],
) -> None:
    seconds = crash_budget_s * SHARE
    arguments = ("--engine", engine, "--seed", crash_seed, "--seconds", seconds)
    figures = experiment(tmp_path, name, *arguments, seconds=seconds)

    tell(
        f"lab: {name}, {engine}: {figures['images']} crash images of {figures['plays']} plays judged, "
        f"{len(figures['unmountable'])} unmountable, {figures['flushes']} flushes, seed {crash_seed}: "
        f"{len(figures['violations'])} violations"
    )
    check(figures)
