"""What the tests do without any mutant: how long each takes, which lines it executes; and that they pass.

Kept in a file, it is right for as long as the sources are: a changed test is recorded anew, and a
change of relay/ or of what the tests share lets all be recorded anew.
"""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutants.sites import Site

ROOT = Path(__file__).parents[2]
TESTS = (
    "tests/engines/spool",
    "tests/unit/spool",
    "tests/engines/history",
    "tests/unit/throttle",
    "tests/unit/mail/test_address.py",
    "tests/unit/mail/test_text.py",
    "tests/unit/smtp/test_reply.py",
    "tests/unit/mail/test_report.py",
    "tests/unit/mail/test_report_by_request.py",
    "tests/unit/mail/test_dsn.py",
    "tests/unit/cli/test_fsck.py",
    "tests/unit/cli/test_spool_convert.py",
    "tests/unit/cli/test_audit.py",
    "tests/unit/status/test_listing.py",
    "tests/unit/status/test_eta.py",
    "tests/unit/sender/test_spool_thread.py",
    "tests/unit/sender/test_group_commit.py",
    "tests/unit/sender/test_reports.py",
    "tests/unit/sender/test_dsn.py",
    "tests/unit/sender/test_limits.py",
    "tests/unit/sender/test_full_disk.py",
    "tests/unit/daemon/test_upkeep.py",
)
MARKED = ("-m", "not full and not measures and not crash")
LONGEST_S = 1800


@dataclass(frozen=True, slots=True)
class Known:
    """What all tests do."""

    seconds: dict[str, float]
    lines: dict[str, dict[int, set[str]]]
    """Of each module and line, which tests execute it; one without a name is an import."""
    starters: frozenset[str]
    """Tests that start other processes."""

    def able(self, module: str, site: Site) -> set[str]:
        """Return the tests that could notice a mutant."""
        of_module = self.lines.get(module, {})
        lines = of_module if self.is_imported(module, site) else site.lines
        return {test for line in lines for test in of_module.get(line, ()) if test}

    def is_imported(self, module: str, site: Site) -> bool:
        """Return whether an import executes it, so that it need not show where tests execute it."""
        of_module = self.lines.get(module, {})
        return not site.lines or any("" in of_module.get(line, ()) for line in site.lines)


def known(place: Path, kept: Path) -> Known:
    """Return what the tests of a copy do, and keep it.  Raises ValueError where one fails."""
    now = _digests(place)
    found = json.loads(kept.read_text()) if kept.exists() else {"sources": {}, "tests": {}}
    if found["sources"].get("") != now[""]:
        found = {"sources": {}, "tests": {}}
    stale = sorted(file for file in now if file and found["sources"].get(file) != now[file])
    # Without a name stands what importing the tests executes: the same for all.
    tests = {
        test: each
        for test, each in found["tests"].items()
        if not test or test.partition("::")[0] in now.keys() - set(stale)
    }
    if stale:
        tests |= _recorded(place, stale, tests.get("", {"lines": {}}))
        kept.write_text(json.dumps({"sources": now, "tests": tests}))
    lines: dict[str, dict[int, set[str]]] = {}
    for test, each in tests.items():
        for module, executed in each["lines"].items():
            for line in executed:
                lines.setdefault(module, {}).setdefault(line, set()).add(test)
    tests.pop("")
    seconds = {test: each["seconds"] for test, each in tests.items()}
    return Known(seconds, lines, frozenset(test for test, each in tests.items() if each["starts"]))


def _recorded(place: Path, files: list[str], imported: dict[str, Any]) -> dict[str, dict[str, Any]]:
    into = Path(f"{place}.recorded")
    record = {"RELAY_MUTANTS_RECORD": str(into)}
    ran = run_tests(place, record, "-p", "tests.mutants.plugin", *MARKED, *files)
    if ran is None or ran.returncode:
        raise ValueError(f"the tests fail without any mutant:\n{ran and ran.stdout[-2000:]}")
    tests: dict[str, dict[str, Any]] = json.loads(into.read_text())
    # Other files import more.
    for module, executed in imported["lines"].items():
        tests[""]["lines"][module] = sorted({*executed, *tests[""]["lines"].get(module, ())})
    return tests


def run_tests(
    place: Path, more: dict[str, str], *arguments: str
) -> "subprocess.CompletedProcess[str] | None":
    """Run pytest in a copy; None where it did not end."""
    try:
        return subprocess.run(
            [*command(place), *arguments],
            cwd=place,
            env=environment(place) | more,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None


def command(place: Path) -> list[str]:
    """Return how pytest is called for a copy."""
    return [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header"),
        f"--basetemp={place}.tests",
    ]


def environment(place: Path) -> dict[str, str]:
    """Return the environment for a copy."""
    # A mutant of the same second and length as the one before would be taken for compiled.
    return os.environ | {"PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}


def _digests(place: Path) -> dict[str, str]:
    """Return a digest of each file of tests that is run, and, without a name, of all else."""
    named = [path for name in TESTS for path in [place / name, *(place / name).rglob("test_*.py")]]
    files = {str(path.relative_to(place)): path for path in named if path.is_file()}
    others = [path for room in ("relay", "tests") for path in sorted((place / room).rglob("*.py"))]
    shared = [path for path in others if not path.name.startswith("test_") and "mutants" not in path.parts]
    return {"": _digest(shared)} | {name: _digest([path]) for name, path in sorted(files.items())}


def _digest(paths: list[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()
