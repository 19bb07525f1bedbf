"""Hooks and fixtures of all tests, the profiles of Hypothesis, and the seed and budget of crash runs.

`make test` draws few examples and `make test-all` many, the same every time: only a change of the code
changes the result.  `make crash` draws from its seed, which it prints.
"""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import HealthCheck, settings

from tests.fakes.postgresql import Server, missing, started
from tests.system.demand import demand

SEED = int(os.environ.get("RELAY_CRASH_SEED", "0"))
BUDGET_S = float(os.environ.get("RELAY_CRASH_BUDGET", "1"))
"""The seed of a crash run, and its budget: about how many seconds it may take."""

# A shell starts background programs with SIGINT ignored, and their children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline and no health check of time: a slow machine is no fault of the code.
settings.register_profile(
    "full", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("test", settings.get_profile("full"), max_examples=25)
settings.register_profile("crash", settings.get_profile("full"), derandomize=False, print_blob=True)
settings.load_profile("crash" if "RELAY_CRASH_SEED" in os.environ else os.environ.get("RELAY_TESTS", "test"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests marked `crash(least_s=…)` if the budget is smaller than that.

    Leave uvloop to `make test-all`: the two loops seldom differ.
    """
    for item in items:
        if "uvloop" in item.name:
            item.add_marker(pytest.mark.full)
    marks = {item: item.get_closest_marker("crash") for item in items}
    too_long = {item for item, mark in marks.items() if mark and mark.kwargs.get("least_s", 0) > BUDGET_S}
    config.hook.pytest_deselected(items=[*too_long])
    items[:] = [item for item in items if item not in too_long]


def pytest_collection_finish() -> None:
    """Take all that was collected out of the garbage collector's sight: it stays, and is much to look at."""
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the lines that tests told."""
    # A test's teardown is reported once, whatever became of the test.
    reports = (each for group in terminalreporter.stats.values() for each in group)
    for report in reports:
        if isinstance(report, pytest.TestReport) and report.when == "teardown":
            for figures in (value for kind, value in report.user_properties if kind == "told"):
                terminalreporter.write_line(str(figures))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a PostgreSQL for the tests of one file."""
    demand(missing())
    with started(tmp_path_factory.mktemp("postgresql")) as running:
        yield running


@pytest.fixture(autouse=True)
def umask_of_its_own() -> Iterator[None]:
    """Restore the umask: some commands make it private, and tests run them in their own process."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture
def crash_seed() -> int:
    """Return the seed of a crash run (`make crash SEED=`); 0 without one."""
    return SEED


@pytest.fixture
def crash_budget_s() -> float:
    """Return about how many seconds a crash run may take (`make crash BUDGET=`); 1 without a budget."""
    return BUDGET_S


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Return a function that prints a line at the end of the run, also if all tests pass."""
    return partial(record_property, "told")
