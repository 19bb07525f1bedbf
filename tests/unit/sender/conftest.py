"""Every test of the sender runs in virtual time, but for those that ask a real token server."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from relay.spool.maildir import layout
from tests.fakes.virtual_time import VirtualTimeLoop


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the loop that pytest-asyncio makes for a test."""
    return {"real": asyncio.new_event_loop} if "oauth" in item.path.parts else {"virtual": VirtualTimeLoop}


@pytest.fixture(autouse=True)
def few_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let cur/ have 2 parts instead of 64, which each start makes and each look of a sender lists."""
    monkeypatch.setattr(layout, "SPLITS", 2)
