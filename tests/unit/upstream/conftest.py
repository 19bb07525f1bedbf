"""Tests of SMTP out run on both event loops where the loop makes a difference."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

from tests.unit.upstream.certificates import Certificates, make_certificates

ON_BOTH_LOOPS = {"test_opening", "test_misbehaviour", "test_transaction"}


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.SelectorEventLoop}
    if item.path.stem in ON_BOTH_LOOPS:
        loops["uvloop"] = uvloop.new_event_loop
    return loops


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Return a certificate authority of our own, and the certificates that it signed."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))
