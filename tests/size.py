"""`make size`: prints how many lines rooms, tests and pages have, beside their budgets; exits 1 above one.

Every line counts, also blank ones and docstrings: a reader scrolls through all of them.  The files that only
several hosts with a database need have a budget of their own, and count in no room.
"""

import sys
from collections.abc import Collection
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = {
    "mail": 870,
    "smtp": 1_070,
    "verdicts": 1_300,
    "queue": 1_300,
    "policy": 2_000,
    "spool": 4_500,
    "throttle": 1_600,
    "listener": 1_250,
    "upstream": 1_950,
    "practice": 200,
    "telemetry": 1_000,
    "hooks": 230,
    "sender": 2_800,
    "status": 1_900,
    "control": 800,
    "daemon": 1_200,
    "submission": 780,
    "cli": 2_650,
}
"""The budget of each room in lines; a room imports only rooms above it."""
SEVERAL_HOSTS = (
    "spool/database/*.py",
    "spool/postgresql/*.py",
    "throttle/postgresql_history.py",
    "sender/account_row.py",
    "control/other_hosts.py",
    "cli/database.py",
)
ALL_ROOMS, OF_SEVERAL_HOSTS, TESTS = 27_000, 1_600, 35_000
PAGES = {"README.md": 150, "ARCHITECTURE.md": 250, "docs/*.md": 2_200, "docs/dev/*.md": 800}


def lines_of(pattern: str, without: Collection[Path] = ()) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in ROOT.glob(pattern) if path not in without)


def main() -> int:
    apart = {path for pattern in SEVERAL_HOSTS for path in (ROOT / "relay").glob(pattern)}
    sizes = {
        f"relay/{name}": (lines_of(f"relay/{name}/**/*.py", apart), most) for name, most in ROOMS.items()
    }
    sizes["relay"] = lines_of("relay/**/*.py", apart), ALL_ROOMS
    sizes["several hosts"] = sum(lines_of(str(path.relative_to(ROOT))) for path in apart), OF_SEVERAL_HOSTS
    sizes["tests"] = lines_of("tests/**/*.py"), TESTS
    sizes |= {pages: (lines_of(pages), budget) for pages, budget in PAGES.items()}
    for name, (lines, budget) in sizes.items():
        above = f"  {lines - budget:+,}" if lines > budget else ""
        sys.stdout.write(f"{name:<16} {lines:>7,} of {budget:>7,}{above}\n")
    return int(any(lines > budget for lines, budget in sizes.values()))


if __name__ == "__main__":
    sys.exit(main())
