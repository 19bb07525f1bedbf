"""Many runs beside each other: each worker is a program of its own, and works through its share.

A run mostly waits, for windows and back-offs, so there may be some for each processor.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.proofs.peers.relay import PROJECT

LONGEST_RUN_S = 150.0
"""Beyond its budget; only so that a broken search ends."""


@dataclass(slots=True)
class Searched:
    """What many runs came to."""

    seed: str
    counts: Counter[str] = field(default_factory=Counter)
    broken: list[dict[str, Any]] = field(default_factory=list)
    """The runs in which a promise was broken, as `run.Result.as_json` has them."""
    errors: list[str] = field(default_factory=list)
    """Runs that came to no end, or workers that did not."""
    took_s: float = 0.0

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {what}" for what, count in sorted(self.counts.items()))
        return f"seed {self.seed}, {self.took_s:.0f} s: {counts}; {len(self.broken)} runs broke a promise"

    def explanation(self, most: int = 3) -> str:
        """Return what an engineer needs: how to have a run again, what was broken, and who said what when."""
        lines = [str(self), *self.errors]
        for run in self.broken:
            seed, number = run["seed"].rsplit("/", 1)
            lines.append(
                f"again: python -m tests.proofs.peers.hostile.run {seed} {number} FOLDER   ({run['trace']})"
            )
            lines += [f"    {promise}: {text}" for promise, text in run["found"][:5]]
        for run in self.broken[:most]:
            lines += ["", f"--- run {run['seed']}", *run["relevant"]]
        return "\n".join(lines)


def search(
    seed: str, folder: Path, *, runs: int, seconds: float, workers: int, scope: str = "all"
) -> Searched:
    """Make runs 0, 1, … of a seed until there were so many or the time is over; return what was found."""
    began_s = time.monotonic()
    programs = []
    for worker in range(workers):
        arguments = [seed, str(worker), str(folder), str(workers), str(seconds), str(runs)]
        programs.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.proofs.peers.hostile.run", *arguments],
                cwd=PROJECT,
                env=os.environ | {"HOSTILE_SCOPE": scope},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    found = Searched(seed)
    try:
        for program in programs:
            left_s = seconds + LONGEST_RUN_S - (time.monotonic() - began_s)
            told, errors = program.communicate(timeout=max(1.0, left_s))
            _add(found, told, errors, program.returncode)
    finally:
        for program in programs:
            program.kill()  # of those that ended it is told nothing
            program.wait()
    found.took_s = time.monotonic() - began_s
    return found


def _add(found: Searched, told: str, errors: str, status: int) -> None:
    if status or errors:
        found.errors.append(f"a worker ended with {status}: {errors}")
    for line in told.splitlines():
        run = json.loads(line)
        if "error" in run:
            found.errors.append(f"run {run['seed']} came to no end: {run['error']}")
            continue
        found.counts.update(run["counts"])
        if run["found"]:
            found.broken.append(run)
