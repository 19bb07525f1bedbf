"""Tests of SMTP out run on both event loops where the loop makes a difference, and without PIPELINING."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import uvloop

from tests.fakes.smarthost import Smarthost
from tests.unit.upstream.certificates import Certificates, make_certificates

ON_BOTH_LOOPS = {"test_opening", "test_misbehaviour", "test_transaction"}
IN_TURN_TOO = {"test_misbehaviour", "test_transaction"}
IN_TURN = "asyncio, in turn"


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the loops that a test runs on."""
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.SelectorEventLoop}
    if item.path.stem in ON_BOTH_LOOPS:
        loops["uvloop"] = uvloop.new_event_loop
    if item.path.stem in IN_TURN_TOO:
        loops[IN_TURN] = asyncio.SelectorEventLoop
    return loops


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave uvloop to make test-all: what differs between the loops differs seldom."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and "uvloop" in item.name:
            item.add_marker(pytest.mark.full)


@pytest.fixture(autouse=True)
def _offers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the smarthost not offer PIPELINING where commands are to be sent in turn."""
    if IN_TURN in request.node.name:
        offers = tuple(each for each in Smarthost.EXTENSIONS if each != "PIPELINING")
        monkeypatch.setattr(Smarthost, "EXTENSIONS", offers)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Return a certificate authority of our own, and what it signed."""
    folder: Path = tmp_path_factory.mktemp("certificates")
    return make_certificates(folder)
