"""Runs the tests against each mutant, and prints which one caught it; exits 1 if a mutant survived."""

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from shutil import copytree, ignore_patterns

from tests.mutants.sites import Site, mutated, sites

ROOT = Path(__file__).parents[2]
MODULES = (
    "relay/spool/intake.py",
    "relay/spool/arrivals.py",
    "relay/spool/maildir.py",
    "relay/spool/files.py",
    "relay/spool/notes.py",
    "relay/spool/ledger.py",
    "relay/spool/recovery.py",
    "relay/spool/room.py",
    "relay/spool/lock.py",
    "relay/throttle/history.py",
)
TESTS = ("tests/spool", "tests/throttle")
LONGEST_SECONDS = 600


def main() -> int:
    """Make each mutant and judge it."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", default=MODULES, help="default: the spool and the history")
    parser.add_argument("--kinds", nargs="+", default=["sync", "order", "check"])
    parser.add_argument("--at-once", type=int, default=2)
    options = parser.parse_args()
    wanted = [
        (module, site)
        for module in options.modules
        for site in sites((ROOT / module).read_text())
        if site.kind in options.kinds
    ]
    survived = 0
    with tempfile.TemporaryDirectory(prefix="relay-mutants-") as folder:
        copies: Queue[Path] = Queue()
        places = [Path(folder) / str(number) for number in range(options.at_once)]
        for place in places:
            unneeded = ignore_patterns(".git", ".venv", ".hypothesis", "var", "__pycache__")
            copies.put(copytree(ROOT, place, ignore=unneeded))
        if (broken := _run(places[0])) is not None:
            sys.stdout.write(f"the tests fail without any mutant: {broken}\n")
            return 2
        with ThreadPoolExecutor(options.at_once) as pool:
            for (module, site), caught in zip(
                wanted, pool.map(lambda each: _judge(copies, *each), wanted), strict=True
            ):
                survived += caught is None
                sys.stdout.write(
                    f"{module}:{site.line} {site.kind}: {site.told}\n    {caught or 'SURVIVED'}\n"
                )
                sys.stdout.flush()
    sys.stdout.write(f"{len(wanted)} mutants, {survived} survived\n")
    return 1 if survived else 0


def _judge(copies: "Queue[Path]", module: str, site: Site) -> str | None:
    """Return the first test that failed, or None."""
    copy = copies.get()
    source = (ROOT / module).read_text()
    try:
        (copy / module).write_text(mutated(source, site))
        return _run(copy)
    finally:
        (copy / module).write_text(source)
        copies.put(copy)


def _run(copy: Path) -> str | None:
    """Run the tests of a copy; return the first that failed, or None."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m"]
    command += ["not crash and not slow", "--no-header", f"--basetemp={copy}.tests", *TESTS]
    environment = os.environ | {"PYTHONPATH": str(copy)}
    try:
        ran = subprocess.run(
            command,
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LONGEST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "the tests did not end"
    if ran.returncode == 0:
        return None
    failed = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].partition(" - ")[0] if failed else f"exit {ran.returncode}"


if __name__ == "__main__":
    sys.exit(main())
