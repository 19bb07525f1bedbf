"""`make size`: prints how many lines rooms, tests and pages have, beside their budgets; exits 1 above one.

Every line counts, also blank ones and docstrings: a reader scrolls through all of them.
"""

import sys
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
ALL_ROOMS, TESTS = 27_000, 35_000
PAGES = {"README.md": 150, "ARCHITECTURE.md": 250, "docs/*.md": 2_200, "docs/dev/*.md": 800}


def lines_of(pattern: str) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in ROOT.glob(pattern))


def main() -> int:
    sizes = {f"relay/{room}": (lines_of(f"relay/{room}/**/*.py"), budget) for room, budget in ROOMS.items()}
    sizes["relay"] = lines_of("relay/**/*.py"), ALL_ROOMS
    sizes["tests"] = lines_of("tests/**/*.py"), TESTS
    sizes |= {pages: (lines_of(pages), budget) for pages, budget in PAGES.items()}
    for name, (lines, budget) in sizes.items():
        above = f"  {lines - budget:+,}" if lines > budget else ""
        sys.stdout.write(f"{name:<16} {lines:>7,} of {budget:>7,}{above}\n")
    return int(any(lines > budget for lines, budget in sizes.values()))


if __name__ == "__main__":
    sys.exit(main())
