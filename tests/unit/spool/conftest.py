"""The engine that the crash and fault suites judge.  The next one is another parameter of this fixture."""

import pytest

from tests.unit.spool.engine import OnModel
from tests.unit.spool.maildir_engine import MAILDIR


@pytest.fixture
def engine() -> OnModel:
    return MAILDIR
