"""Tests of SMTP out run on both event loops where the loop makes a difference."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import uvloop

from tests.upstream.certificates import Certificates, make_certificates

ON_BOTH_LOOPS = {
    "test_connection",
    "test_content",
    "test_misbehaviour",
    "test_protocol",
    "test_security",
    "test_transaction",
}


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the loops that a test runs on."""
    if item.path.stem in ON_BOTH_LOOPS:
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Return a certificate authority of our own, and what it signed."""
    folder: Path = tmp_path_factory.mktemp("certificates")
    return make_certificates(folder)
