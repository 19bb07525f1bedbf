"""Tests of the sender run in virtual time, except those with a real token server."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from relay.spool.maildir import layout
from tests.fakes.virtual_time import VirtualTimeLoop


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"real": asyncio.new_event_loop} if "oauth" in item.path.parts else {"virtual": VirtualTimeLoop}


@pytest.fixture(autouse=True)
def few_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split cur/ into 2 folders instead of 64: each start makes them, each look of a sender lists them."""
    monkeypatch.setattr(layout, "SPLITS", 2)
