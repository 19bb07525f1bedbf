"""What a run of pytest for mutants needs, as a plugin: `-p tests.mutants.plugin`.

RELAY_MUTANTS_RECORD   a file: writes how long each test takes, which lines of relay it executes, and
                       whether it starts other processes, whose lines nobody sees
RELAY_MUTANTS_ASKED    a socket's descriptor: once the tests are imported, answers each line of JSON
                       (module, source, tests in their order, and their seconds) by the first test
                       that fails, from a fork of its own that has the mutant in it

A test that takes many times what it took, or memory without end, has failed.  Failing examples are
not made smaller: that they fail is all that is asked.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NotRequired, TypedDict

import pytest
from coverage import Coverage
from hypothesis import Phase, settings

from tests.mutants.swap import swap

ROOT = Path(__file__).parents[2]
MOST_MEMORY_BYTES = 6 * 1024**3
LEAST_PATIENCE_S = 20.0
PATIENCE = 10.0
UNSWAPPED = "!"
"""The answer where only a new process can have the mutant in it."""
BROKEN = "?"
"""How an answer begins that says nothing about the mutant."""


class Asked(TypedDict):
    """What a server is asked: tests with their seconds, and the module's source before and after."""

    tests: list[tuple[str, float]]
    module: NotRequired[str]
    before: NotRequired[str]
    after: NotRequired[str]


class Recorder:
    """Notes what each test executes."""

    def __init__(self, into: str) -> None:
        self._into = into
        self._seen: dict[str, dict[str, object]] = {}
        self._test = ""
        self._coverage = Coverage(data_file=f"{into}.lines", include=[f"{ROOT}/relay/*"], config_file=False)
        self._coverage.start()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, _arguments: object) -> None:
        if event in ("subprocess.Popen", "os.fork", "os.posix_spawn") and self._test:
            self._seen[self._test]["starts"] = True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._test, began = item.nodeid, time.perf_counter()
        self._seen[self._test] = {"starts": False}
        self._coverage.switch_context(self._test)
        try:
            return (yield)
        finally:
            self._coverage.switch_context("")
            self._seen[self._test]["seconds"] = time.perf_counter() - began
            self._test = ""

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        found = self._coverage.get_data()
        for test in ("", *self._seen):
            found.set_query_context(test)
            lines = {str(Path(file).relative_to(ROOT)): found.lines(file) for file in found.measured_files()}
            of_test = self._seen.setdefault(test, {"starts": False, "seconds": 0.0})
            of_test["lines"] = {module: executed for module, executed in lines.items() if executed}
        Path(self._into).write_text(json.dumps(self._seen))


class Server:
    """Has all tests imported, and forks for each mutant."""

    def __init__(self, asked: int) -> None:
        self._socket = socket.socket(fileno=asked)
        self._seconds: dict[str, float] = {}
        self._test = ""
        self._caught = ""

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        self._answer("")
        for line in self._socket.makefile("r"):
            child = os.fork()
            if child == 0:
                try:
                    self._judge(session, items, json.loads(line))
                except BaseException as error:  # noqa: BLE001 - a fork must not go on as its parent
                    self._answer(f"{BROKEN}{error!r}")
                finally:
                    os._exit(0)
            _, status = os.waitpid(child, 0)
            if status:
                self._answer(f"a test (the process ended: {status})")
        return True

    def _judge(self, session: pytest.Session, items: dict[str, pytest.Item], asked: Asked) -> None:
        """Judge one mutant and answer."""
        self._seconds = dict(asked["tests"])
        try:
            if "module" in asked:
                file = ROOT / asked["module"]
                swap(str(file), asked["before"], asked["after"])
        except ValueError:
            self._answer(UNSWAPPED)
            return
        signal.signal(signal.SIGALRM, self._too_long)
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
        # A mutant of what an import executes may leave a parametrized test without one of its cases.
        chosen = [items[test] for test in self._seconds if test in items]
        for item, following in zip(chosen, [*chosen[1:], None], strict=True):
            self._test = item.nodeid
            signal.setitimer(signal.ITIMER_REAL, max(LEAST_PATIENCE_S, PATIENCE * self._seconds[self._test]))
            with contextlib.suppress(session.Interrupted, session.Failed):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._caught:
                break
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._answer(self._caught)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self._caught:
            self._caught = report.nodeid

    def _too_long(self, _signal: int, _frame: object) -> None:
        self._answer(f"{self._test} (did not end)")
        os._exit(0)

    def _answer(self, caught: str) -> None:
        self._socket.sendall(f"{json.dumps(caught)}\n".encode())


def pytest_configure(config: pytest.Config) -> None:
    """Record or judge, as the environment says."""
    if (into := os.environ.get("RELAY_MUTANTS_RECORD")) is not None:
        config.pluginmanager.register(Recorder(into))
    if (asked := os.environ.pop("RELAY_MUTANTS_ASKED", None)) is not None:
        quick = (Phase.explicit, Phase.reuse, Phase.generate)
        settings.register_profile("mutants", settings(), phases=quick, report_multiple_bugs=False)
        settings.load_profile("mutants")
        config.pluginmanager.register(Server(int(asked)))
