"""What tests of the command line share."""

import time
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _far_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the operator into a zone that the relay writes no instant in."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
