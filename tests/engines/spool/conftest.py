"""The engines that the crash and fault suites judge."""

import pytest

from relay.spool.maildir import layout
from tests.engines.spool.engine import LOG, MAILDIR, LogOnModel, OnModel

ENGINES = [pytest.param(MAILDIR, id="maildir"), pytest.param(LOG, id="log")]
SHORT_LOG = LogOnModel(LOG.root, (600, 1))
"""It begins a segment for each settlement, and cleans and removes some in each run."""


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> OnModel:
    made: OnModel = request.param
    return made


@pytest.fixture
def few_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split cur/ into 2 parts instead of 64: then some messages share a part and some do not."""
    monkeypatch.setattr(layout, "SPLITS", 2)
