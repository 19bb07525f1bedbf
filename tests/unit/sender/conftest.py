"""Every test of the sender runs in virtual time, but for those that ask a real token server."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.fakes.virtual_time import VirtualTimeLoop


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the loop that pytest-asyncio makes for a test."""
    return {"real": asyncio.new_event_loop} if "oauth" in item.path.parts else {"virtual": VirtualTimeLoop}
