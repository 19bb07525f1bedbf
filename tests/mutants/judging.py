"""Judges mutants: makes each in a copy of the project and runs the tests that could notice it.

Guarantees: a mutant counts as caught only if a test fails with it that passed without it.  Tests
that execute no changed line, and start no process that might, cannot notice: they run only for what
survived all others, and after them those marked `crash` and `slow`, with a seed and a budget of
their own.  Of those that can notice, the quick ones come first, and those that noticed others of the
module; the first that fails ends it.

A copy keeps one process in which all tests are imported; it forks for each mutant (`plugin`,
`swap`).  What an import executes is judged by a new process.
"""

import itertools
import json
import shutil
import socket
import subprocess
from collections import Counter
from pathlib import Path
from queue import Queue

from tests.mutants.known import MARKED, ROOT, TESTS, command, environment, known, run_tests
from tests.mutants.plugin import BROKEN, UNSWAPPED, Asked
from tests.mutants.sites import Site, mutated

LONG_TESTS = ("tests/engines/spool", "tests/engines/history")
CRASH_SEED, CRASH_BUDGET_S = 1, 30
LEFT_OUT = frozenset({"sync", "order"})
ABOUT_CRASHES = ("crash", "fault")
_UNNEEDED = shutil.ignore_patterns(
    ".git", ".venv", ".hypothesis", "var", "__pycache__", ".coverage", ".*_cache"
)


class Copy:
    """A copy of the project, for one mutant at a time."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._server: subprocess.Popen[bytes] | None = None

    def first_to_fail(self, asked: Asked) -> str:
        """Return the first test that fails with a mutant, or nothing, or UNSWAPPED."""
        self.start()
        self._socket.sendall(f"{json.dumps(asked)}\n".encode())
        answer: str = json.loads(self._answers.readline())
        if answer.startswith(BROKEN):
            raise RuntimeError(answer)
        return answer

    def close(self) -> None:
        """End the process that has the tests imported."""
        if self._server is not None:
            self._answers.close()
            self._socket.close()
            self._server.wait()
            self._server = None

    def start(self) -> None:
        """Have the tests imported, and what they are about: as it is on disk now.

        Raises ValueError where they cannot be.
        """
        if self._server is not None:
            return
        self._socket, theirs = socket.socketpair()
        self._answers = self._socket.makefile("r")
        with theirs:
            self._server = subprocess.Popen(
                [*command(self.place), "-p", "tests.mutants.plugin", "-s", *MARKED, *TESTS],
                cwd=self.place,
                env=environment(self.place) | {"RELAY_MUTANTS_ASKED": str(theirs.fileno())},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        # Not a moment earlier may a mutant stand in its place.
        json.loads(self._answers.readline())


class Judge:
    """Some copies of the project."""

    def __init__(self, folder: Path, at_once: int, kept: Path | None = None) -> None:
        """Run all tests once without a mutant.  Raises ValueError where one fails.

        What they did is read from `kept`, where that is there, and else written to it.
        """
        first = Copy(shutil.copytree(ROOT, folder / "0", ignore=_UNNEEDED))
        self.known = known(first.place, kept or Path(f"{first.place}.known"))
        self._caught: Counter[tuple[str, str]] = Counter()
        self._copies: Queue[Copy] = Queue()
        self._copies.put(first)
        for number in range(1, at_once):
            self._copies.put(Copy(shutil.copytree(first.place, folder / str(number))))

    def judge(
        self,
        module: str,
        site: Site,
        *,
        only_able: bool = False,
        most_s: float | None = None,
    ) -> str | None:
        """Return the first test that fails with a mutant, or None.

        `only_able` leaves out what cannot notice and what is long, `most_s` also all but the
        likeliest tests.
        """
        copy = self._copies.get()
        file = copy.place / module
        source = (ROOT / module).read_text()
        copy.start()
        try:
            # Also for those who start processes that import it.
            file.write_text(mutated(source, site))
            able = self._ranked(module, site)
            if most_s is not None:
                spent = itertools.accumulate(self.known.seconds[test] for test in able)
                able = [test for test, seconds in zip(able, spent, strict=True) if seconds <= most_s]
            caught = self._first(copy, module, site, able)
            if caught is None and not only_able and most_s is None:
                others = self.known.seconds.keys() - set(able)
                ranked = sorted(others, key=lambda test: test not in self.known.starters)
                caught = self._first(copy, module, site, ranked) or _long(copy.place)
        finally:
            # With its time: what was compiled of it before is right again.
            shutil.copy2(ROOT / module, file)
            self._copies.put(copy)
        if caught is not None:
            self._caught[module, caught.partition(" (")[0]] += 1
        return caught

    def close(self) -> None:
        """End all processes."""
        while not self._copies.empty():
            self._copies.get().close()

    def _ranked(self, module: str, site: Site) -> list[str]:
        """Return the tests that could notice, by what they cost and how likely they do."""
        costs: dict[str, float] = {}
        cases: Counter[str] = Counter()
        room = Path(module).stem
        for test in sorted(self.known.able(module, site), key=self.known.seconds.__getitem__):
            file, _, case = test.partition("::")
            function = case.partition("[")[0]
            # Cases of one test mostly agree; so do tests that are named for what they are about.
            cases[file + function] += 1
            cost = (0.02 + self.known.seconds[test]) * cases[file + function]
            cost /= 5 if room in file else 1
            cost /= 10 if site.kind in LEFT_OUT and any(word in file for word in ABOUT_CRASHES) else 1
            costs[test] = cost / (1 + 10 * self._caught[module, test])
        return sorted(costs, key=costs.__getitem__)

    def _first(self, copy: Copy, module: str, site: Site, tests: list[str]) -> str | None:
        """Return the first test that fails with the mutant, and by itself, and not without the mutant."""
        while tests and (caught := self._ask(copy, module, site, tests)) is not None:
            test = caught.partition(" (")[0]
            if test not in tests:
                return caught
            alone = caught if caught != test else self._ask(copy, module, site, [test])
            if alone is not None and not copy.first_to_fail({"tests": [(test, self.known.seconds[test])]}):
                return caught
            # What ran before it in the same process did this, and not the mutant.
            tests = tests[tests.index(test) + 1 :]
        return None

    def _ask(self, copy: Copy, module: str, site: Site, tests: list[str]) -> str | None:
        seconds = [(test, self.known.seconds[test]) for test in tests]
        if self.known.is_imported(module, site):
            return _first_of_new_process(copy.place, seconds)
        source = (ROOT / module).read_text()
        after = mutated(source, site)
        caught = copy.first_to_fail({"tests": seconds, "module": module, "before": source, "after": after})
        if caught == UNSWAPPED:
            return _first_of_new_process(copy.place, seconds)
        return caught or None


def _first_of_new_process(place: Path, seconds: list[tuple[str, float]]) -> str | None:
    fresh = Copy(place)
    try:
        return fresh.first_to_fail({"tests": seconds}) or None
    except ValueError:
        return "no test can be imported"
    finally:
        fresh.close()


def _long(place: Path) -> str | None:
    drawn = {"RELAY_CRASH_SEED": str(CRASH_SEED), "RELAY_CRASH_BUDGET": str(CRASH_BUDGET_S)}
    ran = run_tests(place, drawn, f"--hypothesis-seed={CRASH_SEED}", "-x", "-m", "crash or slow", *LONG_TESTS)
    if ran is None:
        return "the long tests did not end"
    failed = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return f"{failed[0].split()[1]} (seed {CRASH_SEED})" if failed else None
