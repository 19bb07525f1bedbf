"""Fixtures of the tests of the command line."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.cli.control import Up, code_of, relay_up, write_policy


class Ran(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture(autouse=True)
def _far_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the operator into a time zone other than UTC, in which the relay writes every instant."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def policy_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a policy that verbs find through RELAY_POLICY; no relay runs."""
    path = write_policy(tmp_path)
    monkeypatch.setenv("RELAY_POLICY", str(path))
    return path


@pytest.fixture
def up(policy_path: Path) -> Iterator[Up]:
    with relay_up(policy_path.parent) as up:
        yield up


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs `relay ARGUMENT...` and returns its exit code and output."""

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = code_of(*arguments)
        return Ran(code, *capsys.readouterr())

    return run
